"""Fuzz everything of leakaudit that reads files of strangers.

    python tests/fuzz/fuzzing.py                 FUZZ_SECONDS (60) from case FUZZ_SEED * 10**9 on
    python tests/fuzz/fuzzing.py --cases 300     a number of cases instead of a time
    python tests/fuzz/fuzzing.py --case 17       one case again, with its traceback; keeps its files

A case mutates one sound file and reads it, in a process that imported everything once. A finding is

- an exception other than a LeakauditError of a reader, or an internal error of the command line;
- a refusal that is not one short line, or an exit code that is not documented;
- more than 5 s of the processor, or 1 GB of memory in addition;
- code that runs: a process, a connection, a Python file of the case's folder;
- a file that is written outside of the output folder;
- text of the file that acts where it is shown: control characters, scripts, workflow commands.

Prints one line per kind of finding, and a last line of JSON. The exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import html.parser
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TextIO
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["COLUMNS"] = "100"
os.environ["LEAKAUDIT_PROGRESS"] = "none"

import corpus
import matplotlib
import torch
from targets import READERS, Call, Target, Targets, weighted

from leakaudit.cli import _main, main
from leakaudit.core.errors import LeakauditError

SECONDS = 5.0  # processor time of a call
MEMORY = 1 << 30  # bytes that a call may take in addition
STUCK = 120.0  # seconds of wall time after which a case that waits for something is ended
LINE = 2_000  # characters of a refusal
CODES = frozenset({0, 1, 2, 3})
COMMANDS = 0.4  # share of the cases with a reader that also run a command
BATCH = 400  # cases of one worker, so that no case depends on many others
PER_SEED = 10**9
READY = "ready"  # a file of a complete corpus


# ---------------------------------------------------------------------------------------------
# What must not happen while a file is read
# ---------------------------------------------------------------------------------------------

RUNS = frozenset(
    {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"}
    | {"subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo"}
)
CHANGES = frozenset(
    {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate"}
    | {"shutil.rmtree", "os.chmod", "os.chown"}
)
# Names inside the folder of a case that may be written; an import has a hidden folder beside its
# output.
OWN = re.compile(r"\.?out|\.import-|tmp($|/)")
# The processes that leakaudit starts by itself: for the commit of the audited program, and for the
# name of the processor.
KNOWN = (
    "('git', ['git', '-c', 'core.fsmonitor=false', '-c', 'core.hooksPath=/dev/null'",
    "('uname', ['uname', '-p']",
)


class Hook:
    """An audit hook that notes what no reader may do, while a case is read.

    Attributes:
        folder: folder of the case.
        seen: what happened.
    """

    def __init__(self) -> None:
        self.folder = ""
        self.seen: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        if event in RUNS:
            said = f"{args!r:.200}"
            if not said.startswith(KNOWN):
                self.seen.append(f"{event} {said}")
        elif event == "import":
            if str(args[0]).startswith("canary"):
                self.seen.append(f"import {args[0]}")
        elif event == "exec":
            if getattr(args[0], "co_filename", "").startswith(self.folder):
                self.seen.append(f"exec {args[0]!r:.200}")
        elif event == "compile":
            if b"CANARY" in _bytes(args[0]) and not _only_text(args[1]):
                self.seen.append(f"compile {args[0]!r:.200}")
        elif event == "open":
            if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._written(event, args[0])
        elif event in CHANGES:
            self._written(event, args[1] if event in ("os.rename", "os.symlink") else args[0], args)

    def _written(self, event: str, path: object, args: tuple[Any, ...] = ()) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        place = os.fsdecode(path)
        if event in ("os.remove", "os.rmdir", "os.mkdir") and args[-1] >= 0:  # below a descriptor
            place = os.path.join(os.readlink(f"/proc/self/fd/{args[-1]}"), place)
        place = os.path.realpath(place)
        if place in (self.folder, "/dev/null") or "__pycache__" in place:
            return  # the folder itself: it exists, or holds a file without a name
        inside = place.startswith(self.folder + "/") and OWN.match(place[len(self.folder) + 1 :])
        if not inside:
            self.seen.append(f"{event} {place}")


def _bytes(source: object) -> bytes:
    if isinstance(source, bytes):
        return source
    return source.encode("utf-8", "replace") if isinstance(source, str) else b""


def _only_text(name: object) -> bool:
    """Whether a compilation is that of a page's template."""
    return str(name).endswith(".j2")


# ---------------------------------------------------------------------------------------------
# What must not be shown
# ---------------------------------------------------------------------------------------------

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
COMMAND = re.compile(r"^\s*::[a-z-]+( [^:]*)?::", re.MULTILINE)
OLD_COMMAND = re.compile(r"##(vso)?\[[a-zA-Z.-]+( [^\]]*)?\]")
ANNOTATION = re.compile(r"::(error|warning|notice) title=[^:]*::")
HARMLESS = re.compile(r"#|data:(image/png;base64)?,|[./\w%?=&-]*$")


