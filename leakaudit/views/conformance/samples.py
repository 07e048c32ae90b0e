"""Samples of noise: gradients that a trace determines up to noise, and noise in a truth file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit._util.once import once
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.declared import private_vector
from leakaudit.theory.relations import Vector
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.substitute import OF_NOISE, NormalisedNoise
from leakaudit.views.extraction.deduction import ChosenRelations, Deduction
from leakaudit.views.extraction.gradient_values import minimum_variance

Floats = NDArray[np.float64]

LEVEL = 1e-5  # false-positive rate of each kind of test on one trace: a choice
# How much is examined: choices that limit the time of a lint to seconds.
NODES = 8
ROUNDS = 16
WIDTH = 4096  # coordinates
# Share of the declared size from which on sizes count as equal. It is also the smallest share of an
# estimate's noise that the protocol draws: the rest is rounding, which may be smaller than assumed.
ENOUGH = 1 - 1e-3
# Largest rounding error of a number beside its noise, relative to the noise: six times as much, as
# the bundled victims reach, adds 0.4 % to the variance.
CLEAR = 1e-2
NUMBERS = 1 << 24  # numbers in the estimates of one node
# Fields of a sample and of normalised noise with an entry for each row.
OF_ROWS = (
    *("labels", "rounds", "value", "factor", "norm", "weight"),
    *("rest", "signal", "better", "std", "rounded", "longer"),
)
DRAWS = 4 * ROUNDS  # draws of one node's noise; a protocol may draw several times in a round


@dataclass(frozen=True)
class Sample:
    """Rows of one node: ``value = shift + factor @ e``, with e of variance 1, as declared."""

    node: int  # the node of these rows
    labels: tuple[str, ...]  # names of the rows (m,)
    rounds: tuple[int, ...]  # rounds of the rows (m,)
    value: Floats  # values at some of the coordinates (m, c)
    factor: Floats  # factor of the declared noise (m, e)
    norm: Floats  # norms over all recorded coordinates (m,)
    weight: Floats  # sums of the absolute coefficients of the gradients (m,)
    coordinates: int  # number of recorded coordinates
    gaussian: bool  # whether e is normal
    # whether the shift is an unknown gradient; otherwise it is 0, and the values are the noise
    hidden: bool
    alone: bool = True  # whether the rows contain only noise of this node

    @property
    def std(self) -> Floats:
        """Declared standard deviation of every row (m,)."""
        return np.asarray(np.linalg.norm(self.factor, axis=1))


Rows = TypeVar("Rows", Sample, NormalisedNoise)


@once
def estimates(case: Case) -> tuple[Sample, ...]:
    """Return what an outsider determines about the gradients of some nodes, up to noise."""
    return tuple(of_trace(case))


def of_trace(case: Case) -> Iterator[Sample]:
    """Yield what an outsider determines about the gradients of some nodes, up to noise."""
    first, stop = case.trace.columns
    if case.protocol is None or case.relations is None or stop == first:
        return
    try:
        deduction = Deduction(case.trace, Adversary())
    except LeakauditError:
        return
    rounds = max(2, min(ROUNDS, NUMBERS // (stop - first)))
    nodes = [node for node in case.holders if deduction.base.gradients(node)]
    every = max(1, -(-len(nodes) // NODES))
    for node in nodes[::every]:
        try:
            found = deduction.of(node, rounds)
            if found.noisy and found.reach is None:
                yield from _estimated(deduction, found, rounds)
        except LeakauditError:
            continue


def _estimated(deduction: Deduction, found: ChosenRelations, rounds: int) -> Iterator[Sample]:
    """Yield the estimates of a node's gradients that have the least noise.

    Those with considerable rounding are left out, such as those of a run that diverges.
    """
    vectors = found.knowledge.declared.vectors
    noisy = found.rows[len(found.rows) - found.noisy :]
    rows = noisy[:rounds]
    estimate = minimum_variance(deduction, found.knowledge, rows)
    value = estimate.apply(deduction.fetch)
    noise = [vectors[k] for k in found.knowledge.noise]
    last = [max(vectors[k].round for k in row.terms) for row in rows]
    weight = [sum(abs(float(v)) for v in row.terms.values()) for row in rows]
    sample = Sample(
        node=found.node,
        labels=tuple(map(str, rows)),
        rounds=tuple(last),
        value=value[:, torch.from_numpy(_columns(value.shape[1]))].double().numpy(),
        factor=estimate.noise,
        norm=value.norm(dim=1).numpy(),
        weight=np.array(weight),
        coordinates=value.shape[1],
        gaussian=all(v.law == "gaussian" for v in noise),
        hidden=True,
        alone=all(v.owner == found.node for v in noise),
    )
    drawn = np.linalg.norm(estimate.noise[:, : estimate.drawn], axis=1)
    clear = [k for k in range(len(rows)) if drawn[k] >= ENOUGH * sample.std[k]]
    if clear:
        yield pick(sample, clear)


def of_draws(noise: Sequence[NormalisedNoise], suspects: Sequence[int] = ()) -> list[Sample]:
    """Return draws of some nodes' noise as samples.

    Draws with considerable rounding are left out, such as those of a run that diverges.
    """
    every = max(1, -(-len(noise) // NODES))
    found = []
    for k, one in enumerate(noise):
        kept = clear(one)
        if not len(kept.std) or (k % every and one.node not in suspects):
            continue
        rows = slice(DRAWS)
        value = kept.rest[rows] * kept.std[rows, None]
        found.append(
            Sample(
                node=one.node,
                labels=kept.labels[rows],
                rounds=kept.rounds[rows],
                value=value[:, _columns(value.shape[1])],
                factor=np.diag(kept.std[rows]),
                norm=np.linalg.norm(value, axis=1),
                weight=np.zeros(len(value)),
                coordinates=value.shape[1],
                gaussian=one.gaussian,
                hidden=False,
            )
        )
    return found


def clear(noise: NormalisedNoise) -> NormalisedNoise:
    """Return the draws of a node's noise that rounding does not hide."""
    rows = np.flatnonzero(noise.rounded <= CLEAR * noise.std).tolist()
    return noise if len(rows) == len(noise.std) else pick(noise, rows)


