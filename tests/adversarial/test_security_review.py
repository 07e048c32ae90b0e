"""The 26 defects that an independent review found, each with a test that fails if it comes back.

A number in a docstring is that of the review; `REVIEWED` names the tests of all of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from rich.text import Text

from leakaudit._util import own_code
from leakaudit._util.files import mode, private_folder, replacing
from leakaudit._util.untrusted import npz
from leakaudit.capture.tap.messages import description
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec
from leakaudit.judging.gate import untrusted
from leakaudit.protocols import topology
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.training_curves import to_csv
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.rendering.console import printed
from leakaudit.reporting.rendering.tables import Column, table
from leakaudit.reporting.results import provenance
from leakaudit.runs.sweeping.run import SweepOptions
from leakaudit.tasks.task import Task
from leakaudit.views.accounting.adversaries import named
from leakaudit.views.accounting.compare import compare

# Modules that leakaudit, torch and Python import early, late, or only for some commands.
SHADOWED = ("fractions", "scipy", "torch", "numpy", "selectors", "tempfile", "matplotlib", "joblib")
PLANTED = "open(__file__ + '.was-imported', 'w').close()\n"
COMMAND = Path(sys.executable).with_name("leakaudit")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trapped(place: Path) -> Iterator[Path]:
    """A current folder with modules that report when they are imported; none may be."""
    for name in SHADOWED:
        (place / f"{name}.py").write_text(PLANTED)
    yield place
    assert not list(place.rglob("*.was-imported"))


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a call that must be refused in one line."""
    assert main([*argv]) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1, err
    return err


# --- code that nobody allowed -------------------------------------------------------------------

RECORD = ("record", "dpsgd", "--nodes", "3", "--rounds", "1", "--model", "mlp", "-q")
PLAN = """
[scenario]
victim = "fedsgd"
nodes = 2
rounds = 1
model = "logistic"
[sweep]
attacks = ["labels"]
seeds = 1
"""


@pytest.mark.parametrize(
    "command",
    [[str(COMMAND)], [sys.executable, "-P", "-m", "leakaudit"]],
    ids=["command", "safe path"],
)
def test_modules_of_the_current_folder_are_not_imported(trapped: Path, command: list[str]) -> None:
    """Neither by the command nor by the processes that it starts (4)."""
    (trapped / "plan.toml").write_text(PLAN)
    environment = {**os.environ, "PYTHONSAFEPATH": ""}
    for words in (
        (*RECORD, "-o", "trace.pt"),
        (*RECORD, "-o", "gloo.pt", "--engine", "gloo"),
        ("attack", "trace.pt", "-q"),
        ("sweep", "plan.toml", "--workers", "2", "-o", "swept", "-q"),
    ):
        done = subprocess.run(
            [*command, *words],
            cwd=trapped,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)


def test_python_m_imports_nothing_from_the_current_folder_after_its_start(place: Path) -> None:
    """Python itself may do so before our first line runs; then `-P` is needed (6)."""
    for name in ("fractions", "torch", "scipy", "numpy"):
        (place / f"{name}.py").write_text(PLANTED)
    words = [sys.executable, "-m", "leakaudit", *RECORD, "-o", "trace.pt"]
    environment = {**os.environ, "PYTHONSAFEPATH": ""}
    subprocess.run(words, cwd=place, env=environment, check=True)
    assert not list(place.glob("*.was-imported"))


def test_the_action_runs_the_command_and_isolated_pythons(project: Path) -> None:
    """A folder leakaudit/ of the repository must not be what runs (6)."""
    script = (project / "action.yml").read_text()
    commands = [line for line in script.splitlines() if not line.strip().startswith("#")]
    assert not [line for line in commands if "python" in line and "-m leakaudit" in line]
    assert all(
        "python -I" in line or "python -P" in line for line in commands if "python -" in line
    )


OWN = """
import subprocess
from os import system
from subprocess import run
from torch import nn
from torch.nn import Linear
made = []
def net(shape, classes):
    made.append(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(shape[0], classes))
short = lambda shape, classes: net(shape, classes)
class Plain:
    def __new__(cls):
        open("PWNED", "w").close()
"""


@pytest.fixture
def own(place: Path) -> Iterator[Path]:
    (place / "own_nets.py").write_text(OWN)
    yield place
    sys.modules.pop("own_nets", None)


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("os:system", {"command": "touch PWNED"}),
        ("subprocess:run", {"args": ["touch", "PWNED"]}),
        ("torch.hub:load", {"repo_or_dir": ".", "model": "x", "source": "local"}),
        ("builtins:exec", {}),
        ("own_nets:system", {"command": "touch PWNED"}),
        ("own_nets:run", {"args": ["touch", "PWNED"]}),
        ("own_nets:Plain", {}),
    ],
)
def test_a_factory_is_a_module_class_or_a_function_of_its_module(
    own: Path, model: str, args: dict[str, object]
) -> None:
    """(5), even if the user trusts the name."""
    spec = TaskSpec(model, args, shape=(4,), classes=2)  # type: ignore[arg-type]
    with pytest.raises(LeakauditError, match=r"a subclass of torch\.nn.Module, or a function that"):
        Task.build(spec, trusted=model)
    assert not (own / "PWNED").exists()


