"""Every text fits a terminal of 80 columns; in a pipe, each row is one line without colours."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from invoked import GATE, RECORD, SWEEP
from rich.cells import cell_len
from rich.text import Text

from leakaudit.cli import main
from leakaudit.reporting.rendering.tables import Column, table

AUDIT = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 3
data = "faces-detect"
model = "logistic"
[scenario.set]
order = "adapt"
clip = 1.0
[audit]
epsilon = [inf, 8]
sensitivity = 2.0
adversaries = ["eavesdropper"]
attacks = ["analytic"]
nodes = [0]
replays = 20
canary = 20
"""
NOISY = (
    "record dpsgd --nodes 4 --graph ring --rounds 4 --samples 4 --data faces-detect --model logistic "
    "--set noise=step --set epsilon=1 --set horizon=4 -o noisy.pt -q"
)
PREPARED: tuple[list[str], ...] = (
    [*RECORD, "--states", "--curves", "-o", "trace.pt"],
    NOISY.split(),
    ["attack", "trace.pt", "-o", "out", "-q"],
    ["check", "--update", "--reason", "first", "-q"],
)
CALLS = (
    "list victims",
    "list attacks",
    "list reports",
    "list models",
    "list data",
    "list graphs",
    "list victims pdmm",
    "list attacks --long",
    "list models mlp",
    "record pdmm --help",
    "trace info trace.pt",
    "trace verify trace.pt --relations",
    "trace curves trace.pt",
    "trace lint noisy.pt",
    "bound trace.pt",
    "bound noisy.pt --all --node 0",
    "explain trace.pt",
    "explain trace.pt --node 0 --node 1",
    "attack trace.pt -o out",
    "attack trace.pt --as node:1 -o other",
    "report out --rescore",
    "report out -f text",
    "reproduce --claims --row 10 --row 41",
    "audit audit.toml -o audited",
    "sweep sweep.toml -o swept --workers 0",
    "check -o checked",
    "check --dry-run",
    "check --show",
    "config show",
    "config lint",
    "doctor",
    "doctor --statistics --runs 20 --trials 50",
)
TEXT = re.compile(r"\x1b\[[0-9;]*m")
JSON = [
    *(call for call in CALLS if "--help" not in call),
    "check --diff --output out-none",
]
Call = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings and results that the calls read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "audit.toml").write_text(AUDIT)
    (folder / "sweep.toml").write_text(SWEEP)
    (folder / "leakaudit.toml").write_text(GATE.replace("seeds = 6", "seeds = 2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in PREPARED:
            assert main(words) == 0
        assert main(["check", "-o", "out-none", "-q"]) in (0, 1, 3)
    return folder


@pytest.fixture
def call(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """`call("list victims", terminal=True)`: what the call prints to stdout."""
    place = tmp_path / "place"
    shutil.copytree(made, place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    capsys.readouterr()

    def printed(words: str, *, terminal: bool) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        argv = words.split()
        if "--help" not in argv:
            argv.append("-q") if argv[0] != "report" else None
        try:
            code = main(argv)
        except SystemExit as end:
            code = int(str(end.code))
        assert code in (0, 1, 3)
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("words", CALLS)
def test_text_fits_80_columns(words: str, call: Call) -> None:
    shown = TEXT.sub("", call(words, terminal=True))
    assert shown.strip()
    for line in shown.split("\n"):
        assert cell_len(line.rstrip()) <= 80, line


@pytest.mark.parametrize("words", CALLS)
def test_a_pipe_gets_no_colours(words: str, call: Call) -> None:
    assert "\x1b" not in call(words, terminal=False)


@pytest.mark.parametrize("words", JSON)
def test_every_verb_that_prints_a_result_prints_json(words: str, call: Call) -> None:
    form = ["-f", "json"]
    argv = words.removesuffix(" -f text")
    json.loads(call(" ".join([argv, *form]), terminal=False))


def test_in_a_pipe_every_row_is_one_line(call: Call) -> None:
    for what in ("victims", "attacks", "models"):
        rows = json.loads(call(f"list {what} -f json", terminal=False))
        lines = call(f"list {what}", terminal=False).splitlines()
        assert [line.split()[0] for line in lines[2:]] == [row["name"] for row in rows]
    combinations = json.loads(call("explain trace.pt --node 0 -f json", terminal=False))[0]["rows"]
    lines = call("explain trace.pt --node 0", terminal=False).splitlines()
    assert [line[0:1] for line in lines[3:-1]] == ["g"] * len(combinations)


def test_in_a_pipe_every_finding_is_one_whole_line(call: Call) -> None:
    claims = json.loads(call("reproduce --claims --row 10 --row 41 -f json", terminal=False))
    lines = call("reproduce --claims --row 10 --row 41", terminal=False).splitlines()
    for finding in (finding for row in claims for finding in row["findings"]):
        assert any(line.endswith(f"{finding['about']}: {finding['says']}") for line in lines)
    pitfalls = json.loads(call("trace lint noisy.pt -f json", terminal=False))
    lines = call("trace lint noisy.pt", terminal=False).splitlines()
    assert pitfalls
    for pitfall in pitfalls:
        assert f"    {pitfall['fix']}" in lines
        assert any(line.endswith(f"{pitfall['name']}: {pitfall['says']}") for line in lines)


# --- the table itself -------------------------------------------------------------------------------------------------

COLUMNS = (
    Column("name"),
    Column("count", right=True),
    Column("extra", spare=True),
    Column("what", text=True),
)
ROWS = [("short", "1", "e" * 20, "a few words " * 8), ("a longer name", "100", "f", "-")]


def lines(width: int | None, columns: tuple[Column, ...] = COLUMNS) -> list[str]:
    return table(columns, ROWS, width).plain.split("\n")


def test_without_a_width_every_row_is_one_line_and_numbers_are_right_aligned() -> None:
    heading, rule, first, second = lines(None)
    assert heading.split() == ["name", "count", "extra", "what"]
    assert set(rule) == {"─"}
    assert first.index("1") == second.index("100") + 2
    assert first.endswith("words")


def test_one_column_of_text_is_wrapped_at_words() -> None:
    found = lines(80)
    assert max(map(len, found)) <= 80
    wrapped = [line[43:] for line in found[2:-1]]
    assert " ".join(wrapped).split() == ("a few words " * 8).split()


def test_text_without_room_goes_below_its_row_and_spare_columns_go() -> None:
    found = lines(40)
    assert max(map(len, found)) <= 40
    assert found[0].split() == ["name", "count"]
    assert found[3].startswith("    what: a few words")
    assert found[-1].split() == ["a", "longer", "name", "100"]  # nothing below it for "-"


def test_two_columns_of_text_go_below_together() -> None:
    two = (Column("name", text=True), Column("count"), Column("extra"), Column("what", text=True))
    found = lines(60, two)
    assert found[0].split() == ["count", "extra"]
    assert found[3:5] == [
        "    name: short",
        "    what: a few words a few words a few words a few words a",
    ]


def test_styles_are_kept() -> None:
    found = table((Column("a"), Column("b")), [(Text("x", style="red"), "y")], 80)
    assert [str(span.style) for span in found.spans if "red" in str(span.style)] == ["red"]
