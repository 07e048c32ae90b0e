"""What a terminal of 80 columns shows, what a pipe gets, and similar names for what is mistyped."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pseudo import Screen, run

from leakaudit.cli import _main, main
from leakaudit.reporting.findings.wording import OUTCOMES, measured
from leakaudit.reporting.rendering import console
from leakaudit.reports.text import render

LEAKAUDIT = [sys.executable, "-m", "leakaudit"]
GOLDEN = Path(__file__).parents[1] / "golden" / "records"


def record(**gate: object) -> dict[str, Any]:
    """A gate's record with one leak that violates three rules."""
    made: dict[str, Any] = json.loads((GOLDEN / "check_v2.json").read_text())
    made["gate"] |= gate
    return made


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(GOLDEN / "check_v2.json", folder / "results.json")
    return folder


# --- a gate -----------------------------------------------------------------------------------------------------------


def shown(results: Path, *options: str, **environ: str) -> Screen:
    return run([*LEAKAUDIT, "report", str(results), "-f", "text", *options], results, environ)


def test_a_gate_on_a_terminal_is_coloured_and_cuts_no_word(results: Path) -> None:
    screen = shown(results)
    assert "\x1b[1;31m" in screen.raw, "what violates a limit is red"
    assert screen.code == 0
    lines = screen.text.split("\n")
    assert max(map(len, lines)) <= 80
    unwrapped = render(record())
    words = {word for word in unwrapped.split() if "─" not in word}
    assert {word for word in screen.text.split() if "─" not in word} <= words


def test_no_color_is_honoured(results: Path) -> None:
    screen = shown(results, NO_COLOR="1")
    assert "\x1b[1;31m" not in screen.raw
    assert "\x1b[32m" not in screen.raw


def test_a_pipe_gets_plain_text_without_blanks_at_the_end() -> None:
    page = render(record(), verbose=True)
    assert "\x1b" not in page
    assert not [line for line in page.split("\n") if line != line.rstrip()]


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly() -> None:
    closed, pipe = os.pipe()
    os.close(closed)
    words = [sys.executable, "-m", "leakaudit", "list", "victims"]
    done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True)
    os.close(pipe)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_leak_is_said_once_and_its_limits_follow() -> None:
    made = record()
    cell = made["gate"]["cells"][0]
    page = render({**made, "summary": "."})
    assert page.count(cell["says"]) == 1
    violated = [
        rule
        for rule in made["gate"]["rules"]
        if rule["cell"] == cell["name"] and rule["status"] in ("OVER", "REGRESSION")
    ]
    for rule in violated:
        assert measured(rule["measure"]) in page
    fine = [rule for rule in made["gate"]["rules"] if rule["status"] == "OK"]
    assert f"{len(fine)} rules within the limits" in page
    assert not [rule for rule in fine if rule["says"] in page]
    everything = render(made, verbose=True)
    assert [rule for rule in fine if rule["says"] in everything] == fine


def test_every_report_has_the_same_words_for_an_outcome() -> None:
    from leakaudit.core import registry

    made = record()
    words = {OUTCOMES[rule["status"]].word for rule in made["gate"]["rules"]} - {"ok"}
    assert words
    for name in ("text", "markdown", "html", "junit", "github", "sarif"):
        page = registry.get("reports", name)(made)
        severe = {w for w in words if w.isupper()}
        assert {w for w in severe if w not in page} == set(), name


# --- progress ---------------------------------------------------------------------------------------------------------


def test_the_share_of_nested_steps_grows_to_one() -> None:
    now = [0.0]
    overall = console._Overall("nodes", clock=lambda: now[0])
    overall.heard("hashing", 5, 10)
    assert overall.share is None
    shares: list[float] = []
    for node in range(4):
        overall.heard("nodes", node, 4)
        for k in range(3):
            now[0] += 1.0
            overall.heard("exact", k, 2)
            shares.append(overall.share or 0.0)
    assert overall.words == "nodes 3 of 4, exact 2 of 2"
    assert overall.remaining() is None
    ended = overall.heard("nodes", 4, 4)
    assert ended is not None
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert overall.share == pytest.approx(1.0)


def test_the_remaining_time_counts_only_what_this_run_did() -> None:
    now = [0.0]
    overall = console._Overall("cells", clock=lambda: now[0])
    overall.heard("cells", 50, 100)
    now[0] = 10.0
    overall.heard("cells", 75, 100)
    assert overall.remaining() == pytest.approx(10.0)


def test_a_stage_after_the_main_one_does_not_reset_it() -> None:
    overall = console._Overall("nodes")
    overall.heard("nodes", 2, 2)
    overall.heard("hashing", 1, 3)
    assert (overall.share, overall.words) == (1.0, "hashing 1 of 3")