@pytest.mark.parametrize("model", ["own_nets:net", "own_nets:Net", "own_nets:short"])
def test_trust_names_one_factory(own: Path, model: str) -> None:
    spec = TaskSpec(model, {}, shape=(4,), classes=2)
    path = list(sys.path)
    for other in (False, "own_nets:other", "own_nets", ""):
        with pytest.raises(LeakauditError, match=f"pass --trust-model {model}"):
            Task.build(spec, trusted=other)
    assert "own_nets" not in sys.modules
    assert Task.build(spec, trusted=model).layout.size == 10
    assert sys.path == path


def test_installed_modules_come_before_those_of_an_importable_folder(
    trapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder becomes importable for a trusted factory, but not in place of what is installed."""
    monkeypatch.delitem(sys.modules, "fractions", raising=False)
    with own_code.importable(str(trapped)):
        import fractions
    assert Path(fractions.__file__).parent != trapped


@pytest.mark.parametrize("verb", ["merge", "tap"])
def test_a_description_runs_no_code_by_itself(
    own: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tap description is a file like any other (5)."""
    text = 'payload = "weights"\n[model]\nname = "own_nets:net"\nshape = [4]\nclasses = 2\n'
    (own / "tap.toml").write_text(text)
    (own / "log.tap").mkdir()
    words = ["tap", "merge", "log.tap", "--describe", "tap.toml"]
    if verb == "tap":
        words = ["tap", "--describe", "tap.toml", "--", sys.executable, "-c", "pass"]
    assert "--trust-model own_nets:net" in said(capsys, *words)
    assert "own_nets" not in sys.modules
    assert description.read(own / "tap.toml", "own_nets:net").sizes == (8, 2, 10)


def test_a_scenario_of_the_gate_cannot_name_any_function(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(5)"""
    scenario = '{ victim = "fedsgd", nodes = 2, rounds = 1, model = "os:system", '
    scenario += 'set = { command = "touch PWNED" } }'
    (place / "leakaudit.toml").write_text(f"[gate]\nseeds = 1\n[check.a]\nscenario = {scenario}\n")
    assert "a subclass of torch.nn.Module" in said(capsys, "check", "-q")
    assert not (place / "PWNED").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("download = true", "a file cannot allow downloads (at line 1)"),
        ('output = "/other/.config"', "expected a folder in that of the file"),
        ('output = "../elsewhere"', "expected a folder in that of the file"),
        ('output = "linked/results"', "expected a folder in that of the file"),
    ],
)
@pytest.mark.parametrize("file", ["leakaudit.toml", "pyproject.toml"])
def test_a_configuration_neither_downloads_nor_writes_elsewhere(
    place: Path, text: str, complaint: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """(13)"""
    head = "[tool.leakaudit]\n" if file == "pyproject.toml" else ""
    (place / file).write_text(head + text + "\n")
    (place / "linked").symlink_to(place.parent)
    line = 2 if head else 1
    assert complaint.replace("line 1", f"line {line}") in said(capsys, "config", "show")


@pytest.mark.parametrize("words", [["check", "--untrusted"], ["check"], ["attack", "a.pt"]])
def test_a_planted_output_folder_is_no_link_to_elsewhere(
    place: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` deleted the results of the folder that it led to."""
    (place / "project").mkdir()
    (place / "results.json").write_text("of another run")
    os.chdir(place / "project")
    Path("leakaudit-out").symlink_to("..")
    Path("leakaudit.toml").write_text(SPYING)
    assert main(words) == 2
    assert "leakaudit-out is a link to a place outside" in capsys.readouterr().err
    assert (place / "results.json").read_text() == "of another run"


def test_a_gate_does_not_write_its_baseline_elsewhere(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(13)"""
    scenario = '{ victim = "fedsgd", nodes = 2, rounds = 1, model = "logistic" }'
    text = f'[gate]\nseeds = 1\nbaseline = "../b.json"\n[check.a]\nscenario = {scenario}\n'
    (place / "leakaudit.toml").write_text(text)
    complaint = said(capsys, "check", "--update", "--reason", "x", "-q")
    assert "expected a file inside the folder of the configuration" in complaint


# --- the gate for code of strangers -------------------------------------------------------------

SPY = """
import os, socket, sys
import torch, leakaudit as la

def attempt(name, act):
    try:
        act()
    except (OSError, KeyError) as error:
        sys.stderr.write(f"{name}: {type(error).__name__}\\n")
    else:
        sys.stderr.write(f"{name}: ALLOWED\\n")

def environments():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found = open(f"/proc/{name}/environ", "rb").read()
            except OSError:
                continue
            if b"ENVSECRET123" in found:
                return
    raise PermissionError

attempt("secret", lambda: os.environ["API_TOKEN"])
attempt("TCP", lambda: socket.socket())
attempt("UDP", lambda: socket.socket(type=socket.SOCK_DGRAM))
attempt("Unix", lambda: socket.socket(socket.AF_UNIX))
attempt("token of git", lambda: open(".git/config").read())
attempt("token of a link", lambda: open("innocent/config").read())
attempt("token of a part", lambda: open("part/.git/config").read())
attempt("token of a library", lambda: open("../lib/.git/config").read())
attempt("other file", lambda: open("../secret.txt").read())
attempt("linked file", lambda: open("linked/secret.txt").read())
attempt("passwords", lambda: open("/etc/shadow").read())
attempt("shared memory", lambda: open("/dev/shm/" + open("name.txt").read()))
attempt("permissions", lambda: os.chmod("../secret.txt", 0o644))
attempt("time", lambda: os.utime("../secret.txt"))
attempt("command line", lambda: open(open("cmdline.txt").read()).read())
attempt("write", lambda: open("written.txt", "w"))
attempt("environments", environments)
attempt("signal", lambda: os.kill(int(open("../pid").read()), 0))
sys.stderr.write("::error::forged\\x1b[2J\\n")

def train(seed, path):
    public = dict(order="adapt", noise="message", sigma=9.0)
    scenario = la.Scenario(
        victim="dpsgd", nodes=3, rounds=2, model="logistic", seed=seed, set=public
    )
    la.record(scenario, path)
"""
SPYING = """
[gate]
seeds = 1
baseline = ""
[check.a]
run = "spy:train"
lint = "off"
attacks = ["labels"]
[[budget]]
measure = "exact"
most = 0.0
"""


@pytest.fixture
def stranger(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose program tries to get out, and what it is after."""
    project = place / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "config").write_text("token")
    (project / "innocent").symlink_to(".git")
    (project / "linked").symlink_to("..")
    for above in (place / "lib", project / "part"):
        (above / ".git").mkdir(parents=True)
        (above / ".git" / "config").write_text("token")
    (project / "spy.py").write_text(SPY)
    (project / "cmdline.txt").write_text(f"/proc/{os.getpid()}/cmdline")
    (project / "leakaudit.toml").write_text(SPYING)
    (place / "secret.txt").write_text("secret")
    (place / "secret.txt").chmod(0o600)
    (place / "pid").write_text(str(os.getpid()))
    monkeypatch.chdir(project)
    return project


@pytest.mark.skipif(sys.platform != "linux", reason="the mechanisms are those of Linux")
def test_an_untrusted_gate_reaches_no_network_secret_or_file(stranger: Path) -> None:
    words = [str(COMMAND), "check", "--untrusted", "-o", "out", "-f", "junit=junit.xml"]
    environment = {
        **os.environ,
        "API_TOKEN": "ENVSECRET123",
        "PYTHONSAFEPATH": "",
        "PYTHONPATH": str(stranger.parent / "lib"),
    }
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:
        (stranger / "name.txt").write_text(Path(shared.name).name)
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr  # the budgets hold, one control does not
    if "not isolated" in done.stderr:
        pytest.skip(done.stderr)
    lines = done.stderr.splitlines()
    tried = dict(re.findall(r"^(\w[^:]*): ([^:]*)$", done.stderr, re.MULTILINE))
    assert {tried.pop(name) for name in ("Unix", "TCP", "UDP", "signal")} <= {
        "PermissionError",
        "ProcessLookupError",
    }
    assert tried.pop("secret") == "KeyError"
    files = ("token of git", "token of a part", "token of a library", "other file", "environments")
    assert {tried.pop(name) for name in files} == {"PermissionError"}
    assert len(tried) == 9
    assert "ALLOWED" not in done.stderr
    assert stat.S_IMODE((stranger.parent / "secret.txt").stat().st_mode) == 0o600
    assert ": :error::forged [2J" in lines
    assert not (stranger / "written.txt").exists()
    assert (stranger / "junit.xml").is_file()
    assert [path.name for path in (stranger / "out").iterdir()] == ["results.json"]


@pytest.mark.skipif(sys.platform != "linux", reason="the mechanisms are those of Linux")
@pytest.mark.parametrize("broken", ["_namespaces", "_landlock", "_filter"])
def test_each_mechanism_is_replaced_by_the_others_or_its_absence_is_said(
    stranger: Path, broken: str
) -> None:
    code = (
        "import sys; from pathlib import Path; from leakaudit._util.isolation import sandbox\n"
        f"sandbox.{broken} = lambda *_: False\n"
        "base = [Path(p) for p in ('/usr', '/lib', '/lib64', '/proc', *sys.path) if p]\n"
        "missing = sandbox.enter([], base, [Path('.')], 1 << 20)\n"
        "import socket\n"
        "try:\n"
        "    socket.create_connection(('127.0.0.1', 9), 1)\n"
        "except OSError as error:\n"
        "    print(missing, error.errno not in (111, 110))\n"
    )
    words = [sys.executable, "-P", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    shared = [
        "permissions of files",
        "shared memory",
        "command lines of other processes",
        "processes that it leaves behind",
    ]
    expected = {
        "_namespaces": f"{shared} True\n",
        "_landlock": "['files'] True\n",
        "_filter": "[] True\n",
    }
    if done.stdout != expected[broken]:
        pytest.skip(f"this system does not provide the others: {done.stdout}{done.stderr}")


SWAPPING = """
import os, time
if not os.fork():
    os.setsid()
    out = os.path.dirname(os.environ["TMPDIR"]) + "/out"
    while not os.path.exists(out + "/results.json"):
        time.sleep(0.01)
    os.rename(out, out + "-mine")
    os.symlink(OTHERS, out)
    time.sleep(30)
    os._exit(0)
from spy import train
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the mechanisms are those of Linux")
def test_an_untrusted_program_cannot_hand_over_files_of_others(stranger: Path) -> None:
    """It put a link to a folder of its user in the place of its results, which were copied."""
    others = stranger.parent / "others"
    others.mkdir()
    (others / "leak.png").write_bytes(b"picture of another run")
    (stranger / "swap.py").write_text(SWAPPING.replace("OTHERS", repr(str(others))))
    (stranger / "leakaudit.toml").write_text(SPYING.replace("spy:train", "swap:train"))
    begun = time.monotonic()
    subprocess.run([str(COMMAND), "check", "--untrusted"], capture_output=True, check=False)
    assert time.monotonic() - begun < 300
    written = [path.name for path in (stranger / "leakaudit-out").iterdir()]
    assert "leak.png" not in written


def test_what_an_untrusted_estimate_prints_is_text(
    stranger: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (stranger / "plug.py").write_text(r"print('::add-mask::x\n\x1b]0;title\x07', flush=True)")
    main(["check", "--untrusted", "--dry-run", "--plugin", "plug"])
    shown = capfd.readouterr().out
    assert ": :add-mask::x" in shown.splitlines()
    assert "title" in shown
    assert "\x1b" not in shown


def test_output_of_processes_that_are_left_behind_is_not_waited_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = "import os, time; os.write(2, b'said'); os.fork() or time.sleep(100)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, bufsize=0, start_new_session=True
    ) as process:
        begun = time.monotonic()
        untrusted._relay(process)
        assert time.monotonic() - begun < 60
        os.killpg(process.pid, signal.SIGKILL)
    assert capfd.readouterr().err == "said\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the mechanisms are those of Linux")
def test_a_project_with_a_git_folder_may_have_thousands_of_files(stranger: Path) -> None:
    """Each is allowed by itself then, and the list was an argument of a process."""
    name = "a" * 200
    for number in range(1500):
        (stranger / f"{name}{number}").touch()
    (stranger / "spy.py").write_text("raise SystemExit('so far')\n")
    done = subprocess.run(
        [str(COMMAND), "check", "--untrusted"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "so far" in done.stderr


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_an_untrusted_program_that_ends_the_gate_is_no_pass(stranger: Path, ending: str) -> None:
    (stranger / "spy.py").write_text(f"import os, sys\n{ending}\n")
    assert main(["check", "--untrusted", "-q"]) == 4
    assert not (stranger / "leakaudit-out" / "results.json").exists()


def test_what_cannot_be_isolated_is_said(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leakaudit._util.isolation import sandbox

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sandbox, "_limit", lambda largest: None)
    missing = sandbox.enter([], [], [], 0)
    assert missing == ["the network", "files", "other processes"]


def test_no_code_of_an_untrusted_project_is_imported_by_the_gate_itself(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plug-ins are imported by the isolated process only."""
    (stranger / "my_plugin.py").write_text("import os\nos._exit(7)\n")
    assert main(["check", "--untrusted", "-q", "--plugin", "my_plugin"]) == 4
    monkeypatch.setenv("LEAKAUDIT_PLUGINS", "my_plugin")
    assert main(["check", "--untrusted", "-q"]) == 4


# --- privacy of what is written -----------------------------------------------------------------


def test_the_command_line_of_a_tapped_program_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(10)"""
    words = ["/bin/leakaudit", "tap", "-o", "t.pt", "--", "/home/me/prog.py", "--api-key", "SECRET"]
    monkeypatch.setattr(sys, "argv", words)
    assert provenance.command() == "leakaudit tap -o t.pt -- prog.py"
    monkeypatch.setattr(sys, "argv", words[:5])
    assert provenance.command() == "leakaudit tap -o t.pt --"


def test_all_that_is_written_is_private(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the umask allows to others (11)."""
    before = os.umask(0)
    try:
        assert main([*RECORD, "-o", "trace.pt"]) == 0
        assert main([*RECORD, "-o", "shards/"]) == 0
        assert main(["attack", "trace.pt", "-o", "out/deep", "-q"]) == 0
        assert main(["report", "out/deep", "-o", "page.html", "-q"]) == 0
        assert main(["trace", "convert", "trace.pt", "trace.npz"]) == 0
        (place / "plan.toml").write_text(PLAN)
        assert main(["sweep", "plan.toml", "--workers", "1", "-o", "swept", "-q"]) == 0
    finally:
        os.umask(before)
    (place / "plan.toml").unlink()
    open_to_others = {
        str(path.relative_to(place)): oct(path.stat().st_mode)
        for path in place.rglob("*")
        if path.stat().st_mode & 0o077
    }
    assert open_to_others == {}
    assert len(list(place.rglob("*"))) > 15


def test_stricter_permissions_of_a_file_are_kept(place: Path) -> None:
    """(11)"""
    file = place / "trace.pt"
    assert mode(file) == 0o600
    file.touch()
    for given, expected in ((0o644, 0o600), (0o600, 0o600), (0o400, 0o400)):
        file.chmod(given)
        with replacing(file) as out:
            out.write(b"new")
        assert stat.S_IMODE(file.stat().st_mode) == expected


def test_an_existing_folder_keeps_its_permissions(place: Path) -> None:
    (place / "shared").mkdir()
    (place / "shared").chmod(0o755)
    private_folder(place / "shared" / "a" / "b")
    private_folder(place / "shared")
    modes = [stat.S_IMODE((place / name).stat().st_mode) for name in ("shared", "shared/a")]
    assert modes == [0o755, 0o700]


def test_a_planted_link_is_neither_followed_nor_guessed(place: Path) -> None:
    """(15): the temporary file has a random name, and a link at the final name is replaced."""
    (place / "victim.txt").write_text("mine")
    (place / "results.json").symlink_to("victim.txt")
    (place / f".results.json.{os.getpid()}.tmp").symlink_to(place / "victim.txt")
    names = set()
    for _ in range(2):
        with replacing(place / "results.json") as out:
            names |= {path.name for path in place.glob(".results.json.*.tmp")}
            out.write(b"{}")
    assert len(names) == 3
    assert (place / "victim.txt").read_text() == "mine"
    assert not (place / "results.json").is_symlink()
    assert (place / "results.json").read_text() == "{}"


def test_two_runs_may_start_in_one_folder(place: Path) -> None:
    """(16): no name is common to the probes of two processes."""
    from leakaudit.reporting.results.output_folder import ready

    out = place / "out"
    with ready(out), ready(out):
        assert not list(out.glob("*probe*"))


def test_the_trace_names_no_secret_of_the_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "ENVSECRET123")
    assert main([*RECORD, "-o", "trace.pt", "--curves"]) == 0
    for path in place.rglob("*"):
        assert path.is_dir() or b"ENVSECRET123" not in path.read_bytes()


# --- numbers of a file, against its size ---------------------------------------------------------


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> str:
    """Write a trace whose description or tensors were changed."""
    assert main([*RECORD, "-o", "honest.pt"]) == 0
    tree = torch.load("honest.pt", weights_only=True)
    meta = json.loads(tree["meta"])
    change(meta, tree)
    torch.save({**tree, "meta": json.dumps(meta)}, path)
    return str(path)


def last_round(number: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(meta: dict[str, Any], tree: dict[str, Any]) -> None:
        tree["messages"]["round"][-1] = number

    return change


def constants(**values: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda meta, tree: meta["params"].update(values)


@pytest.mark.parametrize("verb", [("trace", "info"), ("bound",), ("explain",), ("attack",)])
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda meta, tree: meta.update(nodes=10**6), "its topology has 1000000 nodes"),
        (last_round(2**31 - 1), "go up to round 2147483647, expected at most 100400 rounds"),
    ],
    ids=["nodes", "rounds"],
)
def test_nodes_and_rounds_go_with_the_size_of_the_file(
    place: Path,
    verb: tuple[str, ...],
    change: Callable[[dict[str, Any], dict[str, Any]], None],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """(8)"""
    assert complaint in said(capsys, *verb, edited(place / "trace.pt", change))


def memory_of_a_bound(rounds: int) -> int:
    """Peak bytes while one node of D-PSGD is bounded, as an eavesdropper sees it."""
    victim = registry.configure(registry.get("victims", "dpsgd"), {"sigma": 1.0})
    graph = topology.make("ring", 5, torch.Generator())
    protocol = Protocol(victim, graph, rounds, {"w0": torch.zeros(1)})
    tracemalloc.start()
    try:
        list(compare(protocol, named([Adversary()], [0], 5)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak


@pytest.mark.slow
def test_the_memory_of_a_bound_grows_with_the_rounds_and_not_with_their_square() -> None:
    """(9)"""
    memory_of_a_bound(50)  # loads what is needed once
    assert memory_of_a_bound(4_000) < 2.6 * memory_of_a_bound(2_000)


@pytest.mark.parametrize("name", ["samples", "batch"])
def test_an_attack_does_not_allocate_what_a_file_declares(
    place: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """(8)"""
    trace = edited(place / "trace.pt", constants(**{name: 10**9}))
    assert "declares 1000000000 records of shape (1, 25, 25)" in said(capsys, "attack", trace, "-q")


def test_a_model_is_not_run_before_its_activations_are_counted() -> None:
    """(8)"""
    spec = TaskSpec("convnet", {"width": 8}, shape=(1, 4096, 4096), classes=2)
    with pytest.raises(LeakauditError, match=r"parameters|activations"):
        Task.build(spec)
    spec = TaskSpec("resnet10", {}, shape=(3, 2048, 2048), classes=2)
    with pytest.raises(LeakauditError, match=r"would compute [0-9]+ activations"):
        Task.build(spec)


def test_a_declaration_ends_at_its_deadline_and_at_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(8): `params.steps = 10**9` is a loop of the protocol's declaration."""
    from leakaudit.core.progress import watching
    from leakaudit.theory.relations import declare

    def endless() -> None:
        declared = declare.Relations()
        for t in declared.rounds(10**9):
            declared.secret("s", 0, t)

    with watching(seconds=0.0), pytest.raises(LeakauditError, match="the time limit was reached"):
        endless()
    monkeypatch.setattr(declare, "LARGEST", 100_000)
    with pytest.raises(LeakauditError, match="more than 100,000 relations and vectors"):
        endless()


def test_a_sweep_has_a_number_of_seeds_that_can_be_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(8)"""
    (place / "plan.toml").write_text(PLAN.replace("seeds = 1", "seeds = 2000000000"))
    complaint = said(capsys, "sweep", "plan.toml", "-q")
    assert "expected at most 1000000 seeds, got 2000000000" in complaint


def archive(path: Path, shape: tuple[int, ...], zeros: int) -> Path:
    """An .npz whose array x has some zeros, and a header that declares any shape."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    with ZipFile(path, "w", ZIP_DEFLATED) as file, file.open("x.npy", "w", force_zip64=True) as out:
        out.write(head.getvalue())
        for _ in range(zeros >> 20):
            out.write(bytes(1 << 20))
    return path


def test_an_npz_does_not_unpack_to_gigabytes(place: Path) -> None:
    """(8): pictures, records of a tap and weights of LPIPS are all read in this way."""
    file = archive(place / "bomb.npz", (300 << 20,), 300 << 20)
    assert file.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match=r"it unpacks to [0-9]+ bytes, expected at most 268435456"):
        npz.Npz(file)
    complaint = "it declares 1000000000000 bytes, expected at most"
    lying = archive(place / "lies.npz", (10**12,), 1 << 20)
    with npz.Npz(lying) as lies, pytest.raises(ValueError, match=complaint):
        lies["x"]
    with npz.Npz(archive(place / "sound.npz", (1 << 20,), 1 << 20)) as sound:
        assert sound["x"].sum() == 0
    np.savez(place / "objects.npz", x=np.array([{}], dtype=object))
    with npz.Npz(place / "objects.npz") as objects, pytest.raises(ValueError, match="never loaded"):
        objects["x"]
    (place / "none.npz").write_bytes(b"PK no archive")
    with pytest.raises(ValueError, match="not a zip file"):
        npz.Npz(place / "none.npz")


@pytest.mark.parametrize("file", ["reconstructions.npz", "originals.npz"])
@pytest.mark.parametrize("damage", ["bomb", "cut"])
def test_hostile_pictures_of_results_are_refused(
    place: Path, file: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """(8, 23): also if results.json has the digest of the hostile file."""
    assert main([*RECORD, "-o", "trace.pt"]) == 0
    assert main(["attack", "trace.pt", "-o", "out", "-q"]) == 0
    hostile = place / "out" / file
    if damage == "cut":
        data = bytearray(hostile.read_bytes())
        data[80:200] = bytes(120)
        hostile.write_bytes(data)
    else:
        archive(hostile, (300 << 20,), 300 << 20)
    record = json.loads((place / "out/results.json").read_text())
    record["files"][file] = hashlib.sha256(hostile.read_bytes()).hexdigest()
    (place / "out/results.json").write_text(json.dumps(record))
    capsys.readouterr()
    assert "could not read" in said(capsys, "report", "out", "-o", "page.html", "-q")
    if file == "reconstructions.npz":
        words = ("report", "out", "--rescore", "--truth", "trace.truth.pt", "-q")
        assert "reconstruction" in said(capsys, *words)


def test_a_peer_of_a_tap_log_is_a_process(place: Path) -> None:
    """(8): a graph of 2**32 nodes would follow from one number of a log."""
    from leakaudit.capture.tap.log.reading import read_logs
    from leakaudit.capture.tap.log.writing import Log
    from leakaudit.capture.tap.messages import wires

    text = 'payload = "weights"\n[model]\nname = "logistic"\nshape = [4]\nclasses = 2\n'
    (place / "tap.toml").write_text(text)
    with Log(place / "log.tap", 0) as log:
        for _ in range(2):
            log.write("send", torch.zeros(10), peer=1 << 32)
    with pytest.raises(LeakauditError, match="names rank 4294967296, expected at most 100000"):
        wires.plan(description.read(place / "tap.toml"), read_logs(place / "log.tap"))


# --- verdicts, faults and text --------------------------------------------------------------------

GATE = """
[gate]
seeds = 1
baseline = "b.json"
[check.a]
attacks = ["labels"]
lint = "off"
%s
[[budget]]
measure = "exact"
most = 0.0
"""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "os._exit(0)"])
@pytest.mark.parametrize("where", ["call", "import"])
def test_a_program_that_ends_its_process_is_no_pass(
    place: Path, ending: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """(1)"""
    inside = f"    {ending}\n" if where == "call" else f"    pass\n{ending}\n"
    (place / "prog1.py").write_text(f"import os, sys\ndef train(seed, path):\n{inside}")
    (place / "leakaudit.toml").write_text(GATE % 'run = "prog1:train"')
    assert main(["check", "--strict", "-q"]) == 4
    assert not list(place.glob("leakaudit-out/results.json"))


@pytest.mark.parametrize("silent", ["run", "scenario"])
def test_a_recording_without_messages_is_no_pass(place: Path, silent: str) -> None:
    """(2)"""
    program = 'scenario = { victim = "dpsgd", nodes = 3, rounds = 1, wires = "none", '
    program += 'model = "logistic" }'
    if silent == "run":
        program = 'run = "prog2:train"'
        (place / "prog2.py").write_text(
            "import torch, leakaudit as la\n"
            "def train(seed, path):\n"
            "    task = la.Task.build(la.TaskSpec('logistic', shape=(4,), classes=2))\n"
            "    graph = la.Graph(2, ((0, 1),))\n"
            "    storage = la.Storage(path, messages=2)\n"
            "    with la.Recorder(storage, protocol='dpsgd', task=task, graph=graph,\n"
            "                     params={'alpha': .1}, rounds=1) as recorder:\n"
            "        for node in range(2):\n"
            "            recorder.truth(node, torch.rand(1, 4), torch.tensor([0]))\n"
        )
    (place / "leakaudit.toml").write_text(GATE % program)
    assert main(["check", "--strict", "-q"]) not in (0, 1)


def test_a_baseline_with_a_number_of_400_digits_is_no_leak(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(3, 23): an exit code of 1 would mean a leak."""
    scenario = 'scenario = { victim = "dpsgd", nodes = 3, rounds = 1, model = "logistic" }'
    (place / "leakaudit.toml").write_text(GATE % scenario)
    huge = "1" + "0" * 400
    samples = {"a/eavesdropper/labels": {"seeds": [0], "samples": {"exact": ["HUGE"]}}}
    baseline = {
        "format": "leakaudit.baseline",
        "version": 1,
        "updated": "2026-01-01",
        "reason": "x",
        "cells": samples,
    }
    (place / "b.json").write_text(json.dumps(baseline).replace('"HUGE"', huge))
    assert "b.json" in said(capsys, "check", "-q")
    (place / "leakaudit.toml").write_text(GATE % (scenario + "\nnodes = []"))
    said(capsys, "check", "-q")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_sigterm_leaves_no_private_file(place: Path) -> None:
    """(14): neither the truth of a gate's run nor the data of the processes of gloo."""
    (place / "prog3.py").write_text(
        "import time, leakaudit as la\n"
        "def train(seed, path):\n"
        "    la.record(la.Scenario(victim='dpsgd', nodes=3, rounds=1, model='logistic'), path)\n"
        "    open('ready', 'w').close()\n"
        "    time.sleep(60)\n"
    )
    (place / "leakaudit.toml").write_text(GATE % 'run = "prog3:train"')
    tmp = Path(tempfile.mkdtemp())  # a socket in it has a path of at most 107 bytes
    words = [str(COMMAND), "check", "-q"]
    environment = {**os.environ, "TMPDIR": str(tmp)}
    with subprocess.Popen(words, cwd=place, env=environment) as process:
        while not (place / "ready").exists() and process.poll() is None:
            time.sleep(0.1)
        held = list(tmp.rglob("trace.truth.pt"))
        process.terminate()
        assert process.wait(60) in (2, 130)  # neither a pass nor a leak
    assert held
    assert not list(tmp.rglob("*.pt"))
    shutil.rmtree(tmp)


def test_an_output_that_cannot_be_written_is_said_before_the_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(17)"""
    (place / "prog4.py").write_text("def train(seed, path):\n    open('ran', 'w').close()\n")
    (place / "leakaudit.toml").write_text(GATE % 'run = "prog4:train"')
    (place / "file").write_text("")
    assert "file/out" in said(capsys, "check", "-q", "-o", "file/out")
    assert not (place / "ran").exists()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is flushed to the disk and renamed, in order, with the name of the file."""
    found: list[tuple[str, str]] = []
    fsync = os.fsync
    replace = os.replace

    def flushed(fd: int) -> None:
        fsync(fd)
        found.append(("fsync", Path(f"/proc/self/fd/{fd}").readlink().name))

    def renamed(source: Path, target: Path) -> None:
        replace(source, target)
        found.append(("rename", Path(target).name))

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Path, "replace", renamed)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the names of open files are those of Linux")
@pytest.mark.parametrize("output", ["t.pt", "t/"])
def test_what_is_said_to_be_written_is_on_the_disk(
    place: Path, calls: list[tuple[str, str]], output: str
) -> None:
    """The content of every file before its name, and then the name (19)."""
    assert main([*RECORD, "-o", output]) == 0
    assert main(["attack", output, "-o", "out", "-q"]) == 0
    files = [*place.rglob("*.pt"), *place.rglob("*.json"), *place.rglob("*.npz")]
    files = [path for path in files if path.name != "progress.json"]
    assert len(files) >= 5
    for path in files:
        named = max(k for k, call in enumerate(calls) if call == ("rename", path.name))
        assert ("fsync", path.parent.name) in calls[named:], path
        content = [call for call in calls if call[0] == "fsync" and path.name in call[1]]
        assert content, path


@pytest.mark.skipif(sys.platform != "linux", reason="the names of open files are those of Linux")
def test_a_new_folder_is_on_the_disk(place: Path, calls: list[tuple[str, str]]) -> None:
    private_folder(place / "a" / "b")
    assert calls == [("fsync", place.name), ("fsync", "a")]


def test_a_full_disk_is_one_line_when_the_truth_is_written(place: Path) -> None:
    """(18)"""
    code = (
        "import resource, signal, sys; from leakaudit.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)); sys.exit(main(sys.argv[1:]))"
    )
    words = ["record", "dpsgd", "--nodes", "3", "--rounds", "1", "--model", "logistic"]
    words += ["--wires", "0-1", "--states", "-o", "trace.pt", "-q"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "cannot write" in done.stderr


ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e"


def test_a_terminal_is_not_commanded_by_a_file(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(20): neither by the id of a trace nor by a key that an error quotes."""
    trace = edited(place / "trace.pt", lambda meta, tree: meta.update(id=f"id{ESCAPES}"))
    assert main(["trace", "info", trace]) == 0
    shown = capsys.readouterr().out
    (place / "results.json").write_text(json.dumps({f"key{ESCAPES}" + "x" * 10**6: 1}))
    error = said(capsys, "report", ".")
    for text in (shown, error):
        assert not set("\x1b\x07\u202e") & set(text)
    assert len(error) < 5000


def test_a_runner_is_not_commanded_by_a_record() -> None:
    """(21): GitHub takes ``##[name]`` anywhere in a line for a command."""
    assert "##[" not in clean("node ##[stop-commands]x ## [a]")


@pytest.mark.parametrize(
    "text",
    [
        "::set-output name=CANARY::1",
        "::error::" * 3,
        ":::error::x",
        "x" * 60 + " ::error::x",
        "x " * 60 + "(::error::x",
    ],
)
def test_no_line_of_a_table_is_a_command(text: str) -> None:
    """A terminal wraps a text between words, and the first column begins a line."""
    for width in (None, 40, 60, 100, 101):
        shown = printed([Text(clean(text)), table([Column("name")], [[text]], width)], width, False)
        for line in shown.splitlines():
            assert not re.match(r"\s*::[A-Za-z]", line)
    assert "##" not in clean("##vso[task.setvariable variable=a]b")
    assert clean("aten::conv2d of a.py::test_b") == "aten::conv2d of a.py::test_b"


def test_a_label_is_no_formula_of_a_spreadsheet() -> None:
    """(22)"""
    text = to_csv({"=cmd": {"loss": torch.tensor([1.0])}})
    assert "\n=" not in text
    assert "'=cmd" in text


def test_a_cell_of_a_sweep_that_was_changed_is_computed_again(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(25)"""
    (place / "plan.toml").write_text(PLAN)
    words = ["sweep", "plan.toml", "--workers", "0", "-o", "swept", "-q"]
    assert main(words) == 0
    (cell,) = (place / "swept" / "cells").glob("*.json")
    honest = cell.read_bytes()
    values = json.loads(honest)
    values["findings"][0]["note"] = "changed"
    cell.write_text(json.dumps(values))
    assert main(words) == 0
    assert cell.read_bytes() == honest


def test_a_sweep_starts_where_the_system_does_not_tell_its_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(26)"""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert SweepOptions().executor.workers == os.cpu_count()


# --- purge --------------------------------------------------------------------------------------


def test_purge_deletes_images_and_truths_and_keeps_figures(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RECORD, "-o", "trace.pt"]) == 0
    assert main(["attack", "trace.pt", "-o", "runs/out", "-q"]) == 0
    assert main(["report", "runs/out", "-o", "page.html", "-q"]) == 0
    mine = ("mine.truth.pt", "runs/mine.npz", "mine.html", "runs/results.json")
    for name in mine:
        (place / name).write_text("mine")
    (place / "linked").symlink_to(place.parent)
    (place / "link.truth.pt").symlink_to("trace.truth.pt")
    before = {path: path.lstat().st_mtime_ns for path in place.rglob("*")}
    record = json.loads((place / "runs/out/results.json").read_text())
    capsys.readouterr()
    assert main(["purge", "."]) == 0
    out, err = capsys.readouterr()
    assert {path: path.lstat().st_mtime_ns for path in place.rglob("*")} == before
    assert "nothing was deleted; add --yes" in err
    gone = {line.split()[1].rstrip(":") for line in out.splitlines() if line.startswith("delete ")}
    assert gone == {
        "trace.truth.pt",
        "page.html",
        "runs/out/reconstructions.npz",
        "runs/out/reconstructions.png",
        "runs/out/originals.npz",
        "runs/out/report.md",
    }
    assert main(["purge", ".", "--yes", "-q"]) == 0
    left = {path for path in before if path.exists() or path.is_symlink()}
    assert {str(path.relative_to(place)) for path in before.keys() - left} >= gone
    assert all((place / name).read_text() == "mine" for name in mine)
    assert (place / "link.truth.pt").is_symlink()
    now = json.loads((place / "runs/out/results.json").read_text())
    assert [f["scores"] for f in now["findings"]] == [f["scores"] for f in record["findings"]]
    assert all(f["images"] is None and f["labels"] is None for f in now["findings"])
    assert main(["report", "runs/out", "-o", "page.md", "-q"]) == 0
    capsys.readouterr()
    assert main(["purge", "."]) == 0
    assert "no images, truths or labels" in capsys.readouterr().err


def test_purge_of_what_is_no_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "linked").symlink_to(place.parent)
    for name in ("linked", "none"):
        assert f"{name} is not a folder" in said(capsys, "purge", name)


# --- the review ---------------------------------------------------------------------------------

HERE = "test_security_review.py::"
CRASHES = "test_crashes.py::"
REVIEWED = {
    1: HERE + "test_a_program_that_ends_its_process_is_no_pass",
    2: HERE + "test_a_recording_without_messages_is_no_pass",
    3: CRASHES + "test_a_defect_is_one_line_and_code_4",
    4: HERE + "test_modules_of_the_current_folder_are_not_imported",
    5: HERE + "test_a_factory_is_a_module_class_or_a_function_of_its_module",
    6: CRASHES + "test_the_action_believes_the_record_of_its_own_step_only",
    7: CRASHES + "test_pictures_of_another_run_are_refused",
    8: HERE + "test_nodes_and_rounds_go_with_the_size_of_the_file",
    9: HERE + "test_the_memory_of_a_bound_grows_with_the_rounds_and_not_with_their_square",
    10: HERE + "test_the_command_line_of_a_tapped_program_is_not_recorded",
    11: HERE + "test_all_that_is_written_is_private",
    12: "../contract/test_redaction.py::test_of_what_is_planted_in_every_field_nothing_stays",
    13: HERE + "test_a_configuration_neither_downloads_nor_writes_elsewhere",
    14: HERE + "test_sigterm_leaves_no_private_file",
    15: HERE + "test_a_planted_link_is_neither_followed_nor_guessed",
    16: HERE + "test_two_runs_may_start_in_one_folder",
    17: HERE + "test_an_output_that_cannot_be_written_is_said_before_the_run",
    18: HERE + "test_a_full_disk_is_one_line_when_the_truth_is_written",
    19: "test_truncated_while_read.py::test_a_command_ends_in_one_line",
    20: HERE + "test_a_terminal_is_not_commanded_by_a_file",
    21: HERE + "test_a_runner_is_not_commanded_by_a_record",
    22: HERE + "test_a_label_is_no_formula_of_a_spreadsheet",
    23: HERE + "test_hostile_pictures_of_results_are_refused",
    24: CRASHES + "test_the_action_believes_the_record_of_its_own_step_only",
    25: HERE + "test_a_cell_of_a_sweep_that_was_changed_is_computed_again",
    26: HERE + "test_a_sweep_starts_where_the_system_does_not_tell_its_processors",
}


def test_every_defect_of_the_review_has_a_test() -> None:
    assert REVIEWED.keys() == set(range(1, 27))
    for name in REVIEWED.values():
        file, _, function = name.partition("::")
        assert f"\ndef {function}(" in (Path(__file__).parent / file).read_text()
