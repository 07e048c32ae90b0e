"""pytest plugin: the fixture ``leakage`` runs checks, and fails if something leaks.

The failure message states what leaked, from which node, to which adversary. The checks are those of
leakaudit.toml, or a check that the test defines. The plugin is loaded in every pytest run of an
environment with leakaudit, so it imports only pytest until a test requests the fixture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from leakaudit.judging.gate.config import Check, Gate
    from leakaudit.judging.gate.judge import GateResults


# Path of a baseline -> name of a cell -> its measurements, as a worker of pytest-xdist sends them.
Measured = dict[str, dict[str, object]]

Program: TypeAlias = Callable[[int, Path], object]  # trains with a seed, and writes a trace

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
        run: str | Program | None = None,
        *,
        budget: Mapping[str, float] | None = None,
        seeds: int | None = None,
        **settings: Any,
    ) -> GateResults:
        """Run one check, and fail the test unless it passes.

        Args:
            run: ``module:function``, or a function that takes a seed and a path; None for the check
                in the file.
            budget: Measure -> its largest value, of a new check.
            seeds: Number of runs, of any check; None for the number of the gate.
            **settings: Settings of a new check, as in the file: ``adversaries``, ``attacks``, …
        """
        __tracebackhide__ = True
        from leakaudit.core.errors import LeakauditError
        from leakaudit.judging.gate import files, record
        from leakaudit.judging.gate.config import Budget, Gate
        from leakaudit.reporting.rendering import gate_text

        try:
            if run is None:
                if settings or budget is not None:
                    raise LeakauditError("its settings are those of the file, unless it has a run")
                gate = files.configured(self.folder).only([name])
            else:
                own = _new_check(name, run, settings)
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
        seed = config.getoption("--leakage-seed")
        strict = config.getoption("--leakage-strict")
        if not config.getoption("--leakage-update"):
            return judge.run(gate, files.compared(gate), seed, strict=strict)
        judged = judge.run(gate, None, seed, strict=strict)
        judge.sound(judged)
        measured = config.stash[_MEASURED].setdefault(str(gate.baseline_path), {})
        measured.update(msgspec.to_builtins(judged.blocks))
        return judged


def _new_check(name: str, run: str | Program, settings: Mapping[str, Any]) -> Check:
    from leakaudit.core.errors import LeakauditError, suggest
    from leakaudit.judging.gate.config import Check

    known = [field.name for field in fields(Check)]
    for setting in settings:
        if setting not in known:
            raise LeakauditError(f"there is no setting {setting!r}{suggest(setting, known)}")
    values: dict[str, Any] = {}
    for setting, value in settings.items():
        values[setting] = tuple(value) if isinstance(value, list) else value
    return Check(name, run, **values)


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
