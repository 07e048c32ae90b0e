"""What a paper promises of its protocol, as values that a program compares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Adjacency(StrEnum):
    """What two neighbouring data sets differ in."""

    ADD_REMOVE = "one record is added or removed"
    ZERO_OUT = "one record is replaced by an empty one"
    REPLACE = "one record is replaced by any other"
    NODE = "all records of one node are replaced"


@dataclass(frozen=True)
class NormAssumption:
    """The assumption of a theorem that the gradient of every record is short.

    Attributes:
        of: What is assumed, in the paper's words up to the number: "gradients have norm at most".
        limit: Largest Euclidean norm of the gradient of one record.
    """

    of: str
    limit: float

    def __str__(self) -> str:
        """Return the assumption as it stands in `Claim.assumes`."""
        return f"{self.of} {self.limit:g}"


@dataclass(frozen=True)
class Claim:
    """What a paper promises of its protocol at these constants.

    Texts are shown and never read again; what a check needs to know has a field of its own.

    Attributes:
        source: Paper and theorem.
        promise: The promise in one sentence.
        epsilon: Of differential privacy; None if the paper promises none.
        delta: Of differential privacy; None if the paper promises none.
        adjacency: What two neighbouring data sets differ in, in the paper's words.
        std: Standard deviation of the noise that the theorem asks for, per coordinate.
        rounds: Last round for which the promise holds.
        assumes: The theorem's assumptions, in words.
        sensitivity: Euclidean distance between a node's gradients on neighbouring data, as the
            theorem assumes it; None if it does not say.
        sampled: Whether a record takes part only in some gradients, which are drawn in secret.
        met: Whether the noise of these constants is what the theorem asks for.
        pair: (v, u) if the promise covers only what node v sees of node u.
        neighbours: `adjacency` as a value. If it is None, the lint of a trace reads the words.
        gradient_norm: The assumed bound on the gradients of single records, if there is one.
        classic: Whether the noise follows from the classic calibration of the Gaussian mechanism,
            sigma = sqrt(2 log(1.25 / delta)) sensitivity / epsilon, proved for epsilon below 1.
        variant: Names one of several forms of the same theorem.
    """

    source: str
    promise: str
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str = ""
    std: float | None = None
    rounds: int | None = None
    assumes: tuple[str, ...] = ()
    sensitivity: float | None = None
    sampled: bool = False
    met: bool = True
    pair: tuple[int, int] | None = None
    neighbours: Adjacency | None = None
    gradient_norm: NormAssumption | None = None
    classic: bool = False
    variant: str = ""
