"""Tokens from the gradient of an embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import step
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack, failed
from leakaudit.inversion.exact import row_moves
from leakaudit.inversion.labels import consistency, label_counts, label_signs

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# A token that does not occur in a batch leaves its row of the embedding's gradient at zero, so the
# other rows are the tokens of the batch (Melis et al. 2019).
#
# If the model adds an embedding of the positions, the order follows as well for a single record:
# both tables receive the gradient of their sum. With T the rows of the tokens (v, h) and P those of
# the positions (n, h), T = A P, and A is 1 where a token stands at a position, and 0 elsewhere. The
# rows of P are independent as long as n is below h, so A is the only solution.
#
# What many local steps changed (`GradientLeak.training`) shows the tokens of all steps in the same
# way, because AdamW moves a row only once its token has occurred; `row_moves` decides which rows
# were moved, from the weight decay and the rounding of the messages that the protocol states.
#
# The change may also be passed as a gradient with `inner` > 1, without the constants. The rows of
# tokens that do not occur remain multiples of the model's, by a common factor. It is estimated by a
# median, and its part is subtracted. Noise, or rounding of the messages to a few bits, changes
# every row by an amount that the leak states.

# Largest distance of an entry of A from 0 or 1. Rounding in float32 gives about 1e-4; a choice.
WHOLE = 0.05
LISTED = 30  # tokens that a note lists
# Largest rounding error of one number in units of its standard deviation: half a step, where errors
# are spread evenly over a step. White noise with this norm in a whole row is far less probable.
EVEN = math.sqrt(3.0)


@attack("tokens")
@dataclass(frozen=True)
class Tokens(Attack):
    """Tokens of a batch from the rows of an embedding, and their order for a single record."""

    quick: ClassVar[bool] = True
    exact: ClassVar[bool] = False  # it proves nothing about tokens that leave no gradient
    rank: ClassVar[int] = 0
    reads: ClassVar[str] = (
        "plain gradients, or what local steps of AdamW changed, with the embedding of the tokens"
    )
    paper: ClassVar[str] = (
        "Melis et al. 2019; order by positions, rows behind AdamW: developed for leakaudit"
    )
    cost: ClassVar[str] = "one pass over the embedding's rows; under a second"
    tokens: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    # A smaller row may be rounding of the messages. The row of a token that does not occur is zero
    # bit for bit in a gradient, but not in a difference of models.
    empty: float = param(1e-6, "relative size of a row below which it counts as zero")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require a plain gradient that contains the embedding of the tokens."""
        if not task.tokens:
            return "it recovers tokens, but the inputs of the model are numbers"
        if leak.gaps and leak.training is None:
            return leak.gaps
        name = task.embeddings[0]
        if name is None:
            return (
                "the tokens are not read by an embedding, or its weights are also used elsewhere, "
                "such as in the output layer (tied), which changes the rows of all tokens"
            )
        if not label_signs.plain_rows(leak):
            return "it reads a single gradient that is not zero"
        if _block(leak, task, name) is None:
            return f"the leak does not contain the rows of {name}"
        if leak.training is not None:
            return _unreadable(leak, task)
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Read the tokens; the certificate is APPROXIMATE, because no condition proves them."""
        step("tokens", 0, 1)
        table = _block(leak, task, task.embeddings[0])
        assert table is not None
        if leak.training is not None:
            return _changed(leak, task, table)
        moved = _undecayed(table, leak, task)
        sizes = moved.norm(dim=1)
        noise = EVEN * _std(leak) * math.sqrt(table.shape[1])
        limit = max(self.empty * float(sizes.max()), noise)
        found = (sizes > limit).nonzero().flatten()
        order = None
        length = task.spec.shape[-1]
        places = _block(leak, task, task.embeddings[1])
        if leak.batch == 1 and len(task.spec.shape) == 1 and places is not None:
            order = _order(moved[found], places, length)
        step("tokens", 1, 1)
        note = f"{_listed(found)}{_when(leak)}"
        if order is None:
            note += "; their order does not follow from this gradient"
            return _unordered(leak, task, found, note)
        x = found[order[0]][None].to(task.dtype)
        note += "; in the order of their positions"
        y = consistency.label(leak, task, x)
        return Reconstruction(
            leak.node, "tokens", x, y, Certificate.APPROXIMATE, order[1], note=note
        )


def _unordered(leak: GradientLeak, task: Task, tokens: Tensor, note: str) -> Reconstruction:
    """Return a set of tokens without their order."""
    none = torch.empty(0, *task.spec.shape, dtype=task.dtype)
    approximate = Certificate.APPROXIMATE
    return Reconstruction(
        leak.node, "tokens", none, None, approximate, 0.0, note=note, tokens=tokens
    )


def _listed(found: Tensor) -> str:
    """Return the number of different tokens, and the first of them."""
    listed = ", ".join(map(str, found[:LISTED].tolist()))
    more = ", ..." if len(found) > LISTED else ""
    return f"{len(found)} different tokens: {listed}{more}"


def _when(leak: GradientLeak) -> str:
    """Return of which round the tokens are, if the leak has gradients of several."""
    rows = label_signs.plain_rows(leak)
    if len(rows) == 1 or (leak.steady and leak.records is not None):
        return ""
    place = int(leak.combination[rows[0]].nonzero()[0])
    return f", in round {int(leak.rounds[place])}"


def _unreadable(leak: GradientLeak, task: Task) -> str | None:
    training = leak.training
    assert training is not None
    if training.optimiser != "adamw":
        return f"it knows how AdamW moves rows, not {training.optimiser}"
    if task.l2:
        return "the penalty l2 moves the rows of all tokens"
    if leak.theta is None:
        return (
            "it requires the models before the local steps, but this adversary does not know them"
        )
    return None


def _changed(leak: GradientLeak, task: Task, table: Tensor) -> Reconstruction:
    """Read the tokens of the first round of what local steps changed."""
    at = label_signs.plain_rows(leak)[0]
    name = task.embeddings[0]
    assert leak.training is not None
    assert leak.theta is not None
    assert name is not None
    first = int(leak.combination[at].nonzero()[0])
    weights = leak.theta[first, task.layout.slices[name]].double().reshape(table.shape)
    before = int(leak.rounds[first]) - 1
    decided = row_moves.decide(
        table,
        weights,
        leak.training,
        wire=leak.wire,
        noise=float(leak.std[at]),
        before=before * leak.training.steps,
    )
    step("tokens", 1, 1)
    if isinstance(decided, str):
        return failed("tokens", leak, task, f"not known: {decided}")
    moved, rest = decided
    when = f"round {int(leak.rounds[first])}"
    if before:
        when = f"{when} or shortly before it"
    note = f"{_listed(moved)}, which occurred in {when}; {rest}"
    return _unordered(leak, task, moved, note)


def _block(leak: GradientLeak, task: Task, name: str | None) -> Tensor | None:
    """Return the gradient of a parameter (rows, h), None if the leak does not contain it."""
    row = leak.value[label_signs.plain_rows(leak)[0]].double()
    return label_counts.part(leak, task, row, name)


def _std(leak: GradientLeak) -> float:
    return float(leak.std[label_signs.plain_rows(leak)[0]])


def _undecayed(table: Tensor, leak: GradientLeak, task: Task) -> Tensor:
    """Subtract the common weight decay of several local steps from the rows of an embedding.

    Most tokens do not occur, so the median over all rows of their multiple of the model's rows
    is that of such a token.
    """
    name = task.embeddings[0]
    if leak.theta is None or leak.inner == 1 or name is None:
        return table
    at = int(leak.combination[label_signs.plain_rows(leak)[0]].nonzero()[0])
    columns = task.layout.slices[name]
    weights = leak.theta[at, columns].double().reshape(table.shape)
    shares = (table * weights).sum(1) / weights.square().sum(1)
    return table - shares.median() * weights


def _order(tokens: Tensor, places: Tensor, length: int) -> tuple[Tensor, float] | None:
    """Return the index of the token at each position, and the relative misfit.

    None if the positions (n, h) do not determine the tokens (v, h).
    """
    used = places[places.norm(dim=1) > 0]
    if len(used) != length or int(torch.linalg.matrix_rank(used)) < length:
        return None
    shares = torch.linalg.lstsq(used.T, tokens.T).solution
    whole = shares.round()
    binary = bool(((whole == 0) | (whole == 1)).all()) and bool((whole.sum(1) == 1).all())
    if not binary or float((shares - whole).abs().max()) > WHOLE:
        return None
    misfit = float((whole.T @ used - tokens).norm() / tokens.norm())
    return whole.argmax(1), misfit
