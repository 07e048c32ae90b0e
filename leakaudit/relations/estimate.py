"""The quietest formula: best linear unbiased estimates from recorded messages, and how much they amplify rounding.

min |B'r|^2 subject to F'r = c; weights -K'r, standard deviation |B'r|, the same for every coordinate (docs/relations.md, estimate).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leakaudit.adversary import View
from leakaudit.errors import LeakauditError
from leakaudit.relations.expression import Expression, Vector
from leakaudit.relations.kkt import Array, Rounding, System, channel_errors, solve, spanning, system
from leakaudit.relations.knowledge import Knowledge

FLOOR = 1e-6  # of the loudest noise: quieter rounding would leave the weights of redundant messages to chance
Fetch = Callable[[Vector], Tensor]


@dataclass(frozen=True)
class Estimate:
    """Weights over known vectors that give each combination, up to its noise.

    vectors: (k) known vectors. weights: (m, k). std: (m,) noise per coordinate, rounding included. noise: (m, q), the error of the
    estimates is ``noise @ e`` with e of unit variance. amplification: (m,) std of the estimate per unit of independent error in
    every message.
    """

    combinations: tuple[Expression, ...]
    vectors: tuple[Vector, ...]
    weights: Array
    std: Array
    noise: Array
    amplification: Array

    def apply(self, fetch: Fetch) -> Tensor:
        """Return the estimates (m, c) in float64; every vector (c,) is fetched once and added to the rows that need it."""
        used = [k for k in range(len(self.vectors)) if self.weights[:, k].any()]
        out: Tensor | None = None
        for k in used:
            value = fetch(self.vectors[k])
            if out is None:
                out = torch.zeros(len(self.weights), value.shape[-1], dtype=torch.float64, device=value.device)
            for row in self.weights[:, k].nonzero()[0]:
                out[row].add_(value, alpha=float(self.weights[row, k]))
        if out is None:
            raise LeakauditError("the estimate uses no message: the combination is zero")
        return out


def estimate(knowledge: Knowledge, combinations: Sequence[Expression], *, rounding: Rounding = 1e-7) -> Estimate:
    """Return the best linear unbiased estimate of every combination of unknown vectors.

    rounding: standard deviation of the rounding of a recorded message, such as 3e-8 times its size in float32, for all or by
    message name. It picks, among formulas that are equal in exact arithmetic, the best conditioned one. Raises LeakauditError for a combination that is not
    determined even up to noise.
    """
    sizes = [rounding] if isinstance(rounding, int | float) else list(rounding.values())
    if min(sizes, default=0.0) < 0:
        raise LeakauditError(f"rounding: expected a standard deviation >= 0, got {min(sizes)}")
    loudest = max((knowledge.declared.vectors[k].std for k in knowledge.noise), default=max(sizes, default=0.0)) or 1.0
    s = system(knowledge, rounding, FLOOR * loudest)
    wanted = np.zeros((len(s.columns), len(combinations)))
    for at, combination in enumerate(combinations):
        for k, v in combination.terms.items():
            if k not in s.columns:
                raise LeakauditError(f"{combination}: {knowledge.declared.vectors[k].label} is known, is noise, or occurs in no relation")
            wanted[s.columns[k], at] = float(v)
    scale = float(np.abs(s.noise.data).max(initial=0)) or 1.0
    nothing = np.zeros((s.flat.shape[0], len(combinations)))
    _, r = solve(s.noise / scale, s.flat, wanted, nothing, lambda: spanning(knowledge, knowledge.flat))
    weights, noise = -(s.seen.T @ r).T, (s.noise.T @ r).T * _true(knowledge, s, rounding)
    weights[np.abs(weights) < 1e-12 * np.abs(weights).max(axis=1, keepdims=True, initial=0)] = 0
    used, loud = weights.any(axis=0), noise.any(axis=0)
    sent = np.array([knowledge.declared.vectors[k].kind == "message" for k in s.known], bool)
    return Estimate(
        combinations=tuple(combinations),
        vectors=tuple(knowledge.declared.vectors[k] for k, keep in zip(s.known, used, strict=True) if keep),
        weights=weights[:, used],
        std=np.linalg.norm(noise, axis=1),
        noise=noise[:, loud],
        amplification=np.linalg.norm(weights[:, sent], axis=1),
    )


def _true(knowledge: Knowledge, s: System, rounding: Rounding) -> Array:
    """Return, per column of B, what its standard deviation is over what it was solved with."""
    own, errors = len(knowledge.noise), channel_errors(knowledge, rounding)
    return np.array([1.0] * own + [errors.get(k, 0.0) / s.std[k] for k in s.noisy[own:]])


def recorded(view: View) -> Fetch:
    """Return how a declared vector is read from a recorded trace: a message by (round, src, dst, name), a public vector by name.

    A public vector that is a constant of the protocol, such as z0 = 0, has it in every coordinate.
    """

    def fetch(vector: Vector) -> Tensor:
        if vector.kind == "public":
            if vector.name in view.tensors:
                return view.public(vector.name)[slice(*view.columns)]
            return torch.full((view.columns[1] - view.columns[0],), float(view.constant(vector.name)), dtype=torch.float64)
        if vector.kind != "message" or vector.owner is None:
            raise LeakauditError(f"{vector.label} is not recorded in a trace; build the knowledge with own=False")
        heard = vector.dst if vector.dst is not None else tuple(j for j in range(view.graph.nodes) if j != vector.owner)
        to = next((j for j in heard if view.has(vector.round, vector.owner, j, vector.name)), heard[0])
        return view.message(vector.round, vector.owner, to, vector.name)

    return fetch
