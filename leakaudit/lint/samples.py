"""Vectors with known noise on them: what a trace determines of gradients up to noise, and the noise itself from a truth file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.extraction.deduction import Deduction, Determined
from leakaudit.extraction.gradient_values import quietest
from leakaudit.lint.case import Case
from leakaudit.relations import Vector

Floats = NDArray[np.float64]
NODES, ROUNDS, WIDTH = 8, 16, 4096  # that are looked at
NUMBERS = 1 << 24  # of one node's estimates


@dataclass(frozen=True)
class Sample:
    """Rows (m, c) of one node: ``value = shift + factor @ e``, e of unit variance, as declared.

    hidden: the shift is an unknown gradient; else it is 0 and the values are the noise. std: (m,) of a coordinate. norm: (m,) of all
    recorded coordinates, of which `coordinates` were recorded. weight: (m,) sum of the gradients' absolute coefficients. alone: no
    other node's noise is in it. gaussian: its law.
    """

    node: int
    labels: tuple[str, ...]
    rounds: tuple[int, ...]
    value: Floats
    factor: Floats
    norm: Floats
    weight: Floats
    coordinates: int
    gaussian: bool
    hidden: bool
    alone: bool = True

    @property
    def std(self) -> Floats:
        """Declared standard deviation of every row."""
        return np.asarray(np.linalg.norm(self.factor, axis=1))


def of_trace(case: Case) -> Iterator[Sample]:
    """Yield what an outsider determines of some nodes' gradients up to noise; nothing where messages hold NaN or are not heard."""
    if (
        case.protocol is None
        or case.relations is None
        or case.trace.columns[1] == case.trace.columns[0]
    ):
        return
    try:
        heard = Deduction(case.trace, Adversary())
    except LeakauditError:
        return
    width = case.trace.columns[1] - case.trace.columns[0]
    rounds = max(2, min(ROUNDS, NUMBERS // width))
    nodes = [i for i in case.holders if heard.base.gradients(i)]
    for node in nodes[:: max(1, -(-len(nodes) // NODES))]:
        try:
            found = heard.of(node, rounds)
            if found.noisy and found.reach is None:
                yield _estimated(heard, found, rounds)
        except LeakauditError:
            continue


def _estimated(heard: Deduction, found: Determined, rounds: int) -> Sample:
    vectors, rows = (
        found.knowledge.declared.vectors,
        found.rows[len(found.rows) - found.noisy :][:rounds],
    )
    estimate = quietest(heard, found.knowledge, rows)
    value, noise = estimate.apply(heard.fetch), [vectors[k] for k in found.knowledge.noise]
    return Sample(
        node=found.node,
        labels=tuple(map(str, rows)),
        rounds=tuple(max(vectors[k].round for k in row.terms) for row in rows),
        value=_some(value),
        factor=estimate.noise,
        norm=value.norm(dim=1).numpy(),
        weight=np.array([sum(abs(float(v)) for v in row.terms.values()) for row in rows]),
        coordinates=value.shape[1],
        gaussian=all(v.law == "gaussian" for v in noise),
        hidden=True,
        alone=all(v.owner == found.node for v in noise),
    )


def of_truth(case: Case) -> Iterator[Sample]:
    """Yield the recorded noise of every node, all draws of one standard deviation and law together."""
    if case.truth is None or case.relations is None or case.relations.round == 0:
        return
    for node in list(case.holders)[:NODES]:
        drawn = [v for v in case.relations.vectors if v.kind == "noise" and v.owner == node]
        kept = [(v, value) for v in drawn if (value := state(case, v)) is not None][: 4 * ROUNDS]
        if not kept:
            continue
        value, std = torch.stack([x.double() for _, x in kept]), np.array([v.std for v, _ in kept])
        yield Sample(
            node=node,
            labels=tuple(v.label for v, _ in kept),
            rounds=tuple(v.round for v, _ in kept),
            value=_some(value),
            factor=np.diag(std),
            norm=value.norm(dim=1).numpy(),
            weight=np.zeros(len(kept)),
            coordinates=value.shape[1],
            gaussian=all(v.law == "gaussian" for v, _ in kept),
            hidden=False,
        )


def state(case: Case, vector: Vector) -> Tensor | None:
    """Return a private vector of the truth by its declared name and round, None where it was not kept."""
    kept = (
        case.truth.states.get(
            vector.name if vector.index is None else f"{vector.name}.{vector.index}"
        )
        if case.truth
        else None
    )
    if (
        kept is None
        or vector.owner is None
        or kept.dim() != 3
        or vector.round >= len(kept)
        or vector.owner >= kept.shape[1]
    ):
        return None
    value = kept[vector.round, vector.owner]
    return None if bool(value.isnan().any()) else value


def pick(sample: Sample, rows: list[int]) -> Sample:
    """Return some rows of a sample."""
    return replace(
        sample,
        labels=tuple(sample.labels[k] for k in rows),
        rounds=tuple(sample.rounds[k] for k in rows),
        value=sample.value[rows],
        factor=sample.factor[rows],
        norm=sample.norm[rows],
        weight=sample.weight[rows],
    )


def _some(value: Tensor) -> Floats:
    """Return evenly spread columns, at most WIDTH."""
    width = value.shape[1]
    return value[:, torch.linspace(0, width - 1, min(width, WIDTH)).round().long()].double().numpy()