class Page(html.parser.HTMLParser):
    """Collects what of a hostile file would run in a browser, or make it fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        if tag in ("iframe", "object", "embed", "base", "video", "audio"):
            self.bad.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on"):
                self.bad.append(f"{tag} {name}")
            loads = name in ("src", "href", "action", "data", "poster", "background")
            if loads and not HARMLESS.match(value or ""):
                self.bad.append(f"{tag} {name}={value!r:.60}")

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style") and "CANARY" in data:
            self.bad.append(f"{self.inside}: {data!r:.80}")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def active(form: str, text: str) -> Iterator[str]:
    """Yield what of a text would act, by its format."""
    control = CONTROL.search(text)
    if control is not None and form != "json":
        around = text[max(0, control.start() - 30) : control.start() + 20]
        yield f"{form}: control character in {around!r}"
    if form == "json" and not text.isascii():
        yield f"json: not in ASCII: {ascii(text)[:80]}"
    if form == "html":
        page = Page()
        page.feed(text)
        yield from (f"html: {one}" for one in page.bad)
    if form == "github":
        for line in filter(None, text.split("\n")):
            if not ANNOTATION.match(line):
                yield f"github: a line that is no annotation: {line!r:.80}"
    if form == "text" and (found := COMMAND.search(text)):
        yield f"text: workflow command {found[0]!r}"
    if form in ("text", "github") and (found := OLD_COMMAND.search(text)):
        yield f"{form}: workflow command {found[0]!r}"
    if form in ("sarif", "json"):
        json.loads(text)
    if form == "junit":
        ET.fromstring(text)


# ---------------------------------------------------------------------------------------------
# One case
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One thing that must not happen.

    Attributes:
        case: number of the case.
        target: what was mutated.
        call: how it was read.
        what: exception, refusal, code, effect, text, hang, memory, death.
        says: details.
        place: file and line in the product, if known.
    """

    case: int
    target: str
    call: Call
    what: str
    says: str
    place: str = ""

    @property
    def kind(self) -> tuple[str, str, str]:
        """Findings of one kind probably have one cause."""
        if self.place:
            return (self.what, self.place, self.says.partition(":")[0])
        return (
            self.what,
            " ".join(self.call[:2]),
            re.sub(r"[0-9a-f]{6,}|\d+|'.*", "#", self.says)[:60],
        )


@dataclass
class Done:
    """What a case came to.

    Attributes:
        calls: number of calls.
        refused: number of calls that were refused.
        findings: what must not happen.
    """

    calls: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)


