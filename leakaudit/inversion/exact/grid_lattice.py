"""Whether a batch of images is the only one on the grid that spans its space."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.core.progress import expired

# Any other batch that explains the same rows has images x = sum_k a_k x_k with sum_k a_k = 1. If
# the network received images on the grid (`certify.batch` asks for other evidence of that: mixtures
# are off it), two facts bound these a:
#
# * **Lattice.** All pixels of x are whole multiples of 1/levels, and so are those of the x_k. If
#   the integer matrix of the x_k, with a row of ones, has full rank modulo every prime number, then
#   all a_k are integers: a denominator would be a prime modulo which the rows depend on each other.
# * **Box.** All pixels of x lie in [0, 1]. Two linear programs per image bound its coefficient a_k.
#
# If every a_k lies strictly between -1 and 2, then a_k is 0 or 1, and since they add up to 1, x is
# one of the batch: no other image on the grid exists in the whole space. Similar images have wider
# bounds, such as 2 x_1 - x_2. Then each other image is examined separately: with a_k = 1, are the
# coefficients of the similar ones zero?

Integers = NDArray[np.int64]

# Distance from a whole number that a bound must keep: far above the precision of a linear program.
MARGIN = 1e-3

# Maximum number of determinants whose common divisor is computed. If the rows are independent
# modulo 2, each is even with probability .71, and all of them are with 3e-4; other primes divide
# them less often.
DETERMINANTS = 24

# Maximum number of images of which not all bounds suffice, for examining the others.
LOOSE = 8


def irreplaceable(x: Tensor, levels: int) -> Tensor:
    """Decide which of independent images (b, p) are in every batch on the grid with their span."""
    b = len(x)
    nothing = torch.zeros(b, dtype=torch.bool)
    whole = (x * levels).round().long().cpu().numpy()
    if not _primitive(np.concatenate([whole, np.ones((b, 1), dtype=np.int64)], axis=1)):
        return nothing
    pixels = np.unique(whole, axis=1) / levels
    loose = [k for k in range(b) if not _within(pixels, k, -1.0, 2.0)]
    if not loose:
        return ~nothing
    if len(loose) > LOOSE or expired():
        return nothing
    found = nothing.clone()
    for k in set(range(b)) - set(loose):
        # The others are 0 or 1, so with a_k = 1 all of them are zero if the loose ones are.
        found[k] = all(_within(pixels, j, -1.0, 1.0, fixed=k) for j in loose)
    return found


def _within(
    pixels: NDArray[np.float64], k: int, low: float, high: float, fixed: int | None = None
) -> bool:
    """Check whether coefficient k stays strictly between two bounds on all images in the box.

    `fixed` is an image whose coefficient is 1.
    """
    from scipy.optimize import linprog  # slow to import

    b = len(pixels)
    equal = [np.ones(b)]
    if fixed is not None:
        equal.append(np.eye(b)[fixed])
    for sign, limit in ((1.0, low), (-1.0, -high)):
        objective = np.zeros(b)
        objective[k] = sign
        solved = linprog(
            objective,
            A_ub=np.concatenate([-pixels.T, pixels.T]),
            b_ub=np.concatenate([np.zeros(pixels.shape[1]), np.ones(pixels.shape[1])]),
            A_eq=np.array(equal),
            b_eq=np.ones(len(equal)),
            bounds=(None, None),
            method="highs",
        )
        if solved.x is None or not sign * solved.x[k] > limit + MARGIN:
            return False
    return True


def _primitive(rows: Integers) -> bool:
    """Whether integer rows (b, n) are independent modulo every prime number.

    Each determinant combines minors, all of which a prime divides modulo which rows depend on each
    other. So if the determinants have no common divisor, there is no such prime.
    """
    from sympy.polys.domains import ZZ
    from sympy.polys.matrices import DomainMatrix

    b = len(rows)
    rng = np.random.default_rng(0)
    divisor = 0
    for _ in range(DETERMINANTS):
        mixed = rows @ rng.integers(-1, 2, size=(rows.shape[1], b))
        matrix = DomainMatrix.from_list([[ZZ(int(v)) for v in row] for row in mixed], ZZ)
        divisor = math.gcd(divisor, int(matrix.det()))
        if divisor == 1:
            return True
    return False
