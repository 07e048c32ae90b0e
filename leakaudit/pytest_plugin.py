"""pytest plugin: the fixture ``leakage`` runs checks, and fails if something leaks.

The failure message states what leaked, from which node, to which adversary. The checks are those of
leakaudit.toml, or a check that the test defines. The plugin is loaded in every pytest run of an
environment with leakaudit, so it imports only pytest until a test requests the fixture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leakaudit.judging.gate.config import Gate
    from leakaudit.judging.gate.judge import GateResults


# Path of a baseline -> name of a cell -> its measurements, as a worker of pytest-xdist sends them.
Measured = dict[str, dict[str, object]]

_MEASURED = pytest.StashKey[Measured]()
_SENT = "leakaudit_cells"  # key of the data that a worker sends


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("leakaudit")
    group.addoption(
        "--leakage-update",
        metavar="REASON",
        help="write the measurements of `leakage` to the baseline, with this reason",
    )
    group.addoption(
        "--leakage-seed",
        type=int,
        default=0,
        metavar="N",
        help="first seed of the checks (default 0)",
    )
    group.addoption(
        "--leakage-strict",
        action="store_true",
        help="fail if a measure increased, but not significantly",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    marker = (
        "leakage: a privacy gate, which records and attacks a training program; "
        "-m 'not leakage' skips it"
    )
    config.addinivalue_line("markers", marker)
    config.stash[_MEASURED] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the fixture."""
    for item in items:
        if "leakage" not in getattr(item, "fixturenames", ()):
            continue
        if item.get_closest_marker("leakage") is None:
            item.add_marker("leakage")


@dataclass(frozen=True)
class Leakage:
    """The fixture; call `check`."""

    request: pytest.FixtureRequest
    folder: Path  # folder of leakaudit.toml: the root of pytest

    def check(
        self,
        name: str,
        run: str | Callable[[int, Path], object] | None = None,
        *,
        adversaries: Sequence[str] = ("eavesdropper",),
        attacks: Sequence[str] = ("auto",),
        set: Mapping[str, Mapping[str, object]] | None = None,
        budget: Mapping[str, float] | None = None,
        seeds: int | None = None,
        lint: str = "error",
        secure: Sequence[str] = (),
        undetermined: Sequence[str] = (),
        sensitivity: float = 1.0,
        delta: float = 1e-5,
        smoothness: float | None = None,
    ) -> GateResults:
        """Run one check, and fail the test unless it passes.

        Args:
            run: ``module:function``, or a function that takes a seed and a path; None for the check
                in the file. The following arguments apply to a new check only.
            seeds: number of runs, of any check; None for the number of the gate.
        """
        __tracebackhide__ = True
        from leakaudit.core.errors import LeakauditError
        from leakaudit.judging.gate import files, record
        from leakaudit.judging.gate.config import Budget, Check, Gate
        from leakaudit.reporting.rendering import gate_text

        try:
            if run is None:
                gate = files.configured(self.folder).only([name])
            else:
                own = Check(
                    name,
                    run,
                    adversaries=tuple(adversaries),
                    attacks=tuple(attacks),
                    set=set or {},
                    sensitivity=sensitivity,
                    delta=delta,
                    smoothness=smoothness,
                    lint=lint,
                    secure=tuple(secure),
                    undetermined=tuple(undetermined),
                )
                budgets = tuple(Budget(measure, most) for measure, most in (budget or {}).items())
                source = str(self.request.node.location[0])
                gate = Gate((own,), budgets, folder=self.folder, source=source)
            judged = self._judge(gate, seeds)
        except LeakauditError as error:
            pytest.fail(f"leakage gate {name}: {error}", pytrace=False)
        for cell in judged.cells:
            for measure, samples in cell.samples.items():
                self.request.node.user_properties.append((f"{cell.name} {measure}", max(samples)))
        if judged.code:
            part = record.part(judged)
            said = gate_text.failure(part, judged.complete, judged.gate.seeds)
            pytest.fail(said, pytrace=False)
        return judged

    def _judge(self, gate: Gate, seeds: int | None) -> GateResults:
        """Run a gate, and keep its measurements if the baseline is to be updated."""
        from dataclasses import replace

        import msgspec

        from leakaudit.judging.gate import files, judge

        config = self.request.config
        if seeds is not None:
            gate = replace(gate, seeds=seeds)
        options = judge.GateOptions(
            seed=config.getoption("--leakage-seed"), strict=config.getoption("--leakage-strict")
        )
        if not config.getoption("--leakage-update"):
            return judge.run(gate, options, files.compared(gate))
        judged = judge.run(gate, options, None)
        judge.sound(judged)
        measured = config.stash[_MEASURED].setdefault(str(gate.baseline_path), {})
        measured.update(msgspec.to_builtins(judged.blocks))
        return judged


@pytest.fixture
def leakage(request: pytest.FixtureRequest) -> Leakage:
    """Run privacy checks.

    ``leakage.check("name")`` runs a check of leakaudit.toml, ``leakage.check("name", run=…)`` a new
    check.
    """
    return Leakage(request, request.config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Collect the measurements of a worker of pytest-xdist."""
    config: pytest.Config = getattr(node, "config")  # noqa: B009, xdist may not be installed
    sent: Measured = json.loads(getattr(node, "workeroutput", {}).get(_SENT, "{}"))
    for path, cells in sent.items():
        config.stash[_MEASURED].setdefault(path, {}).update(cells)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the measurements to the main process, or write them to the baseline."""
    config = session.config
    measured = config.stash.get(_MEASURED, {})
    output: dict[str, str] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[_SENT] = json.dumps(measured)
    elif measured:
        _write(measured, config.getoption("--leakage-update"))


def _write(measured: Measured, reason: str) -> None:
    """Merge the measurements into the baselines."""
    import msgspec

    from leakaudit.judging.gate import baseline
    from leakaudit.reporting.results import provenance

    for file, cells in measured.items():
        path = Path(file)
        old = baseline.read(path) if path.is_file() else baseline.Baseline()
        blocks = msgspec.convert(cells, dict[str, baseline.CellMeasurements])
        old.merged(blocks, reason, provenance.versions()).write(path)
