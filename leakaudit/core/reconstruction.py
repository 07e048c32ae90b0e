"""Reconstructions, and how certain they are without the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from leakaudit.core.display import CardDisplay
from leakaudit.core.evidence import Evidence

if TYPE_CHECKING:
    from torch import Tensor


SHOWN = 256  # largest number of candidates that are kept for one input: all on one line


EQUATIONS = "every leaked equation of its rounds"  # what an exact input reproduces, in general


class Certificate(Enum):
    """How certain a reconstruction is, without access to the truth.

    The object of a certificate is what the network received. If a program changes its records
    before it uses them, by augmentation for example, this is no record of the node.
    """

    EXACT = (
        "if the messages are as declared, the network received exactly this input: it reproduces "
        f"{EQUATIONS} to rounding, for some derivatives of the loss by the outputs, and no other "
        "input on the data's grid does"
    )
    INTERVAL = (
        "if the messages are as declared, every value lies within its interval at 99 % "
        "confidence; the data have no grid that would make it exact"
    )
    APPROXIMATE = "an estimate that is not proven: others may fit the leak as well or better"
    FAILED = "did not fit the leak; try more restarts or another attack"


@dataclass(frozen=True)
class Reconstruction(CardDisplay):
    """The inputs of one node, as an attack reconstructs them.

    Attributes:
        node: The node that the inputs belong to.
        attack: Registered name of the attack.
        x: (b, *shape) in the data's units, clamped to [0, 1] for images; b = 0 if nothing was
            found.
        y: (b,) labels; None if they were not found.
        certificate: Certificate of all inputs together.
        residual: Relative misfit of the leak.
        seconds: Wall time.
        note: A remark for the reader.
        certified: Number of leading inputs that are individually exact.
        interval: (b, *shape) half-widths of simultaneous intervals of all values; with INTERVAL.
        choices: For an input that is one of several candidates, by its position: up to `SHOWN`
            others (k, *shape) that explain the leak equally well.
        tokens: (v,) Sorted numbers of the different tokens, if their order is not known.
        others: Nodes that the inputs may belong to as well (`GradientLeak.others`).
        rounds: For each input (b), the rounds whose gradients it was shown to explain; empty for
            all rounds of the leak.
        evidence: What supports the inputs of the statement, such as the number of records behind
            each gradient, if this was examined.
        tried: Attacks that `auto` ran on the leak.
    """

    node: int
    attack: str
    x: Tensor
    y: Tensor | None
    certificate: Certificate
    residual: float
    seconds: float = 0.0
    note: str = ""
    certified: int = 0
    interval: Tensor | None = None
    choices: Mapping[int, Tensor] = field(default_factory=dict)
    tokens: Tensor | None = None
    others: tuple[int, ...] = ()
    rounds: tuple[tuple[int, ...], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    tried: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line, without pixels and labels."""
        who = f"node {self.node}"
        if self.others:
            who = f"nodes {', '.join(map(str, self.nodes)):.60}"
        return (
            f"Reconstruction({who}, {self.attack!r:.60}, {len(self.x)} x"
            f" {tuple(self.x.shape[1:])}, {self.certificate.name}, residual {self.residual:.2g})"
        )

    @property
    def nodes(self) -> tuple[int, ...]:
        """All nodes that the inputs may belong to, sorted."""
        return tuple(sorted((self.node, *self.others)))

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificate of each input (b)."""
        certified = [Certificate.EXACT] * min(self.certified, len(self.x))
        rest = [self.certificate] * (len(self.x) - len(certified))
        return (*certified, *rest)


def check_stored(
    x: Tensor,
    y: Tensor | None,
    interval: Tensor | None = None,
    choices: Mapping[int, Tensor] = MappingProxyType({}),
    tokens: Tensor | None = None,
) -> None:
    """Check the tensors of a reconstruction that were read from a file."""
    if not x.is_floating_point() or not x.dim():
        raise ValueError("inputs are a batch of floating-point numbers")
    if interval is not None and not interval.is_floating_point():
        raise ValueError("half-widths of intervals are floating-point numbers")
    if not all(candidates.is_floating_point() for candidates in choices.values()):
        raise ValueError("candidates are floating-point numbers")
    if tokens is not None and not _is_whole(tokens):
        raise ValueError("tokens are whole numbers")
    if y is None:
        return
    if y.shape != x.shape[:1]:
        raise ValueError("there is one label per input")
    if y.is_complex() or str(y.dtype) == "torch.bool":
        raise ValueError("labels are numbers")


def _is_whole(numbers: Tensor) -> bool:
    dtype = str(numbers.dtype)
    return "int" in dtype and numbers.dim() == 1


class Reconstructions(list[Reconstruction], CardDisplay):
    """A list of reconstructions, which a notebook displays as pictures with their certificates."""
