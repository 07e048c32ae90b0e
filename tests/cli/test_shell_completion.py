"""Completion in real shells: commands, options, names and files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pseudo import CODES, Terminal

from leakaudit.cli import _main, completion, main

SCRIPTS = sysconfig.get_path("scripts")
# Calls the function that bash calls when a user presses TAB, with the words typed so far.
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function=$(complete -p leakaudit | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" leakaudit "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str], place: Path) -> Path:
    assert main(["config", "completion", shell]) == 0
    file = place / f"completion.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["rec"], ["record"]),
        (["record", "dpn"], ["dpnorm"]),
        (["record", "--gr"], ["--graph"]),
        (["record", "pdmm", "--graph", "r"], ["ring", "rgg"]),
        (["record", "pdmm", "--model", "con"], ["convnet"]),
        (["attack", "trace.pt", "--attack", "an"], ["analytic"]),
        (["attack", "tra"], ["trace.pt"]),
        (["attack", "trace.pt", "--as", "eav"], ["eavesdropper"]),
        (["check", "-f", "ju"], ["junit"]),
        (["report", "out", "-f", "sar"], ["sarif"]),
        (["list", "victims", "pdm"], ["pdmm"]),
        (["trace", "inf"], ["info"]),
        (["check", "--upd"], ["--update"]),
        (["config", "completion", "ba"], ["bash"]),
    ],
)
def test_bash_completes(
    words: list[str], offered: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = script("bash", capsys, tmp_path)
    (tmp_path / "trace.pt").touch()
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", str(file), "leakaudit", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert sorted(done.stdout.split()) == sorted(offered), done.stderr


def test_bash_completes_every_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("bash", capsys, tmp_path)
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "ask", str(file), "leakaudit", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(_main.VERBS) <= set(done.stdout.split())


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_is_the_same_again_and_names_no_path(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for _ in range(2):
        assert main(["config", "completion", shell]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert os.fspath(Path.home()) not in texts[0].replace("$HOME", "")
    assert "pdmm" in texts[0]


@pytest.mark.parametrize(
    ("shell", "start", "install"),
    [
        ("bash", ["bash", "--norc", "-i"], 'eval "$(leakaudit config completion bash)"; PS1="> "'),
        (
            "zsh",
            ["zsh", "-f", "-i"],
            'autoload -Uz compinit; compinit -u -D; eval "$(leakaudit config completion zsh)"; PS1="> "',
        ),
    ],
)
def test_tab_completes_in_a_real_shell(
    shell: str, start: list[str], install: str, tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{SCRIPTS}:{Path(sys.executable).parent}:/usr/bin:/bin"
    terminal = Terminal(start, tmp_path, {"PATH": path, "HOME": str(tmp_path)})
    try:
        terminal.type(f"{install}; echo rea''dy\n")
        assert "ready" in CODES.sub("", terminal.read("ready"))
        for typed, completed in (
            ("leakaudit rec\t", "leakaudit record "),
            ("leakaudit record pdm\t", "leakaudit record pdmm "),
            ("leakaudit attack x --atta\t", "leakaudit attack x --attack "),
        ):
            terminal.type(typed)
            shown = terminal.read(completed, seconds=30.0)
            plain = re.sub(r".\x08", "", CODES.sub("", shown))
            assert completed in plain, repr(shown)
            terminal.type("\x15")  # erase the line
    finally:
        terminal.close()


def test_tcsh_reads_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("tcsh", capsys, tmp_path)
    if shutil.which("tcsh") is None:
        pytest.skip("tcsh is not installed")
    command = f"source {file}; complete leakaudit"
    done = subprocess.run(["tcsh", "-f", "-c", command], capture_output=True, text=True, check=True)
    assert "record" in done.stdout
