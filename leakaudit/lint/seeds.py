"""Is the noise that of a seed which others know? Guessed seeds against the wire; the truth's own seed against the recorded noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from leakaudit.errors import LeakauditError
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.lint.quiet import tiny
from leakaudit.lint.samples import of_truth
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.trace import Messages
from leakaudit.verdict import Verdict

GUESSES = (
    *range(1000),
    1234,
    1337,
    2020,
    2021,
    2022,
    2023,
    2024,
    2025,
    2026,
    4321,
    12345,
    31337,
    65536,
    123456,
    0xDEADBEEF,
)
WIDTH, LEAST, LEVEL = (
    4096,
    64,
    1e-6,
)  # coordinates that are compared, at least; chance of a false alarm
WORK = 1 << 28  # numbers of a run that is run again
Floats = NDArray[np.float64]


def check(case: Case) -> Iterator[Pitfall]:
    """Yield a seed that gives the noise of this trace."""
    named = [
        k
        for k in case.params
        if "seed" in k.lower()
        and isinstance(case.params[k], int)
        and not isinstance(case.params[k], bool)
    ]
    if case.laws and named:
        says = f"the trace itself says {named[0]}={case.params[named[0]]}: whoever reads it can draw the noise again"
        yield Pitfall(19, case.broken, says, {"seed": case.params[named[0]]})
        return
    guessed = list(_guessed(case)) if case.laws else []
    yield from guessed or _redrawn(case)


def _guessed(case: Case) -> Iterator[Pitfall]:
    """Compare the first message with what common generators draw first for a thousand usual seeds."""
    seen = _first(case)
    if seen is None or case.laws != {"gaussian"}:
        return
    sender, message = seen
    streams = [
        (seed, name, draw)
        for seed in GUESSES
        for name, draw in _streams(seed, len(message), str(case.trace.dtype))
    ]
    table = np.stack([draw for _, _, draw in streams])
    table -= table.mean(1, keepdims=True)
    cosines = np.abs(table @ message) / (np.linalg.norm(table, axis=1) * np.linalg.norm(message))
    best = int(np.argmax(cosines))
    chance = float(2 * norm.sf(cosines[best] * math.sqrt(len(message)))) * len(streams)
    if chance < LEVEL:
        seed, name, _ = streams[best]
        says = (
            f"the first message of node {sender} goes along with what {name} draws first for seed {seed} "
            f"(correlation {cosines[best]:.2f}, chance {tiny(chance)} over {len(GUESSES)} seeds): the noise can be taken away"
        )
        yield Pitfall(
            19,
            Verdict.REFUTED if case.claims else Verdict.UNCLAIMED,
            says,
            {"seed": seed, "generator": name, "chance": chance},
        )


def _first(case: Case) -> tuple[int, Floats] | None:
    """Return the message that is sent first by the first node, without its part along the public start, centred."""
    m = _table(case)
    if m is None or case.trace.columns[0] != 0:
        return None
    at = (
        min(range(len(m)), key=lambda k: (int(m.round[k]), int(m.src[k])), default=None)
        if len(m) <= 200_000
        else 0
    )
    if at is None or int(m.src[at]) != 0:
        return None
    message = m.payload[int(m.row[at])][:WIDTH].double().numpy()
    if len(message) < LEAST or not np.isfinite(message).all():
        return None
    known = [np.ones(len(message))]
    if (start := case.trace.public.get("w0")) is not None and start.numel() >= len(message):
        known.append(start.flatten()[: len(message)].double().numpy())
    basis = np.stack(known, 1)
    rest = message - basis @ np.linalg.lstsq(basis, message, rcond=None)[0]
    return (
        (int(m.src[at]), rest) if np.linalg.norm(rest) > 1e-12 * np.linalg.norm(message) else None
    )


def _table(case: Case) -> Messages | None:
    return next((m for m in case.trace.messages if len(m)), None)


def _streams(seed: int, count: int, dtype: str) -> Iterator[tuple[str, Floats]]:
    """Yield the first normal numbers of the usual generators for a seed."""
    kind = torch.float64 if dtype == "torch.float64" else torch.float32
    run = recording.generators(seed, "data", "split", "graph", "model", "run", "schedule")["run"]
    for name, generator in (("torch", torch.Generator().manual_seed(seed)), ("leakaudit", run)):
        yield name, torch.randn(count, generator=generator, dtype=kind).double().numpy()
    yield "numpy", np.random.default_rng(seed).standard_normal(count)


def _redrawn(case: Case) -> Iterator[Pitfall]:
    """Run the truth's own scenario again and compare the noise, bit for bit."""
    told: Any = case.truth.provenance.get("scenario") if case.truth is not None else None
    numbers = case.trace.rounds * case.trace.graph.nodes * case.trace.layout.size
    if (
        not isinstance(told, dict)
        or not case.laws
        or numbers > WORK
        or not (kept := list(of_truth(case)))
    ):
        return
    try:
        plan = recording.plan(Scenario(**{**told, "states": True, "curves": False}))
        again = Case(case.trace, recording.record(plan, None).truth_record)
    except (LeakauditError, TypeError, OSError):
        return
    same = [np.array_equal(a.value, b.value) for a, b in zip(kept, of_truth(again), strict=False)]
    if same and all(same):
        says = (
            f"seed {told.get('seed')} of the truth file gives all noise of this run again, bit for bit: what is claimed holds only "
            "against those who do not have that file"
        )
        yield Pitfall(19, Verdict.UNCLAIMED, says, {"seed": told.get("seed"), "nodes": len(same)})
