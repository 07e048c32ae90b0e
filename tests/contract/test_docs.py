"""The pages under docs/: every command and every Python block runs as it stands, and every value in a comment is what comes out.

A page's blocks run one after the other in one folder. ``sh`` and ``python`` blocks run; a command may also stand indented. A block with a
caption is a file of that name. `# exit code N` after a command is the code that it must end with, and a comment after a Python expression
is its value. Blocks that show an output are ``text``. What does not run has a line in `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leakaudit.cli import main
from leakaudit.core import registry

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted(page.name for page in (PROJECT / "docs").glob("*.md"))
BENCH, LONG = (
    "a benchmark: minutes to an hour",
    "runs for minutes; the tests of its module run it in parts",
)
BUDGET = "takes minutes; tests/cli/test_figures_of_papers.py runs it with few steps"
CLUSTER = "needs a cluster; tests/reference/test_clusters.py starts two"
NOT_RUN: dict[tuple[str, str], str] = {  # (page, how the line begins): why
    ("audit.md", "leakaudit audit plan.toml -o"): LONG,
    ("audit.md", "leakaudit audit examples/"): LONG,
    ("benchmarks.md", "make bench"): BENCH,
    ("benchmarks.md", "python bench/"): BENCH,
    ("benchmark-history.md", "make bench"): BENCH,
    ("benchmark-history.md", "python bench/"): "changes a file of the project",
    (
        "claims.md",
        "leakaudit reproduce --claims",
    ): "up to a minute a call; tests/reference/test_claims.py judges every row",
    ("contributing.md", "make"): "sets up an environment of its own",
    ("reliability.md", "make"): "takes minutes; tests/fuzz runs a part of it",
    ("reliability.md", "FUZZ_SECONDS"): "takes half an hour",
    ("responsible-use.md", "pip install"): "changes the environment of the tests",
    ("contributing.md", ".ci/run"): "is what runs the tests",
    (
        "data.md",
        "leakaudit attack trace.pt --attack gradinversion",
    ): "15 seconds; tests/reference/test_running_statistics.py attacks a smaller model",
    ("exact.md", "python bench/"): BENCH,
    ("figures.md", "leakaudit audit examples/"): BUDGET,
    ("figures.md", "leakaudit sweep examples/"): BUDGET,
    ("figures.md", "leakaudit report batch/"): BUDGET,
    ("figures.md", "leakaudit report dpnorm/"): BUDGET,
    (
        "flower.md",
        "leakaudit tap",
    ): "needs the extra 'flower'; tests/programs/test_flower.py runs it",
    ("iterative.md", "python bench/"): BENCH,
    (
        "p2pfl.md",
        "leakaudit tap",
    ): "needs p2pfl in an environment of its own; tests/programs/test_p2pfl.py runs it",
    (
        "nvflare.md",
        "leakaudit tap",
    ): "needs the extra 'nvflare'; tests/programs/test_nvflare.py runs it",
    ("replays.md", "leakaudit reproduce"): LONG,
    ("reproduce.md", "leakaudit reproduce dp-norm"): LONG,
    ("reproduce.md", "leakaudit reproduce thesis/fig5.1"): LONG,
    ("reproduce.md", "leakaudit reproduce --all"): LONG,
    (
        "reports.md",
        "leakaudit report out/ --rescore --metric lpips",
    ): "needs weights that are not part of leakaudit",
    ("selfcheck.md", "leakaudit doctor --statistics"): LONG,
    (
        "view.md",
        "leakaudit view results/",
    ): "serves until Ctrl-C; tests/cli/test_cli_view.py does so",
    (
        "wire.md",
        "python examples/wire/jax_dpsgd.py",
    ): "needs JAX; tests/programs runs it where JAX is installed",
    ("wire.md", "leakaudit trace import jax/"): "needs the messages of the JAX program",
    ("sweep.md", "dask "): CLUSTER,
    ("sweep.md", "ray start"): CLUSTER,
    ("sweep.md", "leakaudit sweep sweep.toml -o swept/ --backend"): CLUSTER,
    (
        "text.md",
        "leakaudit tap",
    ): "is the reader's program; tests/programs/test_language.py has one",
    ("text.md", "leakaudit attack own.pt"): "is the recording of the reader's program",
    (
        "tutorial-own.md",
        "leakaudit tap -o own.pt -- torchrun --nproc-per-node 4 your_program.py",
    ): "is the reader's program",
}
SLOW = (
    "engines.md",
    "gate.md",
    "loggers.md",
    "models.md",
    "sweep.md",
    "tap.md",
    "tutorial-gate.md",
    "tutorial-own.md",
    "tutorial-victim.md",
)
NEEDS = {"loggers.md": ("tensorboard", "mlflow", "wandb")}  # in the environment of `make trackers`
RECORD = "record pdmm -o trace.pt --nodes 4 --graph ring --rounds 8 --data faces --model mlp --set hidden=64 --states --curves -q"
FROM_NOTHING = (
    "tutorial-",
    "add-",
    "tap",
)  # pages that make what they use; others speak of a trace that is there


@dataclass(frozen=True)
class Block:
    """A fenced or indented block of a page. line: of its first line of code, from 1."""

    page: str
    line: int
    language: str
    caption: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """Blocks of a page in order; an included page's too."""
    text = (PROJECT / "docs" / page).read_text()
    if include := re.match(r"```\{include\} (\S+)", text):
        text = (PROJECT / "docs" / include[1]).read_text()
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if fence := re.match(r"(`{3,})(\{[\w-]+\})? ?(\S*)", lines[at]):
            end = next(k for k in range(at + 1, len(lines)) if lines[k] == fence[1])
            inside = lines[at + 1 : end]
            options = [line for line in inside if re.match(r":\w+: ", line)] if fence[2] else []
            caption = next(
                (o.removeprefix(":caption: ") for o in options if o.startswith(":caption: ")), ""
            )
            body = "\n".join(inside[len(options) :]).strip("\n") + "\n"
            if fence[2] in (None, "{code-block}"):
                yield Block(page, at + 2 + len(options), fence[3], caption, body)
            at = end
        elif (
            re.match(r"    (leakaudit|python|make|pytest|\.ci/run)\b", lines[at])
            and not lines[at - 1].strip()
        ):
            end = next(
                (k for k in range(at, len(lines)) if not lines[k].startswith("    ")), len(lines)
            )
            yield Block(
                page, at + 1, "sh", "", "\n".join(line[4:] for line in lines[at:end]) + "\n"
            )
            at = end
        at += 1


