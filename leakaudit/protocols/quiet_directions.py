"""Directions of the model in which every gradient is zero, whatever the records are.

What messages show in them depends on the constants of a protocol only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.dual_messages import Around
from leakaudit.tasks.task import Task

if TYPE_CHECKING:
    from leakaudit.core.adversary import View

# Two kinds of such directions are used.
#
# Classes. Under cross-entropy the slopes of the loss in the outputs, softmax - one-hot, sum to
# zero. So do the gradients of the last layer's weights and biases over the classes, for every
# model that ends in a linear layer, every batch, and every mean over steps.
#
# Rows. The gradients of the first fully connected layer, weights beside bias, are sums of products
# delta [x 1]. Whatever the round, their rows lie in the span of the inputs, which leaves directions
# if the node has fewer records than there are inputs. The span is not known: the constants are
# those with which what the messages leave has a low rank (compare `capture.fitting.min_rank`, where
# the ranks of single rounds are low). Near them, with U' and V' beyond the rank n,
#
#     U'^T ( R(c) - sum_k dc_k F_k ) V' = 0      to the first order,
#
# whose least squares are steps of Newton's method. It starts from the generalised eigenvalues of
# the pencil, of which those beyond the rank all equal the constant.

RECORDS = (
    "the protocol's equations leave one number free, and the gradients of the first layer have no "
    "low rank that would tell it: a node has too many records for its inputs and rounds"
)
INEXACT = "the messages do not satisfy the equations of the protocol up to rounding"

Array = NDArray[np.float64]

FEATURES = 64  # columns of the last layer, rows of the first, and inputs that are read: choices
ROWS = 16
INPUTS = 4096
SIDE = 28  # rows and columns of the sketch on which a rank is searched: a choice
BEYOND = 2  # rows and columns beyond the rank that are evidence
TURNS = 12  # of Newton's method
STARTS = 4  # of it, for each rank
AGREE = 30.0  # errors by which two determinations of one constant may differ: a choice
# Largest residual in units of rounding. Measured: .01 to 1.4; for gradients that are merely close
# to a low rank, 1e9 and more in float64, 2.7 and more in float32.
ROUNDINGS = 2.0
RANK = 1e-9  # singular values below which, relative to the largest, a pencil has no direction
CLOSE = 1e-4  # error of a constant up to which a rank is accepted: a choice


@dataclass(frozen=True)
class Measured:
    """A constant as the messages determine it."""

    value: float
    error: float = (
        0.0  # absolute; what equations that were not used for the value leave is included
    )

    @property
    def rounded(self) -> float:
        """The value to about the digits that its error leaves."""
        if not 0 < self.error < 0.01:
            return self.value
        return round(self.value, math.floor(-math.log10(self.error)) - 1)

    def agrees(self, value: float, error: float = 0.0) -> bool:
        """Return whether another determination gives the same value."""
        floor = 8 * np.finfo(np.float64).eps * max(abs(value), abs(self.value))
        return bool(abs(self.value - value) <= AGREE * (self.error + error) + floor)

    def __mul__(self, other: Measured) -> Measured:
        value = self.value * other.value
        return Measured(value, abs(value) * (self.relative + other.relative))

    def __truediv__(self, other: Measured) -> Measured:
        value = self.value / other.value
        return Measured(value, abs(value) * (self.relative + other.relative))

    @property
    def relative(self) -> float:
        """The error relative to the value."""
        return self.error / abs(self.value) if self.value else math.inf


@dataclass(frozen=True)
class NodeFit:
    """The coefficients of the local update of one node."""

    around: Around
    a: Measured
    b: float
    q: Measured
    left: Callable[[Array], Array]  # what a vector (c,) has in the quiet directions


@dataclass(frozen=True)
class Quiet:
    """The quiet directions of a model, and how coefficients follow from them.

    Attributes:
        columns: (k,) of the recorded columns, ascending, that are read.
        name: What shows no gradient, in words.
    """

    columns: Tensor
    name: str
    l2: float
    offset: int  # first recorded column of the model
    # shape of the columns after `order`; classes sum over the first axis, rows are along the first
    shape: tuple[int, int] | None
    order: NDArray[np.intp]
    classes: bool
    missing: str = ""

    def start(self, view: View) -> Array:
        """Return the columns of the common initial model."""
        w0 = view.public("w0").double()[self.offset :]
        values: Array = w0[self.columns].numpy()
        return values

    def block(self, values: Array) -> Array:
        """Arrange columns (..., k) as (..., *shape)."""
        assert self.shape is not None
        return values[..., self.order].reshape(*values.shape[:-1], *self.shape)

    def _blocks(self, target: Array, terms: Sequence[Array]) -> _Blocks:
        return self.block(target), [self.block(term) for term in terms]

    def fit(self, around: Around, theta: float, q: float | None, eps: float) -> NodeFit | str:
        """Return the coefficients of a node, or why they are not determined.

        Args:
            eps: Distance from 1 to the next number in the format of the messages.
        """
        if self.shape is None:
            return self.missing
        target, terms = around.update(theta, q)
        if len(target) < 2:
            return "fewer than 5 rounds are observed"
        exact = self._blocks(target, terms)
        if self.classes:
            found = _summed(*exact)
        elif self.shape[1] <= BEYOND:
            return RECORDS
        else:
            near = None if q is not None else self._blocks(*around.update(theta, 0.0))
            found = _low_rank(exact, near, around.degree)
        if isinstance(found, str):
            return found
        if found.left > ROUNDINGS * around.rounding(theta, eps):
            return INEXACT if self.classes else RECORDS
        return self._fitted(around, found, q)

    def _fitted(self, around: Around, found: _Coefficients, q: float | None) -> NodeFit:
        a = Measured(float(found.values[0]), float(found.errors[0]))
        if q is None:
            b = float(found.values[1])
            rest = 1 - a.value
            error = abs(a.error / b) + abs(rest * found.errors[1] / b**2)
            of_q = Measured(rest / b - around.degree, float(error))
        else:
            b = (1 - a.value) / (around.degree + q)
            of_q = Measured(q)

        def left(values: Array) -> Array:
            if found.null is None:
                return np.asarray(self.block(values).sum(0))
            return (self.block(values) @ found.null).ravel()

        return NodeFit(around, a, b, of_q, left)


def of(view: View) -> Quiet:
    """Return the quiet directions of the model of a view, on the recorded columns."""
    try:
        task = Task.build(view.task)
    except LeakauditError as error:
        return _none(view, f"the model is not known ({error})", 0.0)
    start, stop = view.columns
    classes = task.spec.loss == "cross_entropy" and not task.tokens
    for names, summed in ((task.last_linear, classes), (task.first_linear, not classes)):
        if names is None or not summed:
            continue
        pieces = [task.layout.slices[name] for name in names if name]
        if any(piece.start < start or piece.stop > stop for piece in pieces):
            continue
        shape = task.layout.shapes[task.layout.names.index(names[0])]
        return _of_layer(task, pieces, (shape[0], shape[1]), start, classes)
    why = (
        "the protocol's equations leave one number free, which only the structure of gradients "
        "tells: they would need the last layer of a model with cross-entropy, or a first layer "
        "that is fully connected"
    )
    return _none(view, why, task.l2)


def _none(view: View, why: str, l2: float) -> Quiet:
    columns = torch.arange(min(ROWS * FEATURES, view.columns[1] - view.columns[0]))
    return Quiet(columns, "", l2, view.columns[0], None, np.arange(0), False, why)


def _of_layer(
    task: Task, pieces: Sequence[slice], shape: tuple[int, int], start: int, classes: bool
) -> Quiet:
    rows, inputs = shape
    of_rows = np.arange(rows)
    of_inputs = np.arange(inputs)
    if classes:
        of_inputs = _some(inputs, FEATURES)
    else:
        of_rows = _some(rows, ROWS)
        of_inputs = of_inputs[:INPUTS]
    places = pieces[0].start + of_rows[:, None] * inputs + of_inputs
    if len(pieces) > 1:
        places = np.hstack([places, pieces[1].start + of_rows[:, None]])
    flat = places.ravel() - start
    order = np.argsort(np.argsort(flat))
    name = "sums over the classes of the last layer" if classes else "rows of the first layer"
    return Quiet(
        torch.from_numpy(np.sort(flat)), name, task.l2, start, places.shape, order, classes
    )


def _some(count: int, most: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


@dataclass(frozen=True)
class _Coefficients:
    values: Array  # (K,)
    errors: Array  # (K,) with what the rounds leave that were not fitted
    left: float  # root mean square of what is left in the quiet directions
    null: Array | None = None  # (p, p - n) directions of the rows, if they are low-rank


def _summed(target: Array, terms: Sequence[Array]) -> _Coefficients | str:
    """Fit the sums over classes of every other round, and compare them with the others.

    Target and terms are (T, C, H) each.
    """
    y = target.sum(1)
    x = np.stack([term.sum(1) for term in terms], -1)  # (T, H, K)
    fitted, held = slice(0, None, 2), slice(1, None, 2)
    matrix = x[fitted].reshape(-1, x.shape[-1])
    scale = np.linalg.norm(target) + sum(np.linalg.norm(term) for term in terms)
    if np.linalg.norm(matrix) <= RANK * scale:
        return "the sums over the classes of the last layer do not change"
    values, _, rank, _ = np.linalg.lstsq(matrix, y[fitted].ravel(), rcond=RANK)
    if rank < x.shape[-1]:
        return "the sums over the classes of the last layer change along one direction only"
    left = np.linalg.norm(y[fitted].ravel() - matrix @ values)
    others = x[held].reshape(-1, x.shape[-1])
    left_of_others = np.linalg.norm(y[held].ravel() - others @ values)
    smallest = np.linalg.svd(others, compute_uv=False)[-1]
    if smallest <= RANK * np.linalg.norm(others):
        return "the sums over the classes of the last layer change in too few rounds"
    covariance = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)))
    held_out = np.sqrt(np.diag(np.linalg.inv(others.T @ others)))
    errors = np.maximum(left * covariance, left_of_others * held_out)
    rest = math.hypot(left, left_of_others) / math.sqrt(y.size * target.shape[1])
    return _Coefficients(values, errors, rest)


_Blocks: TypeAlias = tuple[Array, Sequence[Array]]


@dataclass
class _Pencil:
    """target - sum_k c_k terms_k, matrices (m, p) whose rows are those of all rounds."""

    target: Array
    terms: Array  # (K, m, p)

    @classmethod
    def of(cls, blocks: _Blocks, some: slice) -> _Pencil:
        """Return the pencil of some rounds."""
        target, terms = blocks
        columns = target.shape[-1]
        flat = [term[some].reshape(-1, columns) for term in terms]
        return cls(target[some].reshape(-1, columns), np.stack(flat))

    def at(self, c: Array) -> Array:
        rest: Array = self.target - np.einsum("k,kmp->mp", c, self.terms)
        return rest

    @cached_property
    def sketched(self) -> _Pencil:
        """The same, after random combinations of rows and columns, which have the same rank."""
        rng = np.random.default_rng(0)
        generic = np.linalg.svd(self.at(rng.uniform(0.2, 0.8, len(self.terms))), compute_uv=False)
        side = min(SIDE, int((generic > RANK * generic[0]).sum())) if generic[0] else 0
        rows, columns = self.target.shape
        left = np.linalg.qr(rng.standard_normal((rows, side)))[0]
        right = np.linalg.qr(rng.standard_normal((columns, side)))[0]
        return _Pencil(left.T @ self.target @ right, left.T @ self.terms @ right)

    def newton(self, rank: int, c: Array) -> tuple[Array, Array]:
        """Return coefficients after steps that reduce what is beyond a rank, and their errors."""
        errors = np.full(len(c), np.inf)
        for _ in range(TURNS):
            rest = self.at(c)
            if not np.isfinite(rest).all():
                return c, np.full(len(c), np.inf)
            u, _, vh = np.linalg.svd(rest)
            left, right = u[:, rank:], vh[rank:]
            now = (left.T @ rest @ right.T).ravel()
            matrix = np.stack([(left.T @ term @ right.T).ravel() for term in self.terms], -1)
            change, _, found, _ = np.linalg.lstsq(matrix, now, rcond=RANK)
            if found < len(c):
                return c, np.full(len(c), np.inf)
            c = c + change
            errors = np.linalg.norm(now - matrix @ change) * np.sqrt(
                np.diag(np.linalg.inv(matrix.T @ matrix))
            )
            if np.abs(change).max() < 1e-15:
                break
        return c, errors


def _low_rank(exact: _Blocks, near: _Blocks | None, degree: int) -> _Coefficients | str:
    """Find the coefficients with which the rows of every other round have a low rank.

    Args:
        exact: The target (T, H, p) and K terms of the same shape.
        near: The same with one term, for l2 = 0, from which two coefficients are searched.
    """
    fitted, held = slice(0, None, 2), slice(1, None, 2)
    whole = _Pencil.of(exact, fitted)
    small = whole.sketched
    side = len(small.target)
    starts = [np.array([value]) for value in _starts(_Pencil.of(near or exact, fitted).sketched)]
    if near is not None:
        starts = [np.array([a, (1 - a) / degree]) for (a,) in starts]
    for rank in range(1, side - BEYOND + 1):
        for start in starts:
            c, errors = small.newton(rank, start)
            if not (errors < CLOSE).all():
                continue
            c, errors = whole.newton(rank, c) if max(whole.target.shape) <= 512 else (c, errors)
            null = np.linalg.svd(whole.at(c))[2][rank:].T
            others = _Pencil.of(exact, held)
            fitted_rest = (whole.at(c) @ null).ravel()
            rest = (others.at(c) @ null).ravel()
            matrix = np.stack([(term @ null).ravel() for term in others.terms], -1)
            size = np.linalg.svd(matrix, compute_uv=False)[-1]
            if size <= RANK * np.linalg.norm(others.terms):
                return "the rows of the first layer change in too few rounds"
            errors = np.maximum(errors, np.linalg.norm(rest) / size)
            if (errors < CLOSE).all():
                both = np.concatenate([fitted_rest, rest])
                return _Coefficients(c, errors, float(np.sqrt(np.square(both).mean())), null)
    return RECORDS


def _starts(pencil: _Pencil) -> list[float]:
    """Return coefficients from which to search: the eigenvalues of the pencil, the median first."""
    if not len(pencil.target):
        return []
    values = scipy.linalg.eigvals(pencil.target, pencil.terms[0])
    values = values[np.isfinite(values)]
    real = values[(np.abs(values.imag) < 0.1) & (np.abs(values.real) < 2)].real
    if not len(real):
        return []
    real = real[np.argsort(np.abs(real - np.median(real)))]
    chosen: list[float] = [float(np.median(real))]
    for value in real:
        if all(abs(value - one) > 1e-2 for one in chosen):
            chosen.append(float(value))
    return chosen[:STARTS]
