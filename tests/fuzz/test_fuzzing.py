"""A few hundred mutated files in the normal tests, and the proof that the fuzzer sees what it looks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import mutations
import torch

FUZZING = Path(__file__).with_name("fuzzing.py")
HARMS = {  # what a reader does: what the fuzzer must say
    "pass": (),
    "raise LeakauditError('the file is no trace')": (),
    "Path('out.txt').write_text('x')": (),
    "{}['missing']": ("exception",),
    "raise Raw('one\\ntwo')": ("refusal",),
    "raise Raw('\\x1b[2J')": ("text",),
    "return '<img src=x onerror=CANARY>'": ("text",),
    "os.system('true')": ("effect",),
    "socket.create_connection(('127.0.0.1', 1))": ("effect", "exception"),
    "importlib.import_module('canary_mod')": ("effect", "exception"),
    "Path('elsewhere.txt').write_text('x')": ("effect",),
    "return bytearray(2 << 30)": ("memory",),
    "while True: pass": ("hang",),
    "os.abort()": ("death",),
}
PLANTED = """
import importlib, json, os, socket, sys
from pathlib import Path
import corpus, fuzzing, targets
from leakaudit.core.errors import LeakauditError

class Raw(LeakauditError):
    def __init__(self, said):
        self.args = (said,)

corpus.make = lambda home: home.mkdir()
corpus.export_model = lambda path: None
one = targets.Target("harm", 1, lambda r: [("read", "harm", "x")])
targets.Targets.all = lambda self: [one]
fuzzing.SECONDS = 0.5
for harm in json.load(sys.stdin):
    exec(f"def harmful(path):\\n    {harm}")
    targets.READERS["harm"] = harmful
    totals = fuzzing.fuzz(7, 1, 60, Path(sys.argv[1]))
    print(json.dumps([totals.cases, [found.what for found in totals.findings]]))
"""


def run(*argv: str, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        input=given,
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


def test_planted_harms_are_found(tmp_path: Path) -> None:
    found = run("-c", PLANTED, str(tmp_path), cwd=tmp_path, given=json.dumps(list(HARMS)))
    assert found.returncode == 0, found.stderr
    seen = [json.loads(line) for line in found.stdout.splitlines()]
    said = {harm: sorted({*what}) for harm, (_, what) in zip(HARMS, seen, strict=True)}
    assert said == {harm: list(what) for harm, what in HARMS.items()}
    assert [cases for cases, _ in seen] == [1] * len(HARMS)


def test_a_case_is_reproduced_by_its_number() -> None:
    sound = mutations.torch_bytes({"meta": "{}", "x": torch.zeros(3)})
    for change in (mutations.mutate_bytes, mutations.mutate_torch, mutations.mutate_zip):
        assert change(Random(3), sound) == change(Random(3), sound)
        assert len({change(Random(k), sound) for k in range(40)}) > 20


def test_mutated_archives_hold_what_was_in_the_sound_one() -> None:
    sound = mutations.torch_bytes({"x": torch.arange(5)})
    assert mutations.zipped(mutations.entries(sound)) != b""
    again = mutations.entries(mutations.zipped(mutations.entries(sound)))
    assert again == mutations.entries(sound)