def commands(block: Block) -> Iterator[tuple[str, int]]:
    """Commands of a shell block, each with the exit code that it must end with."""
    for line in re.sub(r"\\\n\s*", " ", block.text).split("\n"):
        code = re.search(r"# exit code (\d+)", line)
        words = re.sub(r"\s+# .*", "", line).strip()
        if words and not words.startswith("#"):
            yield words, int(code[1]) if code else 0


def skipped(page: str, command: str) -> bool:
    return any(page == p and command.startswith(start) for p, start in NOT_RUN)


def runnable(page: str) -> list[Block]:
    return [
        b
        for b in blocks(page)
        if b.caption
        or b.language == "python"
        or (b.language == "sh" and not all(skipped(page, c) for c, _ in commands(b)))
    ]


# --- what a page may hold ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_what_it_is(page: str) -> None:
    for block in blocks(page):
        where = f"docs/{page}:{block.line}"
        assert block.language in ("python", "sh", "text", "toml", "yaml", "json"), (
            f"{where}: a block of {block.language!r}"
        )
        hidden = block.language == "text" and re.search(
            r"^(leakaudit|python|make) (?!tap: )", block.text, re.M
        )
        assert not hidden, (
            f"{where}: a command in a block that does not run; make it sh, or name it in NOT_RUN"
        )
        if block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize(("page", "start"), list(NOT_RUN), ids=[" ".join(key) for key in NOT_RUN])
def test_what_is_not_run_is_there(page: str, start: str) -> None:
    """An entry that no page needs any more is removed."""
    if page in PAGES:
        assert [
            c
            for b in blocks(page)
            if b.language == "sh"
            for c, _ in commands(b)
            if c.startswith(start)
        ]


def test_no_page_is_lost() -> None:
    """Sphinx finds pages in no table of contents; here, pages in two."""
    listed = re.findall(r"^([a-z][a-z0-9-]*)$", (PROJECT / "docs/index.md").read_text(), re.M)
    assert sorted(f"{name}.md" for name in [*listed, "index"]) == PAGES


