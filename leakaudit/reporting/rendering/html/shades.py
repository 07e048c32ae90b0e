"""How much was recovered, in six steps that drawings show as shades."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from leakaudit.reporting.findings.measured import best, is_identical
from leakaudit.reporting.results.model import Extended, Finding, NodeBest, TraceSummary, given

STEPS = (
    "nothing recovered",
    "under 10 dB",
    "10 to 20 dB",
    "20 to 30 dB",
    "30 dB or more",
    "identical, or certified exact",
)
MOST = len(STEPS) - 1
UNSCORED = {"EXACT": MOST, "INTERVAL": MOST, "APPROXIMATE": 3, "FAILED": 0}
_PSNR = (10.0, 20.0, 30.0)  # dB
# The same steps without a PSNR: a relative error of e is -20 lg e dB below the signal.
_ERRORS = (0.316, 0.1, 0.0316)


@dataclass(frozen=True)
class Shade:
    """What one adversary recovered from one node, as drawings show it."""

    node: int
    adversary: str
    first: int  # first round of the leak
    last: int  # last round of the leak
    step: int
    point: tuple[Extended, ...] = ()  # point of an audit's grid; empty for other records


@dataclass(frozen=True)
class NetworkScene:
    """A network, and what was recovered from its nodes."""

    trace: TraceSummary
    shades: tuple[Shade, ...]  # what was recovered
    others: tuple[str, ...]  # adversaries for whom no leak of some node is determined


def shaded(finding: Finding) -> Iterator[Shade]:
    """Yield a finding as drawings show it."""
    cell = given(finding.cell, None)
    for node in finding.nodes:
        yield Shade(
            node=node,
            adversary=finding.adversary,
            first=finding.leak.rounds.first,
            last=finding.leak.rounds.last,
            step=step(finding),
            point=() if cell is None else (cell.epsilon,),
        )


def shaded_best(one: NodeBest, adversary: str) -> Shade:
    """Return the best record of a node in a gate as drawings show it."""
    reached = MOST if one.exact else _step(one.psnr, one.relative_error)
    return Shade(one.node, adversary, one.first, one.last, reached)


def step(finding: Finding) -> int:
    """Return how much was recovered according to a finding."""
    scores = finding.scores
    if scores is None:
        return UNSCORED[finding.certificate.name]
    if is_identical(scores):
        return MOST
    psnr = best(scores.psnr, max)
    error = best(scores.relative_error, min)
    recovered = psnr is not None or error is not None
    if recovered and finding.certificate.name in ("EXACT", "INTERVAL"):
        return MOST
    return _step(psnr, error)


def _step(psnr: float | None, error: float | None) -> int:
    if psnr is not None:
        return 1 + sum(psnr >= edge for edge in _PSNR)
    if error is not None:
        return 1 + sum(error <= limit for limit in _ERRORS)
    return 0


def worst_steps(shades: Iterable[Shade]) -> dict[int, int]:
    """Return the worst case of each node."""
    steps: dict[int, int] = {}
    for one in shades:
        steps[one.node] = max(steps.get(one.node, 0), one.step)
    return steps
