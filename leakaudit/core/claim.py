"""The claims of a paper about its protocol, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Adjacency(StrEnum):
    """How two neighbouring data sets differ."""

    ADD_REMOVE = "one record is added or removed"
    ZERO_OUT = "one record is replaced by an empty one"
    REPLACE = "one record is replaced by any other"
    NODE = "all records of one node are replaced"


@dataclass(frozen=True)
class NormAssumption:
    """The assumption of a theorem that the gradient norm of every record is bounded.

    Attributes:
        of: The assumption in words, up to the number: "gradients have norm at most".
        limit: Largest Euclidean norm of the gradient of one record.
    """

    of: str
    limit: float

    def __str__(self) -> str:
        """Return the assumption as `Claim.assumes` lists it."""
        return f"{self.of} {self.limit:g}"


@dataclass(frozen=True)
class Claim:
    """What a paper claims about its protocol with these constants.

    Attributes:
        source: Paper and theorem.
        promise: The claim in one sentence.
        epsilon: Of differential privacy; None if the paper claims none.
        delta: Of differential privacy; None if the paper claims none.
        adjacency: How two neighbouring data sets differ, in the words of the paper.
        std: Standard deviation of the noise that the theorem requires, per coordinate.
        rounds: Last round for which the claim holds.
        assumes: The theorem's assumptions, in words.
        sensitivity: Euclidean distance between a node's gradients on neighbouring data, as the
            theorem assumes it, if it does.
        sampled: Whether a record enters only some gradients, which are drawn in secret.
        met: Whether these constants give the noise that the theorem requires.
        pair: (v, u) if the claim covers only what node v learns about node u.
        neighbours: `adjacency` as a value. If it is None, the lint interprets the words.
        gradient_norm: The assumed bound on the gradients of single records, if there is one.
        classic: Whether the noise is sigma = sqrt(2 log(1.25 / delta)) sensitivity / epsilon, the
            classical calibration of the Gaussian mechanism, proved for epsilon below 1.
        variant: Name of one of several forms of the same theorem.
        calibrated_to: Change of one release by one record for which its noise is calibrated, in the
            norm of the theorem, if `sensitivity` is not that of the release.
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
    calibrated_to: float | None = None
