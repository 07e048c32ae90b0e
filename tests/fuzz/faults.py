"""Interrupt everything of leakaudit that writes files, and check what is left.

    python tests/fuzz/faults.py                     the whole table, each cell FAULT_RUNS (20) times
    python tests/fuzz/faults.py --only attack/kill  some cells: COMMAND, /FAULT or COMMAND/FAULT
    python tests/fuzz/faults.py --page FILE         write the table into the page, between its marks
    python tests/fuzz/faults.py --lines FILE ...    run nothing: take what earlier runs printed

A cell runs one command in an empty folder, breaks it at a place that its seed decides, and looks:

- the exit code is right, and an error is one line without a traceback;
- what stands is old or complete, or is refused when it is read; a recording is a prefix;
- the same command succeeds afterwards, with the results of an undisturbed run: nothing is locked.

A command runs in a fork of this process, which has imported everything. Errors of the disk and
jumps of the clock are injected below Python by faulty.c, which needs a C compiler. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import corpus
import torch

import leakaudit.api
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.gate import baseline
from leakaudit.reporting.results import record_file
from leakaudit.reporting.viewing import pages
from leakaudit.runs.pipeline import attack_run
from leakaudit.runs.sweeping import run as sweep_run
from leakaudit.traces import trace_file

__all__ = ["attack_run", "leakaudit", "sweep_run"]  # imported before the forks

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["LEAKAUDIT_PROGRESS"] = "none"

HERE = Path(__file__).resolve().parent
LIBRARY = "FAULTY_LIBRARY"  # the compiled faulty.c, once it is loaded
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
PATIENCE = 120.0  # seconds after which a command that does not end is a failure


def _with_library() -> None:
    """Compile faulty.c and start this program again with it."""
    if LIBRARY in os.environ:
        return
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        sys.exit("faults.py needs Linux and a C compiler (cc)")
    target = Path(tempfile.mkdtemp(prefix="leakaudit-faulty-")) / "faulty.so"
    source = str(HERE / "faulty.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, source, "-ldl"], check=True)
    environ = {**os.environ, LIBRARY: str(target), "LD_PRELOAD": str(target)}
    os.execve(sys.executable, [sys.executable, *sys.argv], environ)


# ---------------------------------------------------------------------------------------------
# What is in the results
# ---------------------------------------------------------------------------------------------

# Entries that differ between two undisturbed runs: times, and what depends on them.
VARY = frozenset(
    {"seconds", "started", "provenance", "files", "cost", "created", "updated", "versions"}
)


def stripped(value: Any) -> Any:
    """JSON values without entries that differ between two equal runs."""
    if isinstance(value, dict):
        return {key: stripped(one) for key, one in value.items() if key not in VARY}
    if isinstance(value, list):
        return [stripped(one) for one in value]
    return value


@dataclass(frozen=True)
class Messages:
    """The messages of a trace.

    Attributes:
        complete: whether the trace says that the run ended.
        sent: the messages, in any order: processes of their own send when they can.
    """

    complete: bool
    sent: frozenset[tuple[object, ...]]


def recording(path: Path) -> Messages:
    """The messages of a trace."""
    trace = trace_file.load(path)
    found: list[tuple[object, ...]] = []
    for table in trace.messages:
        kinds = [table.kinds[k] for k in table.kind.tolist()]
        columns = (table.round.tolist(), table.src.tolist(), table.dst.tolist(), kinds)
        payload = [table.payload[row].numpy().tobytes() for row in table.row.tolist()]
        found += zip(*columns, payload, strict=True)
    if len(set(found)) != len(found):
        raise AssertionError("a message is there twice")
    return Messages(trace.complete, frozenset(found))


def recording_of_processes(path: Path) -> Messages:
    """The messages of a trace up to the round in which the first process or message is missing.

    The other processes go on with what they have, so later messages are those of no other run.
    """
    found = recording(path)
    if found.complete:
        return found
    about: dict[str, Any] = dict(trace_file.load(path).provenance)
    last = min([one["round"] for one in about["ended"]], default=about["planned"])
    last = min(last, about.get("holds_until", last))
    until = [one for one in found.sent if isinstance(one[0], int) and one[0] <= last]
    return Messages(found.complete, frozenset(until))


def results(folder: Path) -> Any:
    """A record, and whether its reconstructions can be loaded."""
    record = record_file.read(folder / "results.json")
    if record["kind"] == "attack":
        loaded = record_file.load_reconstructions(record, folder)
        return stripped(record), [one.x.tolist() for one in loaded]
    return stripped(record)


def accepted(path: Path) -> Any:
    """The cells of a baseline, and why they were accepted."""
    found = baseline.read(path)
    return found.reason, {name: dict(cell.samples) for name, cell in found.cells.items()}


def page(path: Path) -> Any:
    """A report; times and identifiers of its run are the same, because the run is."""
    text = path.read_text()
    if not text.rstrip().endswith("</html>"):
        raise AssertionError(f"{path.name} ends in the middle")
    return text


def site(folder: Path) -> Any:
    """The pages of an exported list; without the list itself, they are reachable from nowhere."""
    if not (folder / pages.LIST).exists():
        raise LeakauditError("there is no list")
    found = {path.name: page(path) for path in folder.rglob("*.html")}
    for name, text in found.items():
        if "The report cannot be shown" in text:
            raise LeakauditError(f"{name} says that it has no report")
    return sorted(found)


# ---------------------------------------------------------------------------------------------
# Commands
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """Something that writes files.

    Attributes:
        name: its name in the table.
        argv: arguments; ``{seed}`` differs between two writers at once.
        output: what is written, relative to the folder in which it runs.
        read: returns what the output means.
        given: files and folders of the corpus that it needs, by their names in the folder.
        code: exit code of an undisturbed run.
        partly: exit code of a run that says which part of its output is missing; None for none.
        talks: whether it runs a program, which writes to stderr, too.
        again: arguments that are added to continue after an interruption.
        cut: whether its output is read again, so that a damaged file must be noticed.
    """

    name: str
    argv: str
    output: str
    read: Callable[[Path], Any]
    given: dict[str, str] = field(default_factory=dict)
    code: int = 0
    partly: int | None = None
    talks: bool = False
    again: str = ""
    cut: bool = True


SMALL = "--nodes 3 --graph ring --rounds 6 --data gaussians --samples 1 --model logistic -q"
COMMANDS = (
    Command("record", f"record pdmm -o out.pt --seed {{seed}} {SMALL}", "out.pt", recording),
    Command(
        "record (folder)",
        f"record pdmm -o out/ --seed {{seed}} {SMALL}",
        "out",
        recording,
    ),
    Command(
        "record (gloo)",
        f"record dpsgd -o out.pt --engine gloo --seed {{seed}} {SMALL}",
        "out.pt",
        recording_of_processes,
    ),
    Command(
        "tap",
        "tap -o out.pt --describe tap.toml -q -- python tapped.py {seed}",
        "out.pt",
        recording,
        {"tap.toml": "tap.toml", "tapped.py": "tapped.py"},
        talks=True,
        partly=3,  # nothing of the program was recorded
    ),
    Command(
        "attack",
        "attack c.pt -o out --seed {seed} -q",
        "out",
        results,
        {"c.pt": "c.pt", "c.truth.pt": "c.truth.pt"},
        again="--resume",
    ),
    Command(
        "audit",
        "audit audit.toml -o out --seed {seed} -q",
        "out",
        results,
        {"audit.toml": "audit.toml"},
    ),
    Command(
        "sweep",
        "sweep sweep.toml -o out --workers 0 -q",
        "out",
        results,
        {"sweep.toml": "sweep.toml"},
    ),
    Command(
        "check",
        "check -o out -q",
        "out",
        results,
        {
            "leakaudit.toml": "gate/leakaudit.toml",
            "leakage-baseline.json": "gate/leakage-baseline.json",
        },
        code=3,  # two seeds decide nothing
    ),
    Command(
        "check --update",
        "check --update --reason second --seed {seed}",
        "leakage-baseline.json",
        accepted,
        {
            "leakaudit.toml": "gate/leakaudit.toml",
            "leakage-baseline.json": "gate/leakage-baseline.json",
        },
    ),
    Command("report", "report in -o out.html", "out.html", page, {"in": "attack"}, cut=False),
    Command("view", "view in --export out -q", "out", site, {"in": "runs"}, partly=3, cut=False),
)
TAPPED = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def node(rank, seed, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    generator = torch.Generator().manual_seed(10 * seed + rank)
    model = torch.zeros(3)
    other = torch.empty(3)
    for _ in range(4):
        wait = dist.isend(model, 1 - rank)
        dist.recv(other, 1 - rank)
        wait.wait()
        model = (model + other) / 2 + torch.rand(3, generator=generator)
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile
    mp.start_processes(node, (int(sys.argv[1]), tempfile.mktemp()), 2, start_method="fork")
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: exit code; negative for a signal.
        said: what it wrote to stderr.
        seconds: wall time.
    """

    code: int
    said: str
    seconds: float


