"""Choose which cases of parametrised tests `make test` leaves to the full run.

    python tests/quick.py measure FOLDER      run the quick suite, with coverage of every case
    python tests/quick.py choose FOLDER       write tests/left_out.txt from what was measured

A test function with many cases runs the same code again and again. The quick suite leaves a case
out if it takes at least `LEAST` seconds and every line of the product that it runs is also run by
cases that stay. The last case of a function must take at least `SINGLE` seconds to be left out, and
never is in `WHOLE`, whose tests examine what no coverage shows: sources, imports, docs, values. The
most expensive cases are looked at first. What is left out is marked `slow` by conftest.py and runs
in `.ci/run --all`, so a plain `pytest` runs everything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
LEFT_OUT = PROJECT / "tests" / "left_out.txt"
SOURCES = ("leakaudit", "attacks", "victims", "reports")
LEAST = 0.03  # seconds of the processor, below which leaving a case out gains nothing
SINGLE = 0.3  # the same for the last case of a function
WHOLE = ("tests/contract/", "tests/reference/test_bounds_vectors.py")
PROCESSES = 2
HEADER = "# Cases that only the full run takes, written by tests/quick.py; do not edit.\n"


def left_out() -> frozenset[str]:
    """Return the cases that the quick suite leaves out, as pytest names them."""
    if not LEFT_OUT.exists():
        return frozenset()
    lines = LEFT_OUT.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


# ---------------------------------------------------------------------------------------------
# Measuring
# ---------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """As a plug-in of pytest: name the case for coverage, and write down what it costs."""
    import coverage

    current = coverage.Coverage.current()
    assert current is not None, "run this with `tests/quick.py measure`"
    current.switch_context(item.nodeid)
    before = _processor_time()
    result = yield
    spent = _processor_time() - before
    with Path(os.environ["LEAKAUDIT_QUICK_TIMES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, spent]) + "\n")
    return result


def _processor_time() -> float:
    """Return the seconds of this process and of its children that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def measure(folder: Path) -> int:
    """Run the quick suite without anything left out, in processes that share the files of tests."""
    folder.mkdir(parents=True)
    files = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("tests/*/test_*.py"))
    started = [_started(folder / str(k), files[k::PROCESSES]) for k in range(PROCESSES)]
    while any(process.poll() is None for process in started):
        time.sleep(1)
        done = sum(map(_count, folder.glob("*.times")))
        sys.stderr.write(f"\r{done} cases")
    sys.stderr.write("\n")
    return max(process.returncode for process in started)


def _started(name: Path, files: list[Path]) -> subprocess.Popen[bytes]:
    """Start one of the processes, which writes files that begin with a name."""
    command = [
        *(sys.executable, "-m", "coverage", "run", "--rcfile=", f"--data-file={name}.coverage"),
        *(f"--source={','.join(SOURCES)}", "-m", "pytest", "-q", "-p", "quick"),
        *("-p", "no:cacheprovider", "-m", "not slow and not browser"),
        *map(str, files),
    ]
    environment = {
        **os.environ,
        "LEAKAUDIT_QUICK_TIMES": f"{name}.times",
        "PYTHONPATH": str(PROJECT / "tests"),
        "OMP_NUM_THREADS": "1",
    }
    with Path(f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=log, stderr=log)


def _count(file: Path) -> int:
    return len(file.read_bytes().splitlines())


# ---------------------------------------------------------------------------------------------
# Choosing
# ---------------------------------------------------------------------------------------------


def choose(folder: Path) -> int:
    """Write the cases that may be left out."""
    spent = dict(_times(folder))
    lines = _lines(folder)
    runs: Counter[int] = Counter()  # how many cases that stay run each line
    family: Counter[str] = Counter()  # how many cases of a function stay
    for case in spent:
        runs.update(lines.get(case, ()))
        family[_function(case)] += 1
    out = []
    for case in sorted(spent, key=lambda name: -spent[name]):
        mine = lines.get(case, set())
        last = family[_function(case)] == 1
        if spent[case] < (SINGLE if last else LEAST) or (last and case.startswith(WHOLE)):
            continue
        if any(runs[line] == 1 for line in mine):
            continue
        out.append(case)
        runs.subtract(mine)
        family[_function(case)] -= 1
    LEFT_OUT.write_text(HEADER + "".join(f"{case}\n" for case in sorted(out)), encoding="utf-8")
    saved = sum(spent[case] for case in out)
    total = sum(spent.values())
    sys.stdout.write(
        f"{len(out)} of {len(spent)} cases are left out; "
        f"{total - saved:.0f} of {total:.0f} seconds stay\n"
    )
    return 0


def _function(case: str) -> str:
    return case.partition("[")[0]


def _times(folder: Path) -> Iterator[tuple[str, float]]:
    for file in folder.glob("*.times"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, seconds = json.loads(line)
            yield name, seconds


def _lines(folder: Path) -> dict[str, set[int]]:
    """Return the lines of the product that each case runs, as numbers that are unique over
    files.
    """
    from coverage import CoverageData

    found: dict[str, set[int]] = {}
    numbers: dict[tuple[str, int], int] = {}
    for part in folder.glob("*.coverage"):
        data = CoverageData(str(part))
        data.read()
        for file in data.measured_files():
            for line, cases in data.contexts_by_lineno(file).items():
                number = numbers.setdefault((file, line), len(numbers))
                for case in cases:
                    found.setdefault(case, set()).add(number)
    return found


def main() -> int:
    """Measure or choose."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("measure", "choose"))
    parser.add_argument("folder", type=Path, help="of the measurements; measure makes it")
    asked = parser.parse_args()
    if asked.step == "measure":
        return measure(asked.folder)
    return choose(asked.folder)


if __name__ == "__main__":
    sys.exit(main())