def every_draw_of_truth(case: Case) -> list[NormalisedNoise]:
    """Return all draws in a truth that contains them, as far as they fit into memory."""
    if case.truth is None or not case.truth.states or case.relations is None:
        return []
    kept: dict[int, list[tuple[Vector, Floats]]] = {}
    left = OF_NOISE
    for vector in case.relations.vectors:
        if vector.kind != "noise" or vector.owner is None or not vector.std:
            continue
        value = state(case, vector)
        if value is None or value.numel() > left:
            continue
        left -= value.numel()
        kept.setdefault(vector.owner, []).append((vector, value.double().numpy() / vector.std))
    found = []
    for node in sorted(kept):
        vectors = [vector for vector, _ in kept[node]]
        rest = np.stack([value for _, value in kept[node]])
        nothing = np.zeros_like(rest)
        found.append(
            NormalisedNoise(
                node=node,
                labels=tuple(vector.label for vector in vectors),
                rounds=tuple(vector.round for vector in vectors),
                rest=rest,
                signal=nothing,
                better=nothing,
                gaussian=all(vector.law == "gaussian" for vector in vectors),
                std=np.array([vector.std for vector in vectors]),
                rounded=np.zeros(len(vectors)),
            )
        )
    return found


def state(case: Case, vector: Vector) -> Tensor | None:
    """Return a private vector of the truth.

    Returns:
        The vector (d,); None if it was not kept.
    """
    if case.truth is None or vector.owner is None:
        return None
    value = private_vector(case.truth, vector, case.trace.layout.size)
    return None if value is None or bool(value.isnan().any()) else value


def pick(some: Rows, rows: Sequence[int]) -> Rows:
    """Return some rows of a sample, or draws of a node's noise."""
    chosen: dict[str, Any] = {}
    for field in fields(some):
        value = getattr(some, field.name)
        if field.name not in OF_ROWS or value is None:
            continue
        if isinstance(value, tuple):
            chosen[field.name] = tuple(value[row] for row in rows)
        else:
            chosen[field.name] = value[rows]
    return replace(some, **chosen)


def _columns(width: int) -> NDArray[np.intp]:
    return np.linspace(0, width - 1, min(width, WIDTH)).round().astype(np.intp)