def start(argv: list[str], folder: Path, environ: dict[str, str]) -> int:
    """Start a command in a fork of this process; return its number."""
    said = [folder.parent / f"{folder.name}.{name}" for name in ("stdout", "stderr")]
    for path in said:
        path.touch(0o600)
    early = {signal.SIGINT, signal.SIGTERM}  # they wait until the command itself runs
    signal.pthread_sigmask(signal.SIG_BLOCK, early)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, early)
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate(said, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_TRUNC), number)
        tempfile.tempdir = None
        (folder.parent / f"{folder.name}.tmp").mkdir(exist_ok=True)
        os.environ.update(environ, TMPDIR=str(folder.parent / f"{folder.name}.tmp"))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, early)
        code = main(argv)
    except KeyboardInterrupt:  # before the command could look for it
        code = 130
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def end(pid: int, folder: Path, began: float) -> Outcome:
    """Wait for a command."""
    until = began + PATIENCE
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.002)
    said = (folder.parent / f"{folder.name}.stderr").read_text(errors="replace")
    with contextlib.suppress(ProcessLookupError):  # children of a command that was killed
        os.killpg(pid, signal.SIGKILL)
    return Outcome(os.waitstatus_to_exitcode(status), said, time.monotonic() - began)


# ---------------------------------------------------------------------------------------------
# One command in one folder
# ---------------------------------------------------------------------------------------------