# --- running them -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording, its truth and an attack on it: what the reference pages speak of as trace.pt and out/."""
    place, here = tmp_path_factory.mktemp("recorded"), Path.cwd()
    os.chdir(place)
    try:
        assert main(RECORD.split()) == 0
        assert main(["attack", "trace.pt", "-o", "out/", "-q"]) == 0
    finally:
        os.chdir(here)
    shutil.copytree(place / "out", place / "before")
    return place


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page registers or imports is gone afterwards."""
    monkeypatch.setenv(registry.PLUGINS, "")
    monkeypatch.setenv("PET_STANDALONE", "1")  # torchrun takes a free port
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    path = list(sys.path)
    yield
    sys.path[:] = path
    forget()


def forget() -> None:
    """Forget modules and registered names of a user's own, as the end of a process does."""
    os.environ[registry.PLUGINS] = ""
    for path in list(registry._files):
        registry._forget(path)
    for kept in registry._found.values():
        for name in [
            n for n, thing in kept.items() if not thing.__module__.startswith("leakaudit.")
        ]:
            del kept[name]
    installed = str(Path(pytest.__file__).parents[1])  # may lie outside of sys.prefix
    ours = (sys.prefix, sys.base_prefix, installed, str(PROJECT))
    for name in [
        n
        for n, module in sys.modules.items()
        if not (getattr(module, "__file__", None) or ours[0]).startswith(ours)
    ]:
        del sys.modules[name]


def cases() -> Iterator[Any]:
    for page in PAGES:
        if runnable(page):
            yield pytest.param(page, id=page, marks=[pytest.mark.slow] if page in SLOW else [])


@pytest.mark.parametrize("page", list(cases()))
def test_the_blocks_of_a_page_run(
    page: str,
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in NEEDS.get(page, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
        warnings.simplefilter("ignore")  # those of other packages; pytest restores the filters
    if page == "gate.md":  # its commands belong into the repository of a user
        shutil.copy(PROJECT / "examples/ci-repo/train.py", tmp_path)
    elif not page.startswith(FROM_NOTHING):
        shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    shutil.copytree(
        PROJECT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {"__name__": page}
    for block in runnable(page):
        if block.caption:
            Path(block.caption).write_text(block.text)
        elif block.language == "python":
            execute(block, names)
        else:
            for command, code in commands(block):
                if not skipped(page, command):
                    assert run(command, monkeypatch) == code, (
                        f"docs/{page}:{block.line}: {command}\n{capsys.readouterr().err[-2000:]}"
                    )


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run one line: ours in this process, which saves the import of torch, others in a shell."""
    if folder := re.fullmatch(r"cd (\S+)", command):
        monkeypatch.chdir(folder[1])
        return 0
    if re.fullmatch(r"leakaudit [^|<>$;&]*", command):
        try:
            return main(shlex.split(command)[1:])
        except SystemExit as e:  # --help
            return int(e.code or 0)
        finally:
            forget()
    return subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=False).returncode


def execute(block: Block, names: dict[str, Any]) -> None:
    """Run a Python block; an expression with a comment behind or below it has the value that stands there."""
    where = f"docs/{block.page}:{block.line}"
    lines = block.text.split("\n")
    for statement in ast.parse(block.text).body:
        here = (statement.end_lineno or 1) - 1
        comment = re.search(r"  # (.*)$", lines[here]) or re.match(r"# (.*)$", lines[here + 1])
        if isinstance(statement, ast.Expr) and comment:
            value = eval(compile(ast.Expression(statement.value), where, "eval"), names)
            assert same(value, comment[1]), (
                f"{where}: {ast.unparse(statement)} is {value!r}, the page says {comment[1]}"
            )
        else:
            exec(compile(ast.Module([statement], []), where, "exec"), names)


def same(value: Any, told: str) -> bool:
    """Whether a comment begins with the value, a float as it is rounded there."""
    if isinstance(value, float) and (number := re.match(r"-?\d*\.?(\d+)(?:e-?\d+)?", told)):
        digits = number[0].partition("e")[0].partition(".")[2]
        unit = 10.0 ** -len(digits) * 10.0 ** int(number[0].partition("e")[2] or 0)
        return abs(value - float(number[0])) <= 0.5000001 * unit
    return any(
        text and re.match(re.escape(text) + r"(?![\w.]|,\d)", told)
        for text in (str(value), repr(value))
    )


# --- what the runner itself would miss --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3.34144, "3.3414"),
        (0.5, "0.50: half"),
        (1.2e-7, "1.2e-7"),
        (True, "True"),
        ("a b", "a b, c"),
    ],
)
def test_a_value_is_recognised(value: object, told: str) -> None:
    assert same(value, told)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (3.3416, "3.3414"),
        (0.51, "0.50"),
        (1.3e-7, "1.2e-7"),
        (False, "True"),
        ("a b", "a, b"),
        (1, "15"),
        ("", "x"),
    ],
)
def test_another_value_is_not(value: object, told: str) -> None:
    assert not same(value, told)


def test_a_wrong_value_on_a_page_fails() -> None:
    with pytest.raises(AssertionError, match=r"docs/page.md:7: 1 \+ 1 is 2, the page says 3"):
        execute(Block("page.md", 7, "python", "", "1 + 1  # 3\n"), {})
