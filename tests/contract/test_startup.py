"""A command imports only what it uses: torch takes a second, scipy.stats half of one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from invoked import RECORD

from leakaudit.cli import VERBS, main

TORCH = ("torch", "torchvision", "lpips", "skimage", "scipy", "sympy", "networkx", "matplotlib")
SCENARIO = """
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
[set]
hidden = 8
order = "adapt"
sigma = 1.0
"""
# Runs commands one after another and prints, after each, its exit code and which of the packages
# and modules have been imported.
PROBE = """
import json, os, sys
from leakaudit.cli import main
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
commands, modules = json.loads(sys.argv[1])
for words in commands:
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    found = [name for name in modules if name in sys.modules]
    os.write(out, (json.dumps([code, found]) + chr(10)).encode())
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, a folder of shards, the results of an attack, and a scenario."""
    folder = tmp_path_factory.mktemp("startup")
    trace = str(folder / "trace.pt")
    assert main([*RECORD, "-o", trace]) == 0
    assert main(["trace", "convert", trace, f"{folder}/shards/", "-q"]) == 0
    assert main(["attack", trace, "-o", str(folder / "attacked"), "-q"]) == 0
    (folder / "scenario.toml").write_text(SCENARIO)
    return folder


def loaded(
    folder: Path, commands: Iterable[str], modules: Iterable[str]
) -> list[tuple[str, int, list[str]]]:
    """Return each command with its exit code and the modules that it or an earlier one imports."""
    words = [command.split() for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([words, list(modules)])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LEAKAUDIT_PROGRESS": "none"},
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(" ".join(w), code, mods) for w, (code, mods) in zip(words, found, strict=True)]


def light(folder: Path, commands: Iterable[str], *modules: str) -> None:
    """Check that all commands succeed and that none of them imports one of the modules."""
    for command, code, found in loaded(folder, commands, modules):
        assert (code, found) == (0, []), command


def test_help_and_tables_of_words_import_neither_torch_nor_numpy(prepared: Path) -> None:
    commands = ["--help", "--version", *(f"{verb} --help" for verb in VERBS)]
    commands += ["config show", "config schema", "config completion bash"]
    commands += [f"list {what}" for what in ("victims", "attacks", "reports", "models", "data")]
    forms = ("json", "junit", "sarif", "github", "csv", "latex", "markdown")
    commands += [f"report attacked -q -f {form}" for form in forms]
    light(prepared, commands, "numpy", *TORCH)


def test_reports_and_the_header_of_a_trace_do_without_torch(prepared: Path) -> None:
    commands = ["trace info trace.pt", "trace info trace.pt -f json", "trace info shards"]
    commands += ["report attacked -q -f text", "report attacked -q -f html"]
    commands += ["report attacked -q -f text --against attacked"]
    light(prepared, commands, *TORCH)


def test_the_page_of_an_attack_does_without_the_tables_of_the_terminal(prepared: Path) -> None:
    light(prepared, ["report attacked -q -f html"], "rich", *TORCH)


@pytest.mark.parametrize("kind", ["audit", "check", "sweep"])
def test_records_of_other_kinds_do_without_torch(project: Path, tmp_path: Path, kind: str) -> None:
    records = sorted((project / "tests/golden/records").rglob(f"{kind}*.json"))
    assert records
    shutil.copy(records[0], tmp_path / "results.json")
    forms = ["text", "json", "markdown", "csv"]
    if kind == "check":  # the page of an audit needs its images, and that of a sweep draws a chart
        forms.append("html")
    commands = [f"report results.json -q -f {form}" for form in forms]
    light(tmp_path, commands, "torch", "torchvision", "skimage", "networkx", "matplotlib")


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("bound scenario.toml -q", ("scipy.stats", "scipy.optimize")),
        ("bound trace.pt -q", ("scipy.stats", "scipy.optimize", "skimage")),
        ("explain trace.pt --node 0 -q", ("scipy.stats", "scipy.optimize", "skimage", "PIL")),
        ("trace verify trace.pt -q", ("scipy", "skimage", "networkx", "PIL")),
        ("attack trace.pt -o new -q", ("scipy.stats", "scipy.optimize")),
        ("report attacked --rescore -o attacked -q", ("scipy.stats", "networkx")),
        ("config lint", ("scipy.stats", "skimage")),
    ],
)
def test_what_needs_torch_imports_no_more(
    prepared: Path, command: str, modules: tuple[str, ...]
) -> None:
    always = ("torchvision", "lpips", "sympy", "matplotlib")
    light(prepared, [command], *always, *modules)