class Wrong(Exception):
    """A claim does not hold; the message is the reason."""


@dataclass
class Bench:
    """A command with what an undisturbed run of it gives.

    Attributes:
        command: the command.
        home: folder of the corpus.
        work: folder for runs.
        wanted: results of an undisturbed run, by seed.
        before: what stood at the output before, if the command replaces it.
        seconds: wall time of an undisturbed run.
        calls: number of calls that can fail, by kind.
    """

    command: Command
    home: Path
    work: Path
    wanted: list[Any] = field(default_factory=list)
    before: Any = None
    seconds: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)

    def prepare(self) -> None:
        """Run undisturbed, once for each seed, and count the calls."""
        for seed in range(2):
            folder = self.folder("undisturbed")
            if seed == 0 and (folder / self.command.output).exists():
                self.before = self.command.read(folder / self.command.output)
            outcome = self.run(folder, seed)
            if outcome.code != self.command.code:
                raise RuntimeError(f"{self.command.name}: {outcome}")
            self.seconds = outcome.seconds
            self.wanted.append(self.command.read(folder / self.command.output))
        for kind in ("data", "names", "all"):
            folder = self.folder("counted")
            with self.counter() as shared:
                self.run(folder, 0, self.fault(folder, shared, kind))
                self.calls[kind] = struct.unpack("q", shared.read_bytes())[0]

    def folder(self, name: str) -> Path:
        """Return a new folder with what the command needs."""
        folder = self.work / name
        for path in self.work.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        folder.mkdir(parents=True)
        for target, source in self.command.given.items():
            origin = self.home / source
            if origin.is_dir():
                shutil.copytree(origin, folder / target)
            else:
                shutil.copy(origin, folder / target)
        return folder

    @contextlib.contextmanager
    def counter(self) -> Iterator[Path]:
        """A file in which calls are counted."""
        path = self.work / "counter"
        path.write_bytes(bytes(8))
        yield path

    def fault(self, folder: Path, shared: Path, kind: str, **more: object) -> dict[str, str]:
        """Variables of faulty.c."""
        found = {"FAULT_FOLDER": f"{folder}/", "FAULT_KIND": kind, "FAULT_COUNTER": str(shared)}
        found["FAULT_FIRST"] = "1"
        return found | {f"FAULT_{key.upper()}": str(value) for key, value in more.items()}

    def argv(self, seed: int, again: bool = False) -> list[str]:
        """Return the arguments of a run."""
        more = self.command.again if again else ""
        return [*self.command.argv.format(seed=seed).split(), *more.split()]

    def run(self, folder: Path, seed: int = 0, environ: dict[str, str] | None = None) -> Outcome:
        """Run to the end."""
        began = time.monotonic()
        return end(start(self.argv(seed), folder, environ or {}), folder, began)

    def stands(self, folder: Path, complete: bool = False) -> str:
        """Check what stands: old, complete, a prefix, refused, or nothing; return which.

        Args:
            folder: the folder of the run.
            complete: whether it must be complete, because the command said so.
        """
        path = folder / self.command.output
        found = None
        if not path.exists():
            found = "nothing"
        else:
            try:
                value = self.command.read(path)
            except LeakauditError:
                found = "refused"
            except (AssertionError, FileNotFoundError) as error:
                raise Wrong(f"half-written: {error}") from None
            else:
                found = self._kind(value)
        if complete and found != "complete":
            raise Wrong(f"said to be written, but {found}")
        return found

    def _kind(self, value: Any) -> str:
        if value in self.wanted:
            return "complete"
        if self.before is not None and value == self.before:
            return "old"
        cut = isinstance(value, Messages) and not value.complete
        if cut and any(value.sent <= one.sent for one in self.wanted):
            return "prefix"
        if self._interrupted(value):
            return "prefix"
        raise Wrong("trusted, but neither old nor complete")

    def _interrupted(self, value: Any) -> bool:
        """Whether a record says itself that its run was interrupted."""
        record = value[0] if isinstance(value, tuple) else value
        return isinstance(record, dict) and record.get("complete") is False

    def succeeds_again(self, folder: Path) -> None:
        """Run the command once more, undisturbed; it must give what an undisturbed run gives."""
        began = time.monotonic()
        outcome = end(start(self.argv(0, again=True), folder, {}), folder, began)
        if outcome.code != self.command.code:
            raise Wrong(f"does not run again: code {outcome.code}: {outcome.said:.200}")
        if self.command.read(folder / self.command.output) != self.wanted[0]:
            raise Wrong("runs again, with other results")


