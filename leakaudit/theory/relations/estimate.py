"""The formula of least variance: best linear unbiased estimates from recorded messages."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakaudit.core import mapping
from leakaudit.core.adversary import View
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.expression import Expression, Vector
from leakaudit.theory.relations.kkt import (
    Array,
    Rounding,
    solve,
    spanning,
    system,
)
from leakaudit.theory.relations.knowledge import Knowledge

# Every weighted sum r of the relations states that some unknowns, noise and known vectors add up to
# 0. If its weights on the unknowns F'r are the requested combination c, its weights on the known
# vectors -K'r are an estimate, with the noise B'r as its error: min |B'r|^2 subject to F'r = c
# (Gauss, Markov; docs/relations.md, estimate). If relations are redundant, many sums have the same
# variance in exact arithmetic; the rounding of each message also counts as noise, which selects the
# one that amplifies rounding least. The standard deviation |B'r| is the same for every coordinate.

# Change of a weight, relative to the largest of its row, that counts as zero: about 50 rounding
# errors of float64.
NOTHING = 1e-14

# Minimum rounding of a message, relative to the largest noise. With less, the weights of redundant
# messages would be undetermined in float64, because energies are squares: 1e-12 of the largest,
# well above 2e-16. A choice.
FLOOR = 1e-6

# Numbers that are computed together, of all combinations: a choice, 64 MB in float64.
BLOCK = 1 << 23

Fetch = Callable[[Vector], Tensor]


@dataclass(frozen=True)
class Estimate:
    """Weights over known vectors that yield each combination, up to its noise."""

    combinations: tuple[Expression, ...]  # the m estimated forms
    vectors: tuple[Vector, ...]  # (k) the known vectors
    weights: Array  # (m, k) their weights
    std: Array  # (m,) noise per coordinate, including rounding
    noise: Array  # (m, q) the error of the estimates is `noise @ e` with e of unit variance
    # how many of the first of these q columns are noise of the protocol; the others are rounding
    drawn: int
    # (m,) standard deviation of the estimate per unit of independent error in every message
    amplification: Array
    # (m,) Euclidean norm of the remaining weights of the unknown vectors, which should be 0 and
    # differ from it by rounding
    miss: Array

    def apply(self, fetch: Fetch) -> Tensor:
        """Return the estimates (m, c) in float64; every vector (c,) is fetched once, by round.

        Weights that remain the same from some round on are applied to running sums: sum_t a_t x_t =
        sum_t (a_t - a_{t+1}) X_t with X_t = x_1 + ... + x_t, so an absolute value that requires all
        past messages costs as much as a difference.
        """
        # Every coordinate obeys the same formula, so blocks of columns are computed one by one.
        out: Tensor | None = None
        for start, columns, value in self.blocks(fetch):
            if value.shape[1] == columns:
                return value
            if out is None:
                out = value.new_zeros(len(value), columns)
            out[:, start : start + value.shape[1]] = value
        assert out is not None
        return out

    def blocks(self, fetch: Fetch) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the first column, the number of all columns, and the estimates (m, b) of a block.

        Memory does not depend on the size of the trace.
        """
        weights, running = _on_sums(self.vectors, self.weights)
        used = set(np.flatnonzero(weights.any(axis=0)).tolist())
        order = []
        for k in sorted(range(len(self.vectors)), key=lambda k: self.vectors[k].round):
            channel = _channel(self.vectors[k])
            if k in used or channel in running:
                order.append((k, channel))
        if not order:
            raise LeakauditError("the estimate uses no message: the combination is zero")
        columns = len(_read(fetch, self.vectors[order[0][0]]))
        wide = max(1, BLOCK // len(weights))
        for start in range(0, columns, wide):
            out: Tensor | None = None
            sums: dict[Vector, Tensor] = {}
            for k, channel in order:
                value = _read(fetch, self.vectors[k], columns)[start : start + wide]
                read = value
                if out is None:
                    out = torch.zeros(
                        len(weights), len(value), dtype=torch.float64, device=value.device
                    )
                if channel in running:
                    if channel in sums:
                        sums[channel].add_(value)
                    else:
                        sums[channel] = value.to(torch.float64, copy=True)
                    value = sums[channel]
                for row in weights[:, k].nonzero()[0]:
                    out[row].add_(value, alpha=float(weights[row, k]))
                mapping.release(read)
            assert out is not None
            yield start, columns, out


def _read(fetch: Fetch, vector: Vector, columns: int | None = None) -> Tensor:
    value = fetch(vector)
    if value.dim() != 1 or not len(value) or len(value) != (columns or len(value)):
        raise LeakauditError(
            f"{vector.label} has shape {tuple(value.shape)}, expected ({columns or 'columns'},) "
            "like the other vectors of the trace"
        )
    return value


def _channel(vector: Vector) -> Vector:
    return replace(vector, round=0)


def _on_sums(vectors: tuple[Vector, ...], weights: Array) -> tuple[Array, frozenset[Vector]]:
    """Return the weights (m, k), and the channels on which running sums require fewer weights."""
    order = defaultdict[Vector, list[int]](list)
    for k in sorted(range(len(vectors)), key=lambda k: vectors[k].round):
        order[_channel(vectors[k])].append(k)
    weights = weights.copy()
    running: set[Vector] = set()
    limit = NOTHING * np.abs(weights).max(axis=1, keepdims=True, initial=0)
    for channel, ks in order.items():
        steps = weights[:, ks] - np.pad(weights[:, ks[1:]], ((0, 0), (0, 1)))
        steps[np.abs(steps) <= limit] = 0
        if 2 * np.count_nonzero(steps) < np.count_nonzero(weights[:, ks]):
            weights[:, ks] = steps
            running.add(channel)
    return weights, frozenset(running)


def estimate(
    knowledge: Knowledge, combinations: Sequence[Expression], *, rounding: Rounding = 1e-7
) -> Estimate:
    """Return the best linear unbiased estimate of every combination of unknown vectors.

    Args:
        knowledge: The relations in use, and what is known.
        combinations: Of unknown vectors that are not noise.
        rounding: Standard deviation of the rounding of a recorded message, for example 3e-8 times
            its size in float32; one for all, or by message name.

    Raises:
        LeakauditError: A combination is not determined even up to noise.
    """
    if isinstance(rounding, int | float):
        sizes = [rounding]
    else:
        sizes = list(rounding.values())
    if min(sizes, default=0.0) < 0:
        raise LeakauditError(f"rounding: expected a standard deviation >= 0, got {min(sizes)}")
    if max(sizes, default=0.0) == math.inf:
        raise LeakauditError("the recorded numbers are too large for an estimate in float64")
    noises = [knowledge.declared.vectors[k].std for k in knowledge.noise] or sizes
    largest = max(noises, default=0.0) or 1.0
    s = system(knowledge, rounding, FLOOR * largest)
    wanted = np.zeros((len(s.columns), len(combinations)))
    for at, combination in enumerate(combinations):
        for k, v in combination.terms.items():
            if k not in s.columns:
                raise LeakauditError(
                    f"{combination}: {knowledge.declared.vectors[k].label} is known, is noise, or "
                    "does not occur in any relation"
                )
            wanted[s.columns[k], at] = float(v)
    scale = float(np.abs(s.noise.data).max(initial=0)) or 1.0
    nothing = np.zeros((s.flat.shape[0], len(combinations)))
    _, r = solve(
        s.noise / scale, s.flat, wanted, nothing, lambda: spanning(knowledge, knowledge.flat)
    )
    weights = -(s.seen.T @ r).T
    noise = (s.noise.T @ r).T * s.true
    weights[np.abs(weights) < NOTHING * np.abs(weights).max(axis=1, keepdims=True, initial=0)] = 0
    used = weights.any(axis=0)
    heard = noise.any(axis=0)
    known = [knowledge.declared.vectors[k] for k in s.known]
    sent = np.array([vector.kind == "message" for vector in known], bool)
    return Estimate(
        combinations=tuple(combinations),
        vectors=tuple(itertools.compress(known, used)),
        weights=weights[:, used],
        std=np.linalg.norm(noise, axis=1),
        noise=noise[:, heard],
        drawn=int(heard[: len(knowledge.noise)].sum()),
        amplification=np.linalg.norm(weights[:, sent], axis=1),
        miss=np.linalg.norm(s.flat.T @ r - wanted, axis=0),
    )


def recorded(view: View, columns: Tensor | None = None) -> Fetch:
    """Return a function that reads a declared vector, or some of its columns (k,), from a trace.

    A message is identified by (round, src, dst, name), a public vector by name. A public vector
    that is a constant of the protocol, such as z0 = 0, has this value in every coordinate.
    """

    def fetch(vector: Vector) -> Tensor:
        if vector.kind == "public":
            value = public(vector)
            return value if columns is None else value[columns]
        if vector.kind != "message" or vector.owner is None:
            raise LeakauditError(
                f"{vector.label} is not part of a recorded trace; call know(…, own=False)"
            )
        receivers = vector.dst
        if receivers is None:
            receivers = tuple(j for j in range(view.graph.nodes) if j != vector.owner)
        to = receivers[0]  # if there is no copy, `message` raises an error
        if len(receivers) > 1:
            for receiver in receivers:
                if view.has(vector.round, vector.owner, receiver, vector.name):
                    to = receiver
                    break
        if columns is not None:
            return view.some(vector.round, vector.owner, to, vector.name, columns)
        return view.message(vector.round, vector.owner, to, vector.name)

    def public(vector: Vector) -> Tensor:
        if vector.name in view.tensors:
            value = view.public(vector.name)
            if value.shape != (view.layout.size,):
                raise LeakauditError(
                    f"public tensor {vector.name!r} has shape {tuple(value.shape)}, expected "
                    f"({view.layout.size},) like a model"
                )
            return value[slice(*view.columns)]
        return torch.full(
            (view.columns[1] - view.columns[0],),
            view.number(vector.name),
            dtype=torch.float64,
        )

    return fetch
