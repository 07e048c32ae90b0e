"""Follow the calls of one task through the rooms of the package, with a profiler.

    python tests/walk.py                 plan a run, attack a trace, write a report

A room is entered when one of its functions is called; `attacks`, `victims` and `reports`, of which
a name chooses a file, are listed apart. A function climbs if it calls one of a room above its own:
it calls back what it was given, or makes a value whose class a name chose. A first run imports what
is needed, and the second one is followed.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import leakaudit as la
from leakaudit.cli import main
from leakaudit.protocols import recording
from leakaudit.runs.pipeline import attack_run
from leakaudit.runs.pipeline.attack_options import AttackOptions

PROJECT = Path(__file__).resolve().parent.parent
LEAVES = {"attacks": "inversion", "victims": "protocols", "reports": "reporting"}


def floors() -> dict[str, int]:
    """Return the floor of every room, as the import contracts have it; a leaf is on its room's."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    floor: dict[str, int] = {}
    for height, row in enumerate(reversed(rows)):
        floor |= dict.fromkeys(row.split(" | "), height)
    return floor | {leaf: floor[room] for leaf, room in LEAVES.items()}


@dataclass(frozen=True)
class Place:
    """A function of the product."""

    room: str
    function: str


@dataclass
class Walk:
    """The functions called while `follow` is active, and those of them that call upwards."""

    functions: set[Place] = field(default_factory=set)
    climbing: set[Place] = field(default_factory=set)
    floors: dict[str, int] = field(default_factory=floors)
    places: dict[CodeType, Place | None] = field(default_factory=dict)

    @property
    def rooms(self) -> set[str]:
        """The rooms entered, without the leaves."""
        return {place.room for place in self.functions} - set(LEAVES)

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Follow what this thread calls in the block."""
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        callee = self._place(frame.f_code)
        if event != "call" or callee is None:
            return
        self.functions.add(callee)
        above = frame.f_back
        while above is not None and self._place(above.f_code) is None:
            above = above.f_back  # the standard library, torch, a generated __init__
        caller = above and self._place(above.f_code)
        if caller and self.floors[caller.room] < self.floors[callee.room]:
            self.climbing.add(caller)

    def _place(self, code: CodeType) -> Place | None:
        if code not in self.places:
            self.places[code] = self._found(code)
        return self.places[code]

    def _found(self, code: CodeType) -> Place | None:
        file = Path(code.co_filename)
        if not file.is_relative_to(PROJECT):
            return None
        *folders, name = file.relative_to(PROJECT).with_suffix("").parts
        room = [*folders, name][folders[:1] == ["leakaudit"]]
        if room not in self.floors:
            return None
        return Place(room, ".".join([*folders, name, code.co_qualname]))


def walks(folder: Path) -> dict[str, Walk]:
    """Return the walks of planning a run, of attacking its trace, and of writing a report."""
    scenario = la.Scenario(victim="pdmm", nodes=4, graph="ring", rounds=4, data="faces")
    trace, out = folder / "trace.pt", folder / "out"
    la.record(scenario, trace)
    page = ["report", str(out), "-o", str(folder / "report.html"), "-q"]
    return {
        "plan(scenario)": _walked(lambda: recording.plan(scenario)),
        "attack_file(path)": _walked(
            lambda: attack_run.attack_file(trace, out, AttackOptions(attack="analytic"))
        ),
        "report(args)": _walked(lambda: main(page)),
    }


def _walked(call: Callable[[], object]) -> Walk:
    walk = Walk()
    with contextlib.redirect_stdout(io.StringIO()):
        call()
        with walk.follow():
            call()
    return walk


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for name, walk in walks(Path(temporary)).items():
            rooms = sorted(walk.rooms, key=lambda room: -walk.floors[room])
            sys.stdout.write(
                f"{name}: {len(rooms)} rooms ({', '.join(rooms)}), "
                f"{len(walk.functions)} functions\n"
            )
            for place in sorted(walk.climbing, key=lambda place: place.function):
                sys.stdout.write(f"    climbs: {place.function}\n")