# ---------------------------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------------------------


def one_line(outcome: Outcome, command: Command) -> None:
    """Check that an error was said in one line."""
    lines = outcome.said.strip().splitlines()
    if command.talks:
        # Its processes say by themselves that they are not recorded any more.
        lines = [line for line in lines[-1:] if line.startswith("leakaudit")]
    if len(lines) != 1 or "internal error" in outcome.said:
        raise Wrong(f"code {outcome.code}, {len(lines)} lines: {outcome.said[-300:]!r}")


def by_signal(number: signal.Signals, bench: Bench, r: Random) -> str:
    """A signal at a random time."""
    folder = bench.folder("run")
    began = time.monotonic()
    pid = start(bench.argv(0), folder, {})
    time.sleep(r.uniform(0, bench.seconds))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    outcome = end(pid, folder, began)
    command = bench.command
    allowed = {command.code, -number}
    if number == signal.SIGINT:
        allowed = {command.code, 130}
    if number == signal.SIGTERM:
        allowed |= {143, 130}
    if outcome.code not in allowed:
        raise Wrong(f"code {outcome.code}: {outcome.said[-300:]!r}")
    if outcome.code == 130 and outcome.said.strip():
        one_line(outcome, bench.command)
    found = bench.stands(folder, complete=outcome.code == command.code and number != signal.SIGINT)
    bench.succeeds_again(folder)
    return found


