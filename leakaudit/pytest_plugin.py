"""pytest plugin: the fixture ``leakage`` runs checks of leakaudit.toml, or of a test's own, and fails with what leaked, from whom, to whom.

It is loaded in every pytest run of an environment that has leakaudit, so nothing but pytest is imported before a test asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from leakaudit.gate.config import Gate
    from leakaudit.gate.judge import Judged

_KEY = "leakaudit_cells"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("leakaudit")
    group.addoption(
        "--leakage-update",
        metavar="REASON",
        help="write what `leakage` measures to the baseline, for this reason",
    )
    group.addoption(
        "--leakage-seed",
        type=int,
        default=0,
        metavar="N",
        help="first seed of the checks (default 0)",
    )
    group.addoption(
        "--leakage-strict", action="store_true", help="fail where there are too few samples to tell"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "leakage: a privacy gate, which records and attacks a training program; -m 'not leakage' skips it",
    )
    setattr(config, _KEY, {})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for the fixture."""
    for item in items:
        if (
            "leakage" in getattr(item, "fixturenames", ())
            and item.get_closest_marker("leakage") is None
        ):
            item.add_marker("leakage")


@dataclass(frozen=True)
class Leakage:
    """What the fixture is: call `check`. folder: of leakaudit.toml, pytest's root."""

    request: pytest.FixtureRequest
    folder: Path

    def check(
        self,
        name: str,
        run: str | Callable[[int, Path], object] | None = None,
        *,
        adversaries: Sequence[str] = ("eavesdropper",),
        attacks: Sequence[str] = ("auto",),
        set: Mapping[str, Mapping[str, Any]] | None = None,
        budget: Mapping[str, float] | None = None,
        seeds: int | None = None,
        lint: str = "error",
        secure: Sequence[str] = (),
        undetermined: Sequence[str] = (),
        sensitivity: float = 1.0,
        delta: float = 1e-5,
        smoothness: float | None = None,
    ) -> Judged:
        """Run one check and fail the test where it finds a leak or cannot tell.

        name: of a check in leakaudit.toml. With run (``module:function`` or a function of a seed and a path) the check is the test's own:
        adversaries, attacks, set, lint, secure, undetermined, sensitivity, delta and smoothness as in the file, budget the largest
        value of each measure. seeds: how many, the gate's by default.
        """
        __tracebackhide__ = True
        from leakaudit.errors import LeakauditError
        from leakaudit.gate import files, judge, text

        config = self.request.config
        try:
            own: dict[str, Any] = {
                "lint": lint,
                "secure": tuple(secure),
                "undetermined": tuple(undetermined),
            }
            own |= {"sensitivity": sensitivity, "delta": delta, "smoothness": smoothness}
            gate = self._gate(
                name, run, tuple(adversaries), tuple(attacks), set or {}, budget or {}, seeds, own
            )
            update = config.getoption("--leakage-update")
            options = judge.Options(
                config.getoption("--leakage-seed"), config.getoption("--leakage-strict")
            )
            judged = judge.run(gate, options, None if update else files.compared(gate))
            if update:
                judge.sound(judged)
                getattr(config, _KEY)[str(gate.baseline_path)] = {
                    **self._kept(gate),
                    **_plain(judged),
                }
        except LeakauditError as e:
            pytest.fail(f"leakage gate {name}: {e}", pytrace=False)
        for cell in judged.cells:
            self.request.node.user_properties.extend(
                (f"{cell.name} {m}", max(s)) for m, s in cell.samples.items()
            )
        if judged.code:
            pytest.fail(text.failure(judged), pytrace=False)
        return judged

    def _kept(self, gate: Gate) -> dict[str, Any]:
        kept: dict[str, Any] = getattr(self.request.config, _KEY).get(str(gate.baseline_path), {})
        return kept

    def _gate(
        self,
        name: str,
        run: str | Callable[[int, Path], object] | None,
        adversaries: tuple[str, ...],
        attacks: tuple[str, ...],
        set: Mapping[str, Mapping[str, Any]],
        budget: Mapping[str, float],
        seeds: int | None,
        own: Mapping[str, Any],
    ) -> Gate:
        """Return the gate of one check, from the file or from the test."""
        from dataclasses import replace

        from leakaudit.gate import files
        from leakaudit.gate.config import Budget, Check, Gate

        if run is None:
            gate = files.configured(self.folder).only([name])
        else:
            check = Check(name, run, adversaries=adversaries, attacks=attacks, set=set, **own)
            budgets = tuple(Budget(measure, most) for measure, most in budget.items())
            gate = Gate(
                (check,), budgets, folder=self.folder, source=str(self.request.node.location[0])
            )
        return gate if seeds is None else replace(gate, seeds=seeds)


@pytest.fixture
def leakage(request: pytest.FixtureRequest) -> Leakage:
    """Run privacy checks: ``leakage.check("name")`` of leakaudit.toml, ``leakage.check("name", run=…)`` of the test's own."""
    return Leakage(request, request.config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a worker of pytest-xdist measured."""
    for path, cells in json.loads(getattr(node, "workeroutput", {}).get(_KEY, "{}")).items():
        getattr(node.config, _KEY).setdefault(path, {}).update(cells)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was measured to the main process, or write it to the baseline."""
    config = session.config
    found: dict[str, dict[str, Any]] = getattr(config, _KEY, {})
    if (output := getattr(config, "workeroutput", None)) is not None:
        output[_KEY] = json.dumps(found)
    elif found:
        _write(found, config.getoption("--leakage-update"))


def _write(found: Mapping[str, Mapping[str, Any]], reason: str) -> None:
    from leakaudit.gate import baseline
    from leakaudit.results import provenance

    for file, cells in found.items():
        path = Path(file)
        old = baseline.read(path) if path.is_file() else baseline.Baseline()
        blocks = {
            name: baseline.block(c["digest"], c["seeds"], c["samples"]) for name, c in cells.items()
        }
        old.merged(blocks, reason, provenance.versions()).write(path)


def _plain(judged: Judged) -> dict[str, Any]:
    return {
        name: {
            "digest": b.digest,
            "seeds": list(b.seeds),
            "samples": {m: list(s) for m, s in b.samples.items()},
        }
        for name, b in judged.blocks.items()
    }