def _place(error: BaseException) -> str:
    """File and line of the product at which an exception arose."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts
        ours = {"leakaudit", "attacks", "victims", "reports"} & set(parts)
        if ours and not {"fuzz", "site-packages"} & set(parts):
            return f"{'/'.join(parts[-2:])}:{frame.lineno}"
    return "?"


def _raised(error: Exception) -> str:
    """In place of the last handler of the command line."""
    raise error


def _form(call: Call) -> str:
    """The format of what a call prints or writes."""
    if call[0] == "read":
        return "html"
    if "-f" in call:
        form = call[call.index("-f") + 1]
        return {"csv": "text"}.get(form, form)
    return "text"


def _limit(more: int) -> None:
    """Let the address space grow by at most `more` bytes from now on; not at all if negative."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = now + more if more >= 0 else hard
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _called(call: Call) -> tuple[int, str, str]:
    """Make a call; return exit code, what it showed, and the line on stderr."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace"), io.StringIO()
    if call[0] == "read":
        try:
            shown = READERS[call[1]](Path(call[2]))
        except LeakauditError as error:
            return 2, "", f"{error}\n"
        return 0, shown if isinstance(shown, str) else "", ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main(call)
        except SystemExit as ending:
            code = ending.code
    out.flush()
    shown = out.buffer.getvalue().decode("utf-8", "replace")
    if call[0] == "report" and code == 0 and "-o" in call and "--rescore" not in call:
        shown = Path(call[call.index("-o") + 1]).read_text(errors="replace")
    return code if isinstance(code, int) else -1, shown, err.getvalue()


def _judged(call: Call, hook: Hook) -> Iterator[tuple[str, str, str]]:
    """Make a call, and yield what must not happen: what, details, place. The last one yielded
    has the name "done", and its details are the exit code.
    """
    hook.seen.clear()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    _limit(MEMORY)
    hook.folder = os.path.realpath(os.getcwd())
    code = -1
    try:
        code, shown, said = _called(call)
    except MemoryError as error:
        yield "memory", f"MemoryError: {error}"[:200], _place(error)
    except Exception as error:
        what = "memory" if "allocate" in str(error) else "exception"
        yield what, f"{type(error).__name__}: {error}"[:200], _place(error)
    finally:
        hook.folder = ""
        _limit(-1)
        signal.setitimer(signal.ITIMER_PROF, 0)
    yield from (("effect", one, "") for one in hook.seen)
    yield "done", str(code), ""
    if code == -1:
        return
    if code not in CODES:
        yield "code", f"exit code {code}: {said!r:.200}", ""
    if code == 2 and (said.count("\n") != 1 or len(said) > LINE):
        yield "refusal", f"{said.count(chr(10))} lines, {len(said)} characters: {said!r:.120}", ""
    # A command that found something, or nothing certain, prints its result as well.
    form = _form(call) if code in (0, 1, 3) else "text"
    try:
        texts = [*active(form, shown), *active("text", said)]
    except Exception as error:
        texts = [f"{form}: cannot be parsed: {type(error).__name__}: {error}"]
    yield from (("text", one[:200], "") for one in texts)


def _taken(calls: list[Call], r: Random) -> list[Call]:
    """Readers of the library in every case; command lines, which are dearer, in some."""
    readers = [call for call in calls if call[0] == "read"]
    if readers and r.random() > COMMANDS:
        return readers
    return calls


def run_case(number: int, targets: list[Target], hook: Hook, folder: Path) -> Iterator[Done | str]:
    """Do one case in an empty folder.

    Args:
        number: number of the case.
        targets: what can be mutated.
        hook: the audit hook.
        folder: created, and removed afterwards.

    Yields:
        Before each call what is about to be done, for the case that it does not end; then the
        outcome.
    """
    r = Random(number)
    target = next(weighted(targets, r))
    folder.mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "canary_mod.py").write_text("raise RuntimeError('CANARY')\n")
    (folder / "CANARY.py").write_text("raise RuntimeError('CANARY')\n")
    tempfile.tempdir = str(folder / "tmp")
    done = Done()
    with contextlib.chdir(folder):
        yield json.dumps([target.name, ["make"]])
        for call in _taken(target.make(r), r):
            yield json.dumps([target.name, call])
            done.calls += 1
            for what, says, place in _judged(call, hook):
                if what == "done":
                    done.refused += says == "2"
                else:
                    done.findings.append(Finding(number, target.name, call, what, says, place))
    yield done


# ---------------------------------------------------------------------------------------------
# Workers
# ---------------------------------------------------------------------------------------------


def _work(first: int, count: int, until: float, home: Path, scratch: Path, out: int) -> None:
    """Do cases in a forked process, and write down each before it begins and when it ends."""
    matplotlib.get_cachedir()  # creates folders, which are not those of a case
    hook = Hook()
    sys.addaudithook(hook)
    targets = Targets(home).all()
    # Disk flushes only cost time here; tests/fuzz/faults.py is about them.
    patches = (patch.object(os, "fsync", lambda _: None), patch.object(_main, "_defect", _raised))
    with contextlib.ExitStack() as stack, os.fdopen(out, "w", buffering=1) as lines:
        for one in patches:
            stack.enter_context(one)
        for number in range(first, first + count):
            if time.monotonic() > until:
                return
            folder = scratch / str(number)
            for told in run_case(number, targets, hook, folder):
                if isinstance(told, str):
                    lines.write(f'["call", {number}, {told}]\n')
                    continue
                found = [vars(one) for one in told.findings]
                lines.write(json.dumps(["done", number, told.calls, told.refused, found]) + "\n")
            shutil.rmtree(folder)


class Worker:
    """A forked process that does cases one after another; its death is a finding."""

    def __init__(self, first: int, count: int, until: float, home: Path, scratch: Path) -> None:
        self.first = self.number = first
        self.call: tuple[str, Call] = ("", ())
        reader, writer = os.pipe()
        self.errors = scratch / "errors.txt"
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(reader)
                stderr = os.open(self.errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(stderr, 2)
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                faulthandler.enable()
                faulthandler.register(signal.SIGPROF, all_threads=False, chain=True)
                _work(first, count, until, home, scratch, writer)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        self.reader = reader

    def lines(self) -> Iterator[list[Any]]:
        """Yield what the process writes, until it ends or no longer does anything."""
        rest = b""
        while True:
            ready, _, _ = select.select([self.reader], [], [], STUCK)
            if not ready:
                os.kill(self.pid, signal.SIGKILL)
            data = os.read(self.reader, 1 << 16)
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from map(json.loads, whole)

    def end(self) -> Finding | None:
        """Wait for the process; return a finding if it did not end by itself."""
        os.close(self.reader)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return None
        what = {-signal.SIGPROF: "hang", -signal.SIGKILL: "hang"}.get(code, "death")
        said = self.errors.read_text(errors="replace")
        where = re.findall(
            r'File "[^"]*?/((?:leakaudit|attacks|victims|reports)/[^"]*)", line (\d+)', said
        )
        place = ":".join(where[0]) if where else "?"
        return Finding(self.number, *self.call, what, f"exit {code}: {said[-300:]}", place)


@dataclass
class Totals:
    """The sums of a run."""

    cases: int = 0
    calls: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)


def _corpus(work: Path) -> Path:
    """Return the folder of sound files; made unless an earlier run made it."""
    home = work / "corpus"
    if not (home / READY).exists():
        shutil.rmtree(home, ignore_errors=True)
        corpus.make(home)
        corpus.export_model(home / "model.pt2")
        (home / READY).touch()
    return home


def fuzz(
    first: int,
    cases: int,
    seconds: float,
    work: Path,
    note: Callable[[Finding], None] | None = None,
) -> Totals:
    """Do cases until a number or a time is reached.

    Args:
        first: number of the first case.
        cases: number of cases.
        seconds: wall time.
        work: an empty folder.
        note: called with every finding at once.

    Returns:
        What was done and found.
    """
    noted = note or (lambda finding: None)
    until = time.monotonic() + seconds
    home = _corpus(work)
    scratch = work / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    totals = Totals()
    number, end = first, first + cases
    while number < end and time.monotonic() < until:
        worker = Worker(number, min(BATCH, end - number), until, home, scratch)
        for kind, at, *told in worker.lines():
            worker.number = at
            if kind == "call":
                name, call = told[0]
                worker.call = name, tuple(call)
                continue
            calls, refused, found = told
            totals.cases += 1
            totals.calls += calls
            totals.refused += refused
            for one in found:
                totals.findings.append(Finding(**{**one, "call": tuple(one["call"])}))
                noted(totals.findings[-1])
            number = worker.number + 1
        died = worker.end()
        if died is not None:
            totals.cases += 1
            totals.findings.append(died)
            noted(died)
            number = worker.number + 1
            shutil.rmtree(scratch)
            scratch.mkdir()
    return totals


def replay(number: int, work: Path) -> int:
    """Do one case again without any limit, print its calls and tracebacks, and keep its files."""
    home = _corpus(work)
    folder = work / "case"
    shutil.rmtree(folder, ignore_errors=True)
    r = Random(number)
    target = next(weighted(Targets(home).all(), r))
    folder.mkdir()
    os.environ[_main.DEBUG] = "1"
    with contextlib.chdir(folder):
        calls = _taken(target.make(r), r)
        sys.stdout.write(f"{target.name}: files in {folder}\n")
        for call in calls:
            sys.stdout.write(f"\n{' '.join(call)}\n")
            if call[0] == "read":
                try:
                    sys.stdout.write(f"{READERS[call[1]](Path(call[2]))!r:.500}\n")
                except Exception:
                    traceback.print_exc()
            else:
                sys.stdout.write(f"exit code {main(call)}\n")
            sys.stdout.flush()
    return 0


def _noted(file: TextIO, finding: Finding) -> None:
    """Write a finding to a file of lines."""
    file.write(json.dumps(vars(finding)) + "\n")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", 60)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("FUZZ_SEED", 0)))
    parser.add_argument("--cases", type=int, help="number of cases instead of a time")
    parser.add_argument("--case", type=int, help="do this case again and keep its files")
    parser.add_argument("--work", type=Path, help="keep the corpus in this folder, and reuse it")
    parser.add_argument("--details", type=Path, help="write every finding to this file of lines")
    return parser.parse_args()


def entry() -> int:
    """Run as a script."""
    args = _parsed()
    torch.set_num_threads(1)
    work = (args.work or Path(tempfile.mkdtemp(prefix="leakaudit-fuzz-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    if args.case is not None:
        return replay(args.case, work)
    began = time.process_time()
    cases, seconds = (PER_SEED, args.seconds) if args.cases is None else (args.cases, 1e9)
    with contextlib.ExitStack() as stack:
        if args.work is None:
            stack.callback(shutil.rmtree, work)
        note = None
        if args.details is not None:
            details = stack.enter_context(args.details.open("w", buffering=1))
            note = partial(_noted, details)
        totals = fuzz(args.seed * PER_SEED, cases, seconds, work, note)
    kinds = Counter(one.kind for one in totals.findings)
    for kind, count in kinds.most_common():
        first = next(one for one in totals.findings if one.kind == kind)
        where = f"case {first.case} ({first.target}: {' '.join(first.call)})"
        sys.stdout.write(f"{count} x {first.what} {first.place} {first.says}\n    {where}\n")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "seed": args.seed,
        "cases": totals.cases,
        "calls": totals.calls,
        "refused": totals.refused,
        "findings": len(totals.findings),
        "kinds": len(kinds),
        "cpu_s": round(time.process_time() - began + used.ru_utime + used.ru_stime, 1),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(entry())