def by_error(kind: str, number: int, once: bool, bench: Bench, r: Random) -> str:
    """An error of the disk from the k-th call on, or at that call only."""
    folder = bench.folder("run")
    first = r.randint(1, max(1, bench.calls[kind]))
    more: dict[str, object] = {"errno": number, "first": first}
    if once:
        more["once"] = 1
    with bench.counter() as shared:
        outcome = bench.run(folder, 0, bench.fault(folder, shared, kind, **more))
    if outcome.code == bench.command.code:
        # It did without what failed. A program that is tapped goes on without its log, and its own
        # exit code counts: the trace says that it is not complete.
        found = bench.stands(folder, complete=not bench.command.talks)
        if found not in ("complete", "prefix"):
            raise Wrong(f"said to be written, but {found}")
    elif outcome.code in (2, 4):
        one_line(outcome, bench.command)
        bench.stands(folder)
    elif outcome.code != bench.command.partly:
        raise Wrong(f"code {outcome.code}: {outcome.said[-300:]!r}")
    found = bench.stands(folder)
    bench.succeeds_again(folder)
    return found


def by_power(bench: Bench, r: Random) -> str:
    """A finished output, of which one file is cut or ends in zeros, as after a loss of power."""
    folder = bench.folder("run")
    outcome = bench.run(folder)
    if outcome.code != bench.command.code:
        raise Wrong(f"code {outcome.code}")
    path = folder / bench.command.output
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.is_file() and one.stat().st_size)
    # Pictures, tables and timings are for people; no command reads them.
    read = (".pt", ".json", ".npz")
    victim = r.choice([one for one in files if one.name.endswith(read)])
    data = victim.read_bytes()
    size = len(data)
    ranges = {
        "header": (0, min(64, size)),
        "index": (min(64, size - 1), max(65, size // 8)),
        "storage": (size // 8, max(size // 8 + 1, size - 64)),
        "end": (max(0, size - 64), size),
    }
    low, high = ranges[r.choice(sorted(ranges))]
    at = min(r.randrange(low, max(high, low + 1)), size - 1)
    victim.write_bytes(data[:at] + (bytes(size - at) if r.random() < 0.5 else b""))
    if victim.read_bytes() == data:
        return "complete"
    found = bench.stands(folder)
    bench.succeeds_again(bench.folder("run"))
    return found


def two_writers(bench: Bench, r: Random) -> str:
    """Two of the same command at once, with different seeds, on one output."""
    folder = bench.folder("run")
    began = time.monotonic()
    twin = folder.parent / "twin"
    twin.unlink(missing_ok=True)
    twin.symlink_to(folder)  # the same folder, with other files for stdout and stderr
    first = start(bench.argv(0), folder, {})
    time.sleep(r.uniform(0, bench.seconds / 2))
    second = start(bench.argv(1), twin, {})
    outcomes = [end(first, folder, began), end(second, twin, began)]
    for outcome in outcomes:
        if outcome.code != bench.command.code:
            if outcome.code not in (2, 4):
                raise Wrong(f"code {outcome.code}: {outcome.said[-300:]!r}")
            one_line(outcome, bench.command)
    found = bench.stands(folder)
    bench.succeeds_again(bench.folder("run"))
    return found


def clock_jumps(bench: Bench, r: Random) -> str:
    """The wall clock jumps by up to ten days, in either direction, at some call."""
    folder = bench.folder("run")
    jump = r.choice((-1, 1)) * r.randint(1, 864_000)
    with bench.counter() as shared:
        environ = bench.fault(folder, shared, "all", first=r.randint(1, 200), clock=jump)
        outcome = bench.run(folder, 0, environ)
    if outcome.code != bench.command.code:
        raise Wrong(f"code {outcome.code}: {outcome.said[-300:]!r}")
    found = bench.stands(folder, complete=True)
    bench.succeeds_again(folder)
    return found


Fault = Callable[[Bench, Random], str]
FAULTS: dict[str, tuple[str, Fault]] = {
    "kill": ("kill -9", partial(by_signal, signal.SIGKILL)),
    "int": ("Ctrl-C", partial(by_signal, signal.SIGINT)),
    "term": ("SIGTERM", partial(by_signal, signal.SIGTERM)),
    "full": ("disk full", partial(by_error, "data", errno.ENOSPC, False)),
    "readonly": ("read-only", partial(by_error, "names", errno.EROFS, False)),
    "io": ("I/O error", partial(by_error, "all", errno.EIO, True)),
    "power": ("power loss", by_power),
    "two": ("two writers", two_writers),
    "clock": ("clock jumps", clock_jumps),
}

# ---------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """One command with one fault.

    Attributes:
        held: number of runs in which everything held.
        runs: number of runs.
        found: what stood afterwards, with the number of runs.
        wrong: what did not hold, with the number of runs.
    """

    held: int = 0
    runs: int = 0
    found: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)


def fill(bench: Bench, name: str, runs: int, seed: int) -> Cell:
    """Run one cell."""
    cell = Cell()
    _, fault = FAULTS[name]
    for k in range(runs):
        cell.runs += 1
        try:
            found = fault(bench, Random(f"{bench.command.name}/{name}/{seed}/{k}"))
        except Wrong as error:
            cell.wrong[str(error)] += 1
            continue
        cell.held += 1
        cell.found[found] += 1
    return cell


def applies(command: Command, name: str) -> bool:
    """Whether a cell of the table is filled: what no command reads again cannot mislead one."""
    return name != "power" or command.cut


def chosen(command: Command, name: str, only: list[str]) -> bool:
    """Whether a cell was asked for."""
    return not only or bool({command.name, f"/{name}", f"{command.name}/{name}"} & {*only})


def rendered(cells: dict[tuple[str, str], tuple[int, int]]) -> str:
    """Return the table in Markdown."""
    heads = [title for title, _ in FAULTS.values()]
    lines = ["| command | " + " | ".join(heads) + " |", "|---" + "|--:" * len(heads) + "|"]
    for command in COMMANDS:
        row = []
        for name in FAULTS:
            held, runs = cells.get((command.name, name), (0, 0))
            row.append(f"{held}/{runs}" if runs else "–" if not applies(command, name) else "?")
        lines.append(f"| `{command.name}` | " + " | ".join(row) + " |")
    return "\n".join(lines)


def write_page(path: Path, cells: dict[tuple[str, str], tuple[int, int]]) -> None:
    """Replace the table between its marks; cells that did not run keep their figures."""
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    kept = {}
    for line in old.splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        for name, figure in zip(FAULTS, parts[1:], strict=False):
            match = re.fullmatch(r"(\d+)/(\d+)", figure)
            if match:
                kept[parts[0].strip("`"), name] = int(match[1]), int(match[2])
    path.write_text(f"{before}{BEGIN}\n\n{rendered(kept | cells)}\n\n{END}{after}")


def printed(lines: list[Path], page: Path | None) -> int:
    """Take the cells that earlier runs printed, the last one of each; return the exit code."""
    cells: dict[tuple[str, str], tuple[int, int]] = {}
    for path in lines:
        for line in path.read_text().splitlines():
            one = json.loads(line)
            cells[one["command"], one["fault"]] = one["held"], one["runs"]
    if page is not None:
        write_page(page, cells)
    return int(any(held < runs for held, runs in cells.values()))


def _home(work: Path) -> Path:
    """Make the corpus and what only this program needs."""
    home = work / "corpus"
    corpus.make(home)
    (home / "tapped.py").write_text(TAPPED)
    for kind in ("attack", "audit", "check", "sweep"):
        shutil.copytree(home / kind, home / "runs" / kind)
    return home


def entry() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=int(os.environ.get("FAULT_RUNS", 20)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--lines", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    if args.lines:
        return printed(args.lines, args.page)
    _with_library()
    torch.set_num_threads(1)
    # Whoever ends a command also ends what it started.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    work = Path(tempfile.mkdtemp(prefix="leakaudit-faults-"))
    failures = 0
    figures: dict[tuple[str, str], tuple[int, int]] = {}
    try:
        home = _home(work)
        for command in COMMANDS:
            names = [n for n in FAULTS if applies(command, n) and chosen(command, n, args.only)]
            if not names:
                continue
            bench = Bench(command, home, work / "runs")
            bench.prepare()
            for name in names:
                cell = fill(bench, name, args.runs, args.seed)
                figures[command.name, name] = cell.held, cell.runs
                failures += cell.runs - cell.held
                line = {"command": command.name, "fault": name, "runs": cell.runs}
                line |= {"held": cell.held, "found": cell.found, "wrong": cell.wrong}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
                if args.page is not None:
                    write_page(args.page, {(command.name, name): figures[command.name, name]})
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(entry())
