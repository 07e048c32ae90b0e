"""Choose the cases that `make test` runs, by the bugs that they catch and by what they cost.

    python tests/quick.py measure FOLDER      run every case that is not slow, note what it costs
    python tests/quick.py plant FOLDER        plant each bug, note the cheapest case that catches it
    python tests/quick.py choose FOLDER       write tests/left_out.txt from what was measured

The cheapest case that catches a bug of tests/mutants.toml stays, and so does one case of every
function in `WHOLE`, whose tests examine what no planted bug shows: sources, imports, docs, values.
The others follow by their worth per second until `BUDGET` is spent: the first case of a function
is worth one, its k-th case 1/k. What is left out is marked `slow` by conftest.py and runs in
`.ci/run --all`, so a plain `pytest` runs everything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import mutants
import pytest

PROJECT = mutants.PROJECT
LEFT_OUT = PROJECT / "tests" / "left_out.txt"
BUDGET = 340  # seconds: four minutes of two processors, less what starts and waits take
WHOLE = ("tests/contract/", "tests/reference/test_bounds_vectors.py")
PROCESSES = 2
HEADER = "# Cases that only the full run takes, written by tests/quick.py; do not edit.\n"
ROWS = "LEAKAUDIT_QUICK_ROWS"  # names the file that a measured run adds its cases to
COSTS = "LEAKAUDIT_QUICK_COSTS"  # names the folder with the costs by which a run is ordered
FIXTURES = "fixtures"  # in place of a case: what several cases share


def left_out() -> frozenset[str]:
    """Return the cases that the quick suite leaves out, as pytest names them."""
    if ROWS in os.environ or not LEFT_OUT.exists():  # a measured run takes them all
        return frozenset()
    lines = LEFT_OUT.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


# ---------------------------------------------------------------------------------------------
# A plug-in of pytest
# ---------------------------------------------------------------------------------------------


class Meter:
    """Writes rows: a case, its seconds of the processor, and whether it failed."""

    def __init__(self, rows: Path) -> None:
        self.rows = rows
        self.shared = 0.0  # seconds in fixtures that outlive a case

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a case without what it shares with others."""
        self.shared = 0.0
        failures = item.session.testsfailed
        before = _processor_time()
        result = yield
        spent = _processor_time() - before
        self._write(item.nodeid, spent - self.shared, item.session.testsfailed > failures)
        if self.shared:
            self._write(FIXTURES, self.shared, False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """Measure a fixture of a module or of the whole run."""
        before = _processor_time()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared += _processor_time() - before

    def _write(self, case: str, seconds: float, failed: bool) -> None:
        with self.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps([case, seconds, failed]) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Start to measure."""
    config.pluginmanager.register(Meter(Path(os.environ[ROWS])))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the cheapest file, and in a file with the cheapest case."""
    if COSTS not in os.environ:
        return
    costs, _ = _costs(Path(os.environ[COSTS]))
    files: defaultdict[str, float] = defaultdict(float)
    for case, seconds in costs.items():
        files[_file(case)] += seconds
    items.sort(key=lambda one: (files[_file(one.nodeid)], costs.get(one.nodeid, 0.0)))


def _processor_time() -> float:
    """Return the seconds of this process and of its children that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


# ---------------------------------------------------------------------------------------------
# Measuring
# ---------------------------------------------------------------------------------------------


def measure(folder: Path) -> int:
    """Run the quick suite without anything left out, in processes that share the files of tests."""
    folder.mkdir(parents=True)
    files = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("tests/*/test_*.py"))
    started = [_started(folder / str(k), files[k::PROCESSES]) for k in range(PROCESSES)]
    while any(process.poll() is None for process in started):
        time.sleep(1)
        done = sum(1 for _ in _rows(folder.glob("*.times")))
        sys.stderr.write(f"\r{done} cases")
    sys.stderr.write("\n")
    return max(process.returncode for process in started)


def _started(name: Path, files: list[Path]) -> subprocess.Popen[bytes]:
    """Start one of the processes, which writes files that begin with a name."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "quick", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        ROWS: f"{name}.times",
        "PYTHONPATH": str(PROJECT / "tests"),
        "OMP_NUM_THREADS": "1",
    }
    with Path(f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "-m", mutants.CHOSEN, *map(str, files)],
            cwd=PROJECT,
            env=environment,
            stdout=log,
            stderr=log,
        )


def plant(folder: Path) -> int:
    """Plant every bug, and run its tests, the cheapest first, until one fails."""
    with tempfile.TemporaryDirectory() as place:
        package = mutants.installed(Path(place))
        for number, bug in enumerate(mutants.bugs()):
            rows = folder / f"{number}.planted"
            if rows.exists():
                continue  # of a run that was interrupted
            more = {ROWS: str(rows) + ".part", COSTS: str(folder)}
            outcome = mutants.caught(bug, package, ("-p", "quick"), more)
            part = Path(str(rows) + ".part")
            part.touch()
            part.rename(rows)
            sys.stdout.write(f"{'caught' if outcome else 'SURVIVED':9s} {bug.name}\n")
            sys.stdout.flush()
    return 0


# ---------------------------------------------------------------------------------------------
# Choosing
# ---------------------------------------------------------------------------------------------


def choose(folder: Path) -> int:
    """Write the cases that are left out."""
    spent, shared = _costs(folder)
    catchers = {case for case, _, failed in _rows(folder.glob("*.planted")) if failed}
    stays = staying(spent, catchers, BUDGET - shared)
    out = sorted(spent.keys() - stays)
    LEFT_OUT.write_text(HEADER + "".join(f"{case}\n" for case in out), encoding="utf-8")
    seconds = shared + sum(spent[case] for case in stays)
    total = shared + sum(spent.values())
    sys.stdout.write(
        f"{len(catchers)} cases catch planted bugs; {len(out)} of {len(spent)} are left out; "
        f"{seconds:.0f} of {total:.0f} seconds stay\n"
    )
    return 0


def staying(spent: Mapping[str, float], catchers: Collection[str], budget: float) -> set[str]:
    """Return the cases that stay, of all with their seconds."""
    stays: set[str] = set()
    prices: dict[str, float] = {}  # seconds per worth
    family: Counter[str] = Counter()
    for case in sorted(spent, key=lambda case: (case not in catchers, spent[case])):
        function = case.partition("[")[0]
        family[function] += 1
        if case in catchers or (case.startswith(WHOLE) and family[function] == 1):
            stays.add(case)
        prices[case] = spent[case] * family[function]
    left = budget - sum(spent[case] for case in stays)
    for case in sorted(spent.keys() - stays, key=prices.__getitem__):
        left -= spent[case]
        if left < 0:
            break
        stays.add(case)
    return stays


def _file(case: str) -> str:
    return case.partition("::")[0]


def _costs(folder: Path) -> tuple[dict[str, float], float]:
    """Return the seconds of each case, and of all fixtures that cases share."""
    costs: defaultdict[str, float] = defaultdict(float)
    for case, seconds, _ in _rows(folder.glob("*.times")):
        costs[case] += seconds
    shared = costs.pop(FIXTURES, 0.0)
    return costs, shared


def _rows(files: Iterator[Path]) -> Iterator[tuple[str, float, bool]]:
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            case, seconds, failed = json.loads(line)
            yield case, seconds, failed


STEPS = {"measure": measure, "plant": plant, "choose": choose}


def main() -> int:
    """Measure, plant or choose."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("folder", type=Path, help="of the measurements; measure makes it")
    asked = parser.parse_args()
    return STEPS[asked.step](asked.folder.resolve())


if __name__ == "__main__":
    sys.exit(main())
