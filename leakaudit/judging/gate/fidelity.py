"""The control of a gate's input: whether the recordings of a check are what they declare."""

from __future__ import annotations

from collections.abc import Collection

from leakaudit._util.plural import counted
from leakaudit.capture.tap.merge import PROVENANCE
from leakaudit.core.adversary import Adversary
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.rule import Rule
from leakaudit.protocols import premises
from leakaudit.reporting.results.model import RuleKind, RuleStatus
from leakaudit.views.conformance.recordings import MOST as MOST
from leakaudit.views.conformance.recordings import Recordings
from leakaudit.views.conformance.rest import unexplained

# As `recordings.DOUBT`, if more recordings were to be made and were not, for lack of time or
# because the program failed. A choice: one such run in a thousand; fewer recordings tell less.
UNSETTLED = 1e-3


class Fidelity(Recordings):
    """Examines the recordings of a check: call `look` for every recording, then `rules`."""

    def __init__(self, check: Check) -> None:
        super().__init__(
            adversaries=[Adversary.parse(name) for name in check.adversaries],
            secure=check.secure,
            nodes=check.nodes,
            written=_written(check),
            announced=not check.scenario,
        )
        self.check = check
        self.settles = False  # whether more recordings are made while these are `undecided`

    def rules(self, linted: Collection[str] = ()) -> list[Rule]:
        """Return one rule for each deviation, or a single one that states what was compared.

        Args:
            linted: pitfalls that the lint of the first recording found; they are not reported
                again.
        """
        if not self.seeds:
            return []
        self.sum_up()
        cell = f"{self.check.name}/recording"
        strict = self.check.lint in ("error", "strict")
        doubtful = RuleStatus.CONTRADICTED if strict else RuleStatus.WARNING
        rules = []
        for about, one in self.wrong.items():
            status = RuleStatus.VOID if one.void else doubtful
            if about not in linted:
                rules.append(
                    Rule(RuleKind.RECORDING, cell, about, status, one.says, nodes=one.nodes)
                )
        if self.wrong:
            return rules
        if self.settles and self.undecided(UNSETTLED):
            return [Rule(RuleKind.RECORDING, cell, "", RuleStatus.TOO_FEW_SEEDS, self._unsettled())]
        return [Rule(RuleKind.RECORDING, cell, "", RuleStatus.OK, self._summary())]

    def _summary(self) -> str:
        """Return what was compared, and agrees."""
        says = "the messages are those that the protocol declares"
        if self.compared:
            values = "contain the gradients of the truth up to the declared noise"
            says += f", and {values}{self._sharpness()}"
            if self.last is not None:
                says += f"; {unexplained(self.last)}"
        elif self.skipped:
            says += f"; values were not compared: {self.skipped}"
        if str(self.described):
            says += f"; {self.described}"
        return says

    def _unsettled(self) -> str:
        """Say that more recordings were to decide and were not made."""
        return (
            f"{counted(len(self.seeds), 'recording')} cannot tell whether the messages contain the "
            f"gradients of the truth{self._sharpness()}, and more could not be made within the "
            f"time, or because the program failed; set seeds = {MOST}"
        )

    def _sharpness(self) -> str:
        """Return the precision with which the gradients can be distinguished from the noise."""
        fit = self.fit
        if not fit.power:
            return ""
        recordings = ""
        if len(self.seeds) > 1:
            recordings = f" in {len(self.seeds)} recordings"
        return f" (coefficient {1 + fit.shift:.2f} +- {fit.error:.2g}{recordings})"


def _written(check: Check) -> Collection[str]:
    """Return the names in the provenance of a check's recordings that leakaudit itself writes."""
    if check.tap:
        return PROVENANCE
    return () if check.run else (premises.KEY,)
