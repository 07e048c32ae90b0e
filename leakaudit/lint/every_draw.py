"""Tests of all draws of noise together, where the truth determines each of them.

Independent normal vectors are nearly orthogonal. If the noise of two messages is equal, up to a
factor, the cosine of the angle between their draws is 1 or -1: whichever nodes drew them, and in
whichever rounds. All pairs are compared by one product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincc, chdtr

from leakaudit._util.plain import Figures
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall, chance_text
from leakaudit.lint.samples import CLEAR, Floats, state
from leakaudit.lint.substitute import OF_NOISE, Noise
from leakaudit.verdict import Verdict

# Probability of a false alarm of each test, over everything that is compared.
LEVEL = 1e-6
# Most draws that are compared in pairs, evenly chosen, and most coordinates of them. Choices: a
# second or two. Equal draws are equal in every coordinate.
DRAWS = 4096
WIDTH = 512
FEWEST = 16  # coordinates below which nothing is compared: a choice
# Size of the noise of a coordinate, relative to the declared size, from which on it is no finding.
ENOUGH = 0.5


@dataclass(frozen=True)
class Draws:
    """The draws of one node's normal noise.

    Attributes:
        node: The node.
        labels: (k,) Names of the draws.
        values: (k, c) The draws, in units of their declared standard deviation.
    """

    node: int
    labels: Sequence[str]
    values: Floats


def of_noise(noise: Sequence[Noise]) -> list[Draws]:
    """Return the draws that rounding does not hide.

    Args:
        noise: The noise of all nodes.
    """
    found = []
    for one in noise:
        rows = np.flatnonzero(one.rounded <= CLEAR * one.std)
        if one.gaussian and len(rows):
            labels = [one.labels[row] for row in rows]
            values = one.rest if len(rows) == len(one.rest) else one.rest[rows]
            found.append(Draws(one.node, labels, values))
    return found


def of_truth(case: Case) -> list[Draws]:
    """Return the draws in a truth that contains them; those of the first rounds if there are many.

    Args:
        case: The input; nothing is returned without a truth.
    """
    if case.truth is None or not case.truth.states or case.relations is None:
        return []
    labels: dict[int, list[str]] = {}
    values: dict[int, list[Floats]] = {}
    left = OF_NOISE
    for vector in case.relations.vectors:
        if vector.kind != "noise" or vector.owner is None or vector.law != "gaussian":
            continue
        value = state(case, vector)
        if value is None or not vector.std or value.numel() > left:
            continue
        left -= value.numel()
        labels.setdefault(vector.owner, []).append(vector.label)
        values.setdefault(vector.owner, []).append(value.double().numpy() / vector.std)
    return [Draws(node, labels[node], np.stack(values[node])) for node in sorted(values)]


def judged(draws: Sequence[Draws]) -> Iterator[Pitfall]:
    """Yield a finding if two draws are equal, or if a coordinate contains too little noise.

    Args:
        draws: The draws of every node.
    """
    if sum(len(one.values) for one in draws) < 2:
        return
    equal = list(_equal(draws))
    yield from equal or _quiet_coordinates(draws)


def _equal(draws: Sequence[Draws]) -> Iterator[Pitfall]:
    names = [f"{label} of node {one.node}" for one in draws for label in one.labels]
    kept = np.unique(np.linspace(0, len(names) - 1, min(len(names), DRAWS)).astype(int))
    width = draws[0].values.shape[1]
    if width < FEWEST:
        return
    columns = np.unique(np.linspace(0, width - 1, min(width, WIDTH)).astype(int))
    rows = np.concatenate([one.values[:, columns] for one in draws])[kept]
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = (rows / np.where(sizes > 0, sizes, 1.0)).astype(np.float32)
    cosines = np.abs(rows @ rows.T)
    np.fill_diagonal(cosines, 0.0)
    pairs = len(kept) * (len(kept) - 1) // 2
    i, j = divmod(int(cosines.argmax()), len(kept))
    largest = min(1.0, float(cosines[i, j]))
    # The squared cosine of two independent normal vectors has this distribution.
    chance = pairs * float(betaincc(0.5, (len(columns) - 1) / 2, largest**2))
    if not chance < LEVEL:
        return
    first, again = names[kept[min(i, j)]], names[kept[max(i, j)]]
    says = (
        f"the noise on {first} and on {again} is not independent: the cosine of their angle is "
        f"{largest:.2g} (chance {chance_text(chance)}; {len(kept)} draws were compared with each "
        "other)"
    )
    figures: Figures = {"first": first, "again": again, "chance": chance, "compared": pairs}
    yield Pitfall(6, Verdict.REFUTED, says, figures)


def _quiet_coordinates(draws: Sequence[Draws]) -> Iterator[Pitfall]:
    """Test the noise of each coordinate, over all draws."""
    count = sum(len(one.values) for one in draws)
    energy = np.sum([np.einsum("kc,kc->c", one.values, one.values) for one in draws], axis=0)
    worst = int(energy.argmin())
    size = math.sqrt(energy[worst] / count)
    chance = len(energy) * float(chdtr(count, energy[worst]))
    if not chance < LEVEL or size > ENOUGH:
        return
    says = (
        f"number {worst} of every message contains {size:.3g} times the declared noise ({count} "
        f"draws of all nodes, chance {chance_text(chance)})"
    )
    figures: Figures = {"column": worst, "ratio": size, "chance": chance, "draws": count}
    yield Pitfall(20, Verdict.REFUTED, says, figures)
