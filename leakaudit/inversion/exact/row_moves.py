"""Which rows of an embedding AdamW has moved, from a change that was rounded on the wire."""

from __future__ import annotations

import math

from torch import Tensor

from leakaudit.core.trace import Training

# A row whose token does not occur has a gradient of exactly zero in every step, so that both
# averages of AdamW stay zero, and weight decay alone changes the row: after n steps, the model
# before minus the one after is (1 - (1 - lr decay)^n) times the row. What is sent differs from this
# by at most
#
#     half a step of the rounding on the wire, the step being max |change| / (2^(bits-1) - 1) over
#     the parameter, as its largest number is sent as the largest integer,
#     n + 2 roundings of the weights, two halves in every step and one in the difference,
#
# in every coordinate. A row that differs by more in a single coordinate was moved by a gradient:
# its token occurred. This needs no threshold that was set by hand, and is never wrong as long as
# the constants are those of the program.
#
# The other direction asks how far a single occurrence moves a row. With the gradient g in step k
# only, AdamW's averages are m = .1 g and v = .001 g^2, so that every coordinate moves by
#
#     lr .1 / (1 - .9^k) sqrt((1 - .999^k) / .001)
#
# in step k (.48 lr for k = 10, its minimum; .98 lr for k = 100), and further in the same direction
# afterwards, if one coordinate of the gradient is large beside the 1e-8 that AdamW adds to the
# square root of v. If this exceeds what the rounding can hide in a row (`_visible`), the token of a
# row that was not moved did not occur, or it occurred several times and its moves cancelled in
# every one of the coordinates. If not, rows may be hidden, and nothing is said about their tokens.

# AdamW's shares of a new gradient in its averages, the defaults of torch.optim.
FAST = 0.1
SLOW = 0.001
# Standard deviations of the messages' own rounding that are allowed for. Rounding is bounded, and
# the sum of a few of its errors stays below this; a Gaussian error exceeds it once in 1e15.
SURELY = 8.0
# Largest distance of a number from the grid of the messages, as a share of its step. Rounding in
# float32 gives 127 * 6e-8 for int8 and .004 for 16 bits; other numbers are anywhere.
GRID = 0.02


def decide(
    change: Tensor, weights: Tensor, training: Training, *, wire: float, noise: float, before: int
) -> tuple[Tensor, str] | str:
    """Decide for every row whether its token occurred.

    `change` (rows, h) is the weights before the steps minus those after them, as received. Returns
    the numbers of the rows that were moved, in order, and what follows about the others, in words;
    or why nothing follows.
    """
    step = 0.0
    if training.bits:
        step = float(change.abs().max()) / (2 ** (training.bits - 1) - 1)
    # Also for change = 0, where every number lies on the grid.
    off = SURELY * noise
    if step and float(_off_grid(change, step)) > GRID + off / step:
        bits = training.bits
        return f"the numbers are not multiples of a common step, as with {bits} bits"
    kept = (1 - training.lr * training.decay) ** training.steps
    left = (change - (1 - kept) * weights).abs()
    rounded = wire * ((training.steps + 2) * weights.abs() + change.abs())
    allowed = step / 2 + rounded + off
    moved = (left > allowed).any(1)
    rows = len(change)
    count = int(moved.sum())
    found = moved.nonzero().flatten()
    if not count:
        return f"rounding explains the changes of all {rows} rows, to steps of {step:.1g}"
    if count == rows:
        return (
            f"all {rows} rows were moved, so that either every token occurred, or the step size, "
            "the weight decay or the optimiser is not the stated one"
        )
    least = smallest_move(training, before)
    needed = _visible((1 - kept) * weights[~moved], step, rounded[~moved] + off)
    hidden = int((needed >= least).sum())
    if not hidden:
        others = f"the other {rows - count} were not moved"
        return found, f"{others}, and rounding does not hide a token that occurred once"
    return (
        found,
        f"not known whether {hidden} others occurred: one occurrence moves a row by {least:.1g}, "
        f"and the rounding of the messages, in steps of {step:.1g}, may hide that",
    )


def smallest_move(training: Training, before: int) -> float:
    """Return the least move of each coordinate of a row by the only occurrence of its token."""
    moves = []
    for k in range(before + 1, before + training.steps + 1):
        first = FAST / (1 - (1 - FAST) ** k)
        second = SLOW / (1 - (1 - SLOW) ** k)
        moves.append(training.lr * first / math.sqrt(second))
    return min(moves)


def _visible(decayed: Tensor, step: float, error: Tensor) -> Tensor:
    """Return how far every coordinate of a row must move, up or down, so that the row is seen.

    A coordinate is sent as another multiple of the step once it leaves its cell, which takes
    the distance to the farther end of the cell, in whichever direction it moves. The coordinate
    that is closest to the middle of its cell takes least. `error` (rows, h) is the largest
    other error.
    """
    if not step:
        return 2 * error.amin(1)
    shares = decayed / step
    from_middle = (shares - shares.round()).abs() * step
    farther = step / 2 + from_middle + 2 * error
    # In the next cell, the number must differ from the decayed one by more than is allowed.
    farther[step / 2 - from_middle <= error] = math.inf
    return farther.amin(1)


def _off_grid(change: Tensor, step: float) -> Tensor:
    """Return the largest distance of a number from a multiple of the step, in steps."""
    shares = change / step
    return (shares - shares.round()).abs().max()
