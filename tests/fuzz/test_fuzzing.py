"""A few hundred mutated files in the normal tests, and the proof that the fuzzer sees what it looks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import mutations
import pytest

FUZZING = Path(__file__).with_name("fuzzing.py")
HARMS = {
    "nothing": "",
    "refusal": "raise LeakauditError('the file is no trace')",
    "exception": "{}['missing']",
    "two lines": "raise LeakauditError('one\\ntwo')",
    "control": "raise LeakauditError('\\x1b[2J')",
    "process": "os.system('true')",
    "connection": "socket.create_connection(('127.0.0.1', 1))",
    "import": "importlib.import_module('canary_mod')",
    "outside": "Path(path.parent, 'elsewhere.txt').write_text('x')",
    "output": "Path('out.txt').write_text('x')",
    "page": "return '<img src=x onerror=CANARY>'",
    "memory": "return bytearray(2 << 30)",
    "hang": "while True: pass",
    "death": "os.abort()",
}
PLANTED = """
import importlib, os, socket, sys
from pathlib import Path
import corpus, fuzzing, targets
from leakaudit.errors import LeakauditError

def harmful(path):
{harm}

corpus.make = lambda home: home.mkdir()
corpus.export_model = lambda path: None
targets.READERS["harm"] = harmful
one = targets.Target("harm", 1, lambda r: [("read", "harm", "x")])
targets.Targets.all = lambda self: [one]
fuzzing.SECONDS = 0.5
totals = fuzzing.fuzz(7, 1, 60, Path(sys.argv[1]))
print([totals.cases, totals.calls, totals.refused, [one.what for one in totals.findings]])
"""


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(FUZZING.parent), "OMP_NUM_THREADS": "1"},
    )


def test_a_few_hundred_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    found = run(str(FUZZING), "--cases", "250", "--seed", "20261125", cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    report = json.loads(found.stdout.splitlines()[-1])
    assert report["cases"] == 250
    assert report["findings"] == 0
    assert 100 < report["refused"] < report["calls"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        ("nothing", []),
        ("refusal", []),
        ("exception", ["exception"]),
        ("two lines", ["refusal"]),
        ("control", ["text"]),
        ("process", ["effect"]),
        ("connection", ["exception", "effect"]),
        ("import", ["effect"]),
        ("outside", ["effect"]),
        ("output", []),
        ("page", ["text"]),
        ("memory", ["memory"]),
        ("hang", ["hang"]),
        ("death", ["death"]),
    ],
)
def test_a_planted_harm_is_found(harm: str, what: list[str], tmp_path: Path) -> None:
    script = PLANTED.format(harm=f"    path = path.absolute()\n    {HARMS[harm]}")
    found = run("-c", script, str(tmp_path), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    cases, calls, refused, seen = eval(found.stdout)
    assert cases == 1
    assert set(seen) == set(what)
    if "hang" not in what and "death" not in what:
        assert calls == 1
        assert refused == (harm in ("refusal", "two lines", "control"))


def test_a_case_is_reproduced_by_its_number() -> None:
    sound = mutations.torch_bytes({"meta": "{}", "x": __import__("torch").zeros(3)})
    for change in (mutations.mutate_bytes, mutations.mutate_torch, mutations.mutate_zip):
        assert change(Random(3), sound) == change(Random(3), sound)
        assert len({change(Random(k), sound) for k in range(40)}) > 20


def test_mutated_archives_hold_what_was_in_the_sound_one() -> None:
    sound = mutations.torch_bytes({"x": __import__("torch").arange(5)})
    assert mutations.zipped(mutations.entries(sound)) != b""
    again = mutations.entries(mutations.zipped(mutations.entries(sound)))
    assert again == mutations.entries(sound)
