"""A gate of a command: it runs under the tap with every seed, and ends in one line if it cannot."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest
from tapping import leakaudit, torchrun

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "noisy_ddp.py"
GATE = """
[gate]
seeds = 2
baseline = ""
[check.main]
tap = {}
truth = "records.npz"
rounds = 4
describe = "tap.toml"
timeout = 200
attacks = ["exact"]
[[budget]]
measure = "recovered"
most = 0.9
"""
DESCRIPTION = """
payload = "gradients"
[params]
samples = 1
sigma = 0.2
[model]
name = "mlp"
args = { hidden = 16 }
shape = [1, 8, 8]
classes = 2
"""


def write(folder: Path, *command: str, old: str = "", new: str = "") -> None:
    """Write a gate of a command, and the description of its messages."""
    gate = GATE.format(f"'''{shlex.join(command)}'''")
    assert old in gate
    (folder / "leakaudit.toml").write_text(gate.replace(old, new))
    (folder / "tap.toml").write_text(DESCRIPTION)


def line(folder: Path, code: int) -> str:
    """Run the gate, which has to end with this code; return the last line that it prints."""
    done = leakaudit(folder, "check", check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    last: str = done.stderr.strip().splitlines()[-1]
    return last


@pytest.mark.slow
def test_a_gate_of_a_torchrun_program_passes_with_its_noise_and_fails_without(
    tmp_path: Path,
) -> None:
    write(tmp_path, *torchrun(PROGRAM, "--noise", "0.2"))
    done = leakaudit(tmp_path, "check", "--strict", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Every seed runs once; more may follow if two recordings cannot tell what they contain.
    assert (tmp_path / "seeds").read_text().split()[:2] == ["0", "1"]
    write(tmp_path, *torchrun(PROGRAM))
    done = leakaudit(tmp_path, "check", check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "OVER BUDGET" in done.stdout
    assert "insufficient noise" in done.stdout
    write(tmp_path, *torchrun(PROGRAM, "--noise", "0.2", "--steps", "3"))
    done = leakaudit(tmp_path, "check", check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "CONTROL FAILED" in done.stdout


@pytest.mark.slow
def test_init_describes_a_command_and_says_what_is_to_be_filled_in(tmp_path: Path) -> None:
    command = shlex.join(torchrun(PROGRAM, "--noise", "0.2"))
    done = leakaudit(tmp_path, "init", "--tap", command, check=False)
    assert done.returncode == 3, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tap.toml: gradients (sure), fedsgd; to be filled in: model.name")
    assert "complete it, then: leakaudit check --update" in last
    assert "NOT KNOWN" in (tmp_path / "tap.toml").read_text()
    said = line(tmp_path, 2)
    assert "tap.toml: model.name: still NOT KNOWN; enter the value of the program" in said
    (tmp_path / "leakaudit.toml").unlink()
    (tmp_path / "tap.toml").write_text(DESCRIPTION)
    leakaudit(tmp_path, "init", "--tap", command, "--no-baseline")
    written = tomllib.loads((tmp_path / "leakaudit.toml").read_text())["check"]["main"]
    assert (written["tap"], written["rounds"]) == (command, 4)
    assert (written["describe"], written["truth"]) == ("tap.toml", "records.npz")
    assert (tmp_path / "tap.toml").read_text() == DESCRIPTION


@pytest.mark.slow
def test_what_a_gate_has_to_be_told_about_a_program_is_one_line_and_code_2(tmp_path: Path) -> None:
    program = torchrun(PROGRAM, "--noise", "0.2")
    write(tmp_path, *program, old="rounds = 4\n")
    assert "the program trained 4 with seed 0: if these are all, set rounds = 4" in line(
        tmp_path, 2
    )
    write(tmp_path, *program, old='describe = "tap.toml"\n')
    said = line(tmp_path, 2)
    assert "the messages are not understood: gradients (sure), fedsgd; to be filled in: " in said


@pytest.mark.parametrize(
    ("command", "old", "new", "code", "says"),
    [
        ("sh -c 'exit {seed}3'", "", "", 4, "tap: the program ended with code 3 with seed 0"),
        ("true", "", "", 4, "tap: no messages of the program were recorded: it sent none"),
        ("sleep 60", "200", "0.2", 4, "did not end with seed 0 within 0.2 s, the check's timeout"),
        ("no-such-program", "", "", 2, "cannot run 'no-such-program': No such file or directory"),
        ("true", "tap.toml", "other.toml", 2, "other.toml: No such file or directory"),
    ],
)
def test_a_command_that_leaves_no_recording_ends_the_gate_in_one_line(
    tmp_path: Path, command: str, old: str, new: str, code: int, says: str
) -> None:
    write(tmp_path, *shlex.split(command), old=old, new=new)
    assert says in line(tmp_path, code)