def test_without_a_main_stage_the_outermost_counts() -> None:
    now = [0.0]
    overall = console._Overall(clock=lambda: now[0])
    for what in ("checking", "nodes"):
        now[0] += 1.0
        overall.heard(what, 0, 2)
        assert overall.share == 0.0
        overall.heard(what, 1, 2)
        assert overall.share == 0.5
        overall.heard(what, 2, 2)


def test_a_pipe_gets_one_line_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("leakaudit.reporting.rendering.console.time.monotonic", lambda: now[0])
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    lines = console._Lines(console._Overall("nodes", clock=lambda: now[0]))
    lines("hashing", 10, 10)
    for node in range(3):
        lines("nodes", node, 3)
        lines("analytic", 0, 1)
        now[0] += 5.0
        lines("analytic", 1, 1)
    lines("nodes", 3, 3)
    lines("analytic", 0, 1)
    assert said.getvalue() == "nodes 3 of 3, 15.0 s\n"


def test_a_terminal_sees_one_bar_and_keeps_none(place: Path) -> None:
    screen = run([*LEAKAUDIT, "attack", "trace.pt", "-o", "out"], place)
    assert screen.code == 0
    assert screen.raw.startswith("leakaudit: loading PyTorch")
    assert "ETA" in screen.raw
    kept = screen.raw.rpartition("\x1b[2K")[2]
    assert "ETA" not in kept
    assert "━" not in kept
    assert "An eavesdropper recovered all 4 training images" in kept
    assert "next: leakaudit report out -o out/report.html" in kept


# --- what is mistyped -------------------------------------------------------------------------------------------------

MISTYPED = {
    "record": ("--grpah", "--graph"),
    "attack": ("--nodee", "--node"),
    "explain": ("--fromat", "--format"),
    "bound": ("--smothness", "--smoothness"),
    "audit": ("--strct", "--strict"),
    "sweep": ("--worker", "--workers"),
    "reproduce": ("--papre", "--paper"),
    "check": ("--strit", "--strict"),
    "report": ("--agianst", "--against"),
    "purge": ("--ye", "--yes"),
    "trace info": ("--formt", "--format"),
    "trace lint": ("--strct", "--strict"),
    "trace convert": ("--outptu", "--output"),
    "tap": ("--ouput", "--output"),
    "list": ("--lnog", "--long"),
    "demo": ("--sede", "--seed"),
    "doctor": ("--formt", "--format"),
    "config": ("--formt", "--format"),
    "init": ("--rnu", "--run"),
    "view": ("--prot", "--port"),
}


def test_every_verb_is_mistyped_here() -> None:
    assert {words.split()[0] for words in MISTYPED} | {"trace"} == set(_main.VERBS)


@pytest.mark.parametrize("words", MISTYPED)
def test_a_mistyped_option_gets_a_similar_one(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed, meant = MISTYPED[words]
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), typed, "x"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert said.startswith(f"leakaudit {words}: there is no option {typed}; ")
    if words != "trace convert":
        assert f"; did you mean {meant}?; " in said


@pytest.mark.parametrize("old", _main.RENAMED)
def test_an_old_spelling_names_the_new_one_and_still_works(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for words in (old, _main.RENAMED[old]):
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), "--help"])
        assert ended.value.code == 0
        texts.append(capsys.readouterr())
    assert texts[0].out == texts[1].out
    assert texts[0].err == f"leakaudit: '{old}' is now '{_main.RENAMED[old]}'\n"
    assert texts[1].err == ""
    assert old.split()[0] not in _main.VERBS


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("report out --rescore --redact --table cells", "--table, --redact: not with --rescore"),
        ("report out --truth t.pt", "--truth: only with --rescore"),
        ("doctor --runs 3 --alpha 0.1", "--runs, --alpha: only with --statistics"),
        ("check --reason more", "--reason: only with --update"),
        (
            "check --show --strict --dry-run",
            "--strict, --dry-run: not with --update, --diff or --show",
        ),
        ("check --diff -f junit", "-f: expected text or json with --update, --diff or --show"),
        ("check main --show", "main: names of checks are only for --update"),
        ("config show bash", "bash: only after 'config completion'"),
        ("config completion", "expected one of bash, zsh, tcsh after 'config completion'"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.endswith(f": {says}\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("D-PSGD", "dpsgd"),
        ("DP-Norm", "dpnorm"),
        ("DP-RECAL", "recal"),
        ("DP-dKM", "dkm"),
        ("SecureD-FL", "secured"),
        ("FedAvg", "fedavg"),
        ("FedSGD", "fedsgd"),
        ("PDMM", "pdmm"),
        ("PVP-ADMM", "pvpadmm"),
        ("CHOCO-SGD", "choco"),
        ("DiLoCo", "diloco"),
    ],
)
def test_a_protocol_is_found_as_papers_write_it(
    written: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", written]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"there is no victim {written!r}; did you mean {name!r}?" in said


def test_a_mistyped_action_gets_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trace", "inof"])
    assert "ACTION: there is no 'inof'; did you mean 'info'?" in capsys.readouterr().err
