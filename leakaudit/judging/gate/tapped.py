"""The program under test as a command that runs under the tap, once for every seed."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from leakaudit.capture.tap import launch, merge
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.capture.tap.messages import description
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.core.errors import PROGRAM_FAILED, LeakauditError
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.program import NOTHING, rehearse

SEED = "{seed}"  # in a command, or in the name of a file
VARIABLE = "LEAKAUDIT_SEED"
MOST = 4_000_000_000  # bytes of a recording, as for `leakaudit tap`


@dataclass(frozen=True)
class FirstRun:
    """What one run of a command shows."""

    toml: str  # a description of its messages; empty if there is one
    said: str  # the same in one line
    rounds: int | None  # number of rounds; None if the description has to be completed


def first(check: Check, folder: Path, seed: int) -> FirstRun:
    """Run the command of a check once, before it is configured."""
    program = TappedProgram(check, folder)
    with tempfile.TemporaryDirectory(prefix="leakaudit-") as place:
        log = Path(place) / "trace.tap"
        launch.prepare(log)
        program.run(seed, log)
        described = program.described
        declared = described is not None
        toml = said = ""
        if described is None:
            found = guess(read_logs(log))
            toml, said, described = found.toml, found.said, found.description
        if described is None:
            return FirstRun(toml, said, None)
        plan, _ = merge.planned(log, described, declared=declared)
        return FirstRun(toml, said, plan.rounds)


class TappedProgram:
    """The command of a check, called with one seed after another; each call runs it anew."""

    def __init__(self, check: Check, folder: Path) -> None:
        self._check = check
        self._folder = folder.resolve()
        self.described: MessageDescription | None = None
        if check.describe:
            self.described = self._read(self._folder / check.describe)

    def __call__(self, seed: int, path: Path) -> None:
        """Run the command, and write its trace and its truth."""
        log = path.with_suffix(".tap")
        launch.prepare(log)
        self.run(seed, log)
        declared = self.described is not None
        described = self.described or self._inferred(log)
        self.described = described
        plan, logs = merge.planned(log, described, declared=declared)
        check = self._check
        if check.rounds is None:
            raise LeakauditError(
                f"check {check.name}: rounds is missing, without which missing rounds would not "
                f"be noticed; the program trained {plan.rounds} with seed {seed}: if these are "
                f"all, set rounds = {plan.rounds} in [check.{check.name}]"
            )
        truth = merge.read_truth(
            self._folder / check.truth.replace(SEED, str(seed)),
            described.task.spec.shape,
            plan.graph.nodes,
        )
        trace = merge.write(plan, logs, path, truth=truth, max_bytes=MOST, rounds=check.rounds)
        launch.clear(log)
        if not trace.complete:
            missing = "; ".join(merge.warnings(trace)[:1])
            raise self._failed(f"messages are missing with seed {seed}: {missing}")

    def close(self) -> None:
        """Do nothing: no process is left."""

    def run(self, seed: int, log: Path) -> None:
        """Run the command under the tap; its log has messages."""
        command = [word.replace(SEED, str(seed)) for word in shlex.split(self._check.tap)]
        listening = {} if self.described is None else self.described.listening
        surroundings = launch.Unattended(self._folder, {VARIABLE: str(seed)}, self._check.timeout)
        try:
            code = launch.run(
                command, log, surroundings, quiet=True, seed=seed, max_bytes=MOST, **listening
            )
        except TimeoutError:
            raise self._failed(
                f"the program did not end with seed {seed} within {self._check.timeout:g} s, the "
                f"check's timeout; set timeout = SECONDS in [check.{self._check.name}]"
            ) from None
        if code:
            raise self._failed(f"the program ended with code {code} with seed {seed}")
        if not any(log.iterdir()):
            raise self._failed(f"no messages of the program were recorded: {launch.SILENT}")

    def _read(self, path: Path) -> MessageDescription:
        """Read a description; its model, which may be the user's code, first in another process."""
        read = partial(description.read, path, True)
        rehearse(read, f"building the model of {path.name}", self._check, self._folder)
        return read()

    def _inferred(self, log: Path) -> MessageDescription:
        found = guess(read_logs(log))
        if found.description is None:
            raise LeakauditError(
                f"check {self._check.name}: the messages are not understood: {found.said}; "
                "'leakaudit init --tap' writes a description to complete; set describe = FILE"
            )
        return found.description

    def _failed(self, says: str) -> LeakauditError:
        return LeakauditError(
            f"check {self._check.name}: tap: {says}; {NOTHING}", code=PROGRAM_FAILED
        )
