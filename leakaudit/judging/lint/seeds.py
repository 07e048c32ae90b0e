"""Can others generate the noise from a seed? Tests of guessed seeds and of the truth's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

from leakaudit._util.plain import Figures
from leakaudit._util.seeds import nth_generator
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Messages
from leakaudit.core.verdict import Verdict
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import Pitfall, chance_text
from leakaudit.views.conformance.samples import every_draw_of_truth

USUAL = (1234, 1337, 4321, 12345, 31337, 65536, 123456, 0xDEADBEEF)
YEARS = range(2020, 2027)
GUESSES = tuple(sorted({*range(1000), *USUAL, *YEARS}))
WIDTH = 4096  # coordinates that are compared: a choice
LEAST = 64  # coordinates below which a message is not compared: a choice
LEVEL = 1e-6  # false-positive rate: a choice
MANY = 200_000  # messages of a table above which its first one counts as the first that was sent
ALONG = 1e-12  # share of a message's length below which a remainder is rounding
WORK = 1 << 28  # numbers in a run that is repeated: a choice that limits the time
Floats = NDArray[np.float64]


def check(case: Case) -> Iterator[Pitfall]:
    """Yield a finding if a known seed generates the noise of this trace."""
    if not case.laws:
        return
    for name, value in case.params.items():
        if "seed" in name.lower() and isinstance(value, int) and not isinstance(value, bool):
            says = f"the trace contains {name}={value}: anyone can generate the noise again"
            yield Pitfall(19, case.broken, says, {"seed": value})
            return
    yield from list(_guessed(case)) or _redrawn(case)


@dataclass(frozen=True)
class _Stream:
    """The first numbers of a generator."""

    seed: int
    name: str
    draw: Floats  # standard normal numbers (n,)


def _guessed(case: Case) -> Iterator[Pitfall]:
    """Compare the first message with the first draws of common generators for usual seeds."""
    seen = _first(case)
    if seen is None or case.laws != {"gaussian"}:
        return
    sender, message = seen
    streams: list[_Stream] = []
    for seed in GUESSES:
        streams.extend(_streams(seed, len(message), str(case.trace.dtype)))
    table = np.stack([stream.draw for stream in streams])
    table -= table.mean(1, keepdims=True)
    lengths = np.linalg.norm(table, axis=1) * np.linalg.norm(message)
    cosines = np.abs(table @ message) / lengths
    # For independent noise of n numbers, the cosine is normal with variance 1 / n. The probability
    # is multiplied by the number of guesses.
    best = int(np.argmax(cosines))
    chance = float(2 * ndtr(-cosines[best] * math.sqrt(len(message)))) * len(streams)
    if chance < LEVEL:
        found = streams[best]
        says = (
            f"the first message of node {sender} is correlated with the first numbers of "
            f"{found.name} for seed {found.seed} (correlation {cosines[best]:.2f}, "
            f"chance {chance_text(chance)} over {len(GUESSES)} seeds): the noise can be subtracted"
        )
        figures: Figures = {"seed": found.seed, "generator": found.name, "chance": chance}
        verdict = Verdict.REFUTED if case.claims else Verdict.UNCLAIMED
        yield Pitfall(19, verdict, says, figures)


def _first(case: Case) -> tuple[int, Floats] | None:
    """Return the sender and the first message of the first node.

    The message (n,) is centred, and its component along the public initial model is removed. None
    if there is no such message, or if nothing remains of it.
    """
    table = _table(case)
    if table is None or case.trace.columns[0] != 0:
        return None
    at = _earliest(table)
    sender = int(table.src[at])
    if sender != 0:
        return None
    message = table.payload[int(table.row[at])][:WIDTH].double().numpy()
    if len(message) < LEAST or not np.isfinite(message).all():
        return None
    known = [np.ones(len(message))]
    start = case.trace.public.get("w0")
    if start is not None and start.numel() >= len(message):
        known.append(start.flatten()[: len(message)].double().numpy())
    basis = np.stack(known, 1)
    rest = message - basis @ np.linalg.lstsq(basis, message, rcond=None)[0]
    if np.linalg.norm(rest) > ALONG * np.linalg.norm(message):
        return sender, rest
    return None


def _table(case: Case) -> Messages | None:
    for table in case.trace.messages:
        if len(table):
            return table
    return None


def _earliest(table: Messages) -> int:
    if len(table) > MANY:
        return 0

    def key(k: int) -> tuple[int, int]:
        return int(table.round[k]), int(table.src[k])

    return min(range(len(table)), key=key)


def _streams(seed: int, count: int, dtype: str) -> Iterator[_Stream]:
    kind = torch.float64 if dtype == "torch.float64" else torch.float32
    ours = nth_generator(seed, recording.STREAMS.index("run"))
    for name, generator in (("torch", torch.Generator().manual_seed(seed)), ("leakaudit", ours)):
        draw = torch.randn(count, generator=generator, dtype=kind).double().numpy()
        yield _Stream(seed, name, draw)
    yield _Stream(seed, "numpy", np.random.default_rng(seed).standard_normal(count))


def _redrawn(case: Case) -> Iterator[Pitfall]:
    """Run the scenario in the truth again, and compare the noise bit for bit."""
    if case.truth is None:
        return
    told: Any = case.truth.provenance.get("scenario")
    numbers = case.trace.rounds * case.trace.graph.nodes * case.trace.layout.size
    if not isinstance(told, dict) or numbers > WORK:
        return
    kept = every_draw_of_truth(case)
    if not kept:
        return
    try:
        scenario = Scenario(**{**told, "states": True, **recording.SILENT})
        truth = recording.record(recording.plan(scenario), None).truth_record
    except (LeakauditError, TypeError, OSError):
        return
    again = every_draw_of_truth(Case(case.trace, truth))
    same = [np.array_equal(a.rest, b.rest) for a, b in zip(kept, again, strict=False)]
    if same and all(same):
        says = (
            f"seed {told.get('seed')} in the truth file reproduces all noise of this run bit for "
            "bit: any claim holds only against adversaries who do not have that file"
        )
        figures: Figures = {"seed": told.get("seed"), "nodes": len(same)}
        yield Pitfall(19, Verdict.UNCLAIMED, says, figures)
