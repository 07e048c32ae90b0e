"""leakaudit.toml of the gate: what is written is read, and whatever cannot be meant is refused with the nearest word."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.gate import runs, tables
from leakaudit.judging.gate.config import Budget, Check

GOOD = """
[gate]
seeds = 5
alpha = 0.05
[gate.tolerance]
gain = 2
[check.ring]
run = "train:train"
adversaries = ["eavesdropper", "node:1"]
attacks = ["exact", "labels"]
nodes = [0, 2]
set.exact.visits = 2
[[budget]]
measure = "psnr"
most = 20
[[budget]]
measure = "psnr"
cells = "ring/node:*/*"
most = 10.5
level = "warn"
aggregate = "p95"
[[accept]]
id = "one"
cells = "ring/*/labels"
reason = "known"
owner = "me"
expires = 2030-01-31
"""


def write(folder: Path, text: str, name: str = "leakaudit.toml") -> Path:
    (folder / name).write_text(text)
    return folder


def test_everything_that_is_written_is_read(tmp_path: Path) -> None:
    gate = tables.load(write(tmp_path, GOOD))
    assert (gate.seeds, gate.alpha, gate.tolerance, gate.source) == (
        5,
        0.05,
        {"gain": 2},
        "leakaudit.toml",
    )
    (check,) = gate.checks
    assert check.cells == [
        "ring/eavesdropper/exact",
        "ring/eavesdropper/labels",
        "ring/node:1/exact",
        "ring/node:1/labels",
    ]
    assert (check.nodes, check.set) == ((0, 2), {"exact": {"visits": 2}})
    assert gate.budgets[1] == Budget("psnr", 10.5, "ring/node:*/*", "warn", "p95")
    assert gate.accepted[0].expires == date(2030, 1, 31)
    assert gate.baseline_path == tmp_path / "leakage-baseline.json"


def test_pyproject_is_read_where_leakaudit_toml_has_no_check(tmp_path: Path) -> None:
    nested = GOOD.replace("[gate", "[tool.leakaudit.gate").replace(
        "[check.", "[tool.leakaudit.check."
    )
    nested = nested.replace("[[budget", "[[tool.leakaudit.budget").replace(
        "[[accept", "[[tool.leakaudit.accept"
    )
    write(tmp_path, nested, "pyproject.toml")
    assert tables.load(tmp_path).source == "pyproject.toml"
    write(tmp_path, "seed = 3\n")
    assert tables.load(tmp_path).seeds == 5
    write(tmp_path, GOOD.replace("seeds = 5", "seeds = 6"))
    assert (tables.load(tmp_path).source, tables.load(tmp_path).seeds) == ("leakaudit.toml", 6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "seeds = 5",
            "seed = 5",
            r"leakaudit.toml: gate: unknown key 'seed'; did you mean 'seeds'\?",
        ),
        ("seeds = 5", 'seeds = "5"', "gate: seeds: expected a whole number, got '5'"),
        ("seeds = 5", "seeds = true", "gate: seeds: expected a whole number, got True"),
        ("seeds = 5", "seeds = 0", "expected seeds >= 1"),
        ("seeds = 5", "checks = []", "gate: unknown key 'checks'"),
        ("gain = 2", "gian = 2", r"unknown 'gian'; did you mean 'gain'\?"),
        ("attacks =", "atacks =", r"check.ring: unknown key 'atacks'; did you mean 'attacks'\?"),
        (
            'attacks = ["exact", "labels"]',
            'attacks = "exact"',
            "check.ring: attacks: expected a list of words, got 'exact'",
        ),
        (
            'attacks = ["exact", "labels"]',
            'attacks = ["labels"]',
            r"set.exact: expected one of the check.s attacks",
        ),
        ("nodes = [0, 2]", 'nodes = ["0"]', "expected a list of node numbers"),
        (
            'run = "train:train"',
            'run = "train:train"\nlint = "eror"',
            r"check ring: lint: unknown 'eror'; did you mean 'error'\?",
        ),
        (
            'run = "train:train"',
            'run = "train:train"\nlnt = "off"',
            r"check.ring: unknown key 'lnt'; did you mean 'lint'\?",
        ),
        ("nodes = [0, 2]", "nodes = []", "check ring: nodes: expected at least one node, got none"),
        (
            "nodes = [0, 2]",
            "nodes = [0, 0]",
            r"nodes: expected distinct numbers >= 0, got \[0, 0\]",
        ),
        (
            "nodes = [0, 2]",
            "nodes = [-1]",
            r"nodes: expected distinct numbers >= 0, got \[-1\]",
        ),
        (
            "nodes = [0, 2]",
            "gradients = 0",
            "check ring: gradients: expected a number >= 1, got 0",
        ),
        ("nodes = [0, 2]", "delta = 1.0", "check ring: delta: expected 0 < delta < 1, got 1"),
        ("nodes = [0, 2]", "delta = nan", "check ring: delta: expected 0 < delta < 1, got nan"),
        (
            "nodes = [0, 2]",
            "sensitivity = 0.0",
            "check ring: sensitivity: expected a number > 0, got 0",
        ),
        (
            "nodes = [0, 2]",
            "sensitivity = -2.0",
            "check ring: sensitivity: expected a number > 0, got -2",
        ),
        (
            "nodes = [0, 2]",
            "sensitivity = inf",
            "check ring: sensitivity: expected a number > 0, got inf",
        ),
        ("most = 20", "most = nan", "budget: most: expected a finite number, got nan"),
        ("gain = 2", "gain = inf", "gate: tolerance.gain: expected a finite number, got inf"),
        (
            "expires = 2030-01-31",
            "expires = 2030-01-31\nmost = nan",
            "accept one: most: expected a finite number, got nan",
        ),
        ('run = "train:train"', 'run = "train"', "run: expected 'module:function', got 'train'"),
        ('run = "train:train"', "", "expected one of run = 'module:function', tap = 'torchrun"),
        ('run = "train:train"', 'run = "a:b"\nscenario = "c.toml"', "expected one of run"),
        ('run = "train:train"', 'run = "a:b"\ntap = "c"\ntruth = "d"', "expected one of run"),
        (
            'run = "train:train"',
            'run = "a:b"\nrounds = 3',
            "check ring: rounds: expected only with tap = 'torchrun",
        ),
        (
            'run = "train:train"',
            'tap = "a \'b"\ntruth = "c"',
            "tap: expected a command: No closing",
        ),
        (
            'run = "train:train"',
            'tap = " "\ntruth = "c"',
            "tap: expected a command, got only spaces",
        ),
        ('run = "train:train"', 'tap = "a"', "tap: truth is missing, without which"),
        (
            'run = "train:train"',
            'tap = "a"\ntruth = "c"\nrounds = -1',
            "rounds: expected a number >= 1, got -1",
        ),
        (
            'measure = "psnr"\nmost = 20',
            'measure = "pnsr"\nmost = 20',
            r"unknown 'pnsr'; did you mean 'psnr'\?",
        ),
        ("most = 20", "", "budget: expected the keys most"),
        ("most = 20", 'most = "20"', "budget: most: expected a number, got '20'"),
        ('level = "warn"', 'level = "warning"', r"unknown 'warning'; did you mean 'warn'\?"),
        ('cells = "ring/node:*/*"', 'cells = "rign/*"', r"cells = 'rign/\*' matches no cell"),
        (
            "expires = 2030-01-31",
            'expires = "2030-01-31"',
            "expires: expected a date like 2030-01-31, without quotes",
        ),
        (
            "expires = 2030-01-31",
            "expires = 2030-01-31T00:00:00",
            "expires: expected a date like 2030-01-31, without quotes",
        ),
        ("most = 20", "most = true", "budget: most: expected a number, got True"),
        ("nodes = [0, 2]", "nodes = [0, true]", "expected a list of node numbers"),
        (
            "gain = 2",
            'gain = "2"',
            "gate: tolerance: expected a table of numbers, got {'gain': '2'}",
        ),
        (
            "set.exact.visits = 2",
            "set.exact = 2",
            "check.ring: set: expected a table of tables, got {'exact': 2}",
        ),
        ('run = "train:train"', "run = 3", "check.ring: run: expected text, got 3"),
        ('owner = "me"', "", "accept: expected the keys owner"),
        ('[[accept]]\nid = "one"', "[accept]", r"accept: expected tables \[\[accept\]\]"),
        ("[check.ring]", "[check]\nring = 3\n[check.other]", "check.ring: expected a table, got 3"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(LeakauditError, match=message):
        tables.load(write(tmp_path, GOOD.replace(old, new, 1)))


def test_a_lint_can_be_accepted_and_has_no_budget(tmp_path: Path) -> None:
    accepted = GOOD.replace('cells = "ring/*/labels"', 'cells = "ring/lint"')
    assert tables.load(write(tmp_path, accepted)).accepted[0].cells == "ring/lint"
    with pytest.raises(LeakauditError, match="cells = 'ring/lint' matches no cell"):
        tables.load(write(tmp_path, GOOD.replace('cells = "ring/node:*/*"', 'cells = "ring/lint"')))


def test_an_id_is_there_once_and_an_unknown_check_is_named(tmp_path: Path) -> None:
    twice = GOOD + GOOD[GOOD.index("[[accept]]") :]
    with pytest.raises(LeakauditError, match="expected unique ids, got 'one' twice"):
        tables.load(write(tmp_path, twice))
    with pytest.raises(LeakauditError, match=r"check 'rong' does not exist; did you mean 'ring'\?"):
        tables.load(write(tmp_path, GOOD)).only(["rong"])


def test_a_folder_without_a_gate_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        LeakauditError, match=r"'leakaudit init --run MODULE:FUNCTION' creates a leakaudit\.toml"
    ):
        tables.load(tmp_path)


def test_a_misspelt_table_is_refused_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(write(tmp_path, GOOD.replace("[[budget]]", "[[bugdet]]")))
    for verb in (["check"], ["config", "lint"], ["check", "--show"]):
        assert main(verb) == 2
        assert (
            "leakaudit.toml: unknown key 'bugdet'; did you mean 'budget'?"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"labels"]', '"lables"]', "there is no attack 'lables'; did you mean 'labels'?"),
        ("visits = 2", "visit = 2", "Exact has no parameter 'visit'; did you mean 'visits'?"),
        ('"node:1"]', '"nod:1"]', "adversary 'nod:1': expected eavesdropper, node:3"),
    ],
)
def test_lint_knows_attacks_settings_and_adversaries(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    message: str,
) -> None:
    monkeypatch.chdir(write(tmp_path, GOOD))
    assert main(["config", "lint"]) == 0
    assert (
        capsys.readouterr().out
        == "leakaudit.toml: all keys are known; 1 checks, 4 cells, 5 seeds\n"
    )
    changed = (
        GOOD.replace(old, new, 1)
        .replace('cells = "ring/node:*/*"', "")
        .replace('cells = "ring/*/labels"', "")
    )
    write(tmp_path, changed)
    assert main(["config", "lint"]) == 2
    assert message in capsys.readouterr().err


def test_a_check_is_named_plainly() -> None:
    with pytest.raises(LeakauditError, match="expected a name without '/'"):
        Check("a/b", "m:f")


def test_the_configuration_is_read_without_torch() -> None:
    probe = (
        "import sys, leakaudit.judging.gate.tables; "
        "print(sorted({'torch', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def train(seed, path:\n    pass\n", r"SyntaxError in broken_\d\.py, line 1"),
        ("import os\n1 / 0\n", r"ZeroDivisionError in broken_\d\.py, line 2: division by zero"),
        (
            "def train(seed, path):\n    raise ValueError('no\\ndata')\n",
            r"ValueError in broken_\d\.py, line 2: no data",
        ),
        (
            "import networkx\ndef train(seed, path):\n    networkx.cycle_graph(-1)\n",
            r"NetworkXError in broken_\d\.py, line 3: ",
        ),
    ],
)
def test_a_program_that_fails_is_one_line_and_no_leak(text: str, said: str, tmp_path: Path) -> None:
    name = f"broken_{abs(hash(text)) % 10}"
    (tmp_path / f"{name}.py").write_text(text)
    path = list(sys.path)
    with pytest.raises(LeakauditError, match=said) as raised:
        runs.ready(Check("own", f"{name}:train"), tmp_path)(0)
    assert "\n" not in str(raised.value)
    assert raised.value.code == 4
    assert (name in sys.modules, sys.path) == (False, path), (
        "the program is imported in a process of its own"
    )
