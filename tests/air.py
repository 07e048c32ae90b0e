"""Measure how dense and how heavy Python code is, and whether its docstrings are informative.

    python tests/air.py                        the product's code, one row per package
    python tests/air.py FOLDER ...             any other code, for example an installed package
    python tests/air.py --since COMMIT         net lines of product, docstrings and tests since then

Counts are per 1,000 non-blank lines; tokens, words of docstrings and classes are totals. Each of
`LIMITS` is twice the largest figure of eight packages that serve as models (lineax, optimistix,
foolbox, jax_privacy, dp_accounting, inspect_ai's scorers, httpx, click), measured in the same way.

Whoever imports leakaudit reads the docstrings of `public_names`, so these describe every argument.
Elsewhere a docstring is one sentence, and an entry for an argument says what its name does not.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import leakaudit

PROJECT = Path(__file__).resolve().parent.parent
LEAVES = ("attacks", "victims", "reports")
COLUMNS = 100
LIMITS = {"wide": 0.0, "conditional": 22.8, "comprehension": 36.8, "targets": 5.8, "walrus": 0.0}
PARAMETERS = 8  # of a function, without self or cls: more of them are fields of a value
COUNTED = (*LIMITS, "comment")
TOTALS = ("tokens", "docstring words", "classes")
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
SHIPPED = (
    "reporting/results/model.py",
    "judging/gate/config.py",
    "protocols/scenario.py",
)  # docstrings are in schemas
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
STOP_WORDS = frozenset(
    {"a", "all", "an", "and", "are", "as", "at", "by", "for", "from", "if", "in", "is", "it"}
    | {"its", "no", "of", "on", "or", "that", "the", "to"}
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def measure(file: Path) -> Counter[str]:
    """Count what `COUNTED` and `TOTALS` name in one file, and its non-blank lines."""
    text = file.read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip()]
    found = Counter(lines=len(lines), wide=sum(len(line) > COLUMNS for line in lines))
    for node in ast.walk(ast.parse(text)):
        found["conditional"] += isinstance(node, ast.IfExp)
        found["comprehension"] += isinstance(node, COMPREHENSIONS)
        found["targets"] += _has_several_targets(node)
        if isinstance(node, COMPREHENSIONS):
            found["walrus"] += any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
        if isinstance(node, (ast.Module, *DOCUMENTED)):
            found["docstring words"] += len((ast.get_docstring(node) or "").split())
        found["classes"] += isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        found["comment"] += token.type == tokenize.COMMENT
        found["tokens"] += token.type not in LAYOUT
    return found


def _has_several_targets(node: ast.AST) -> bool:
    """Return whether a statement assigns several values to as many names: ``a, b = x, y`` or ``a =
    b = x``.
    """
    if not isinstance(node, ast.Assign):
        return False
    if len(node.targets) > 1:
        return True
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def crowded(file: Path) -> Iterator[tuple[int, str, int]]:
    """Yield line, name and number of parameters of every function with more than `PARAMETERS`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            listed = node.args
            names = [one.arg for one in (*listed.posonlyargs, *listed.args, *listed.kwonlyargs)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            if count > PARAMETERS:
                yield node.lineno, node.name, count


def public_names(project: Path) -> dict[Path, set[str]]:
    """Return the names that users import, by file: `leakaudit`, docs/api.md and bounds."""
    page = (project / "docs/api.md").read_text(encoding="utf-8")
    dotted = [f"leakaudit.{name}" for name in leakaudit.__all__ if name != "__version__"]
    dotted += re.findall(r"^\.\. auto(?:function|class):: (leakaudit\.\S+)", page, re.M)
    found: dict[Path, set[str]] = {}
    for name in dotted:
        module, _, own = name.rpartition(".")
        thing = inspect.unwrap(getattr(importlib.import_module(module), own))
        found.setdefault(Path(inspect.getfile(thing)), set()).add(thing.__qualname__)
    for file in [
        *project.glob("leakaudit/theory/bounds/*.py"),
        project / "leakaudit/core/registry.py",
    ]:
        body = ast.parse(file.read_text(encoding="utf-8")).body
        found[file] = {node.name for node in body if isinstance(node, DOCUMENTED)}
    return found


def undocumented(file: Path, names: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every public function or class that omits an argument.

    Overloads, methods and class variables need no entry, nor do fields whose text is in `param`.
    """
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, DOCUMENTED) or node.name not in names or node.name.startswith("_"):
            continue
        if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            continue  # the implementation lists the arguments
        entries = {name for name, _ in _entries(ast.get_docstring(node) or "")}
        if not set(_arguments(node)) <= entries:
            yield node.lineno, node.name


def _arguments(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        if not any("Enum" in ast.unparse(base) for base in node.bases):
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            yield from (ast.unparse(part.target) for part in fields if not _is_described(part))
    elif isinstance(node, ast.FunctionDef):
        listed = node.args
        for argument in [*listed.posonlyargs, *listed.args, *listed.kwonlyargs]:
            yield argument.arg


def _is_described(field: ast.AnnAssign) -> bool:
    """Return whether a field needs no entry: private, a class variable, or set by `param`."""
    if "ClassVar" in ast.unparse(field.annotation) or ast.unparse(field.target).startswith("_"):
        return True
    value = field.value
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "param"


def restated(file: Path, public: set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and text of every internal entry that repeats the argument's name."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, DOCUMENTED) or node.name in public:
            continue
        for part in ast.walk(node):
            if isinstance(part, DOCUMENTED):
                for name, text in _entries(ast.get_docstring(part) or ""):
                    if _repeats(name, text):
                        yield part.lineno, part.name, f"{name}: {text}"


def _entries(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the sections Args and Attributes."""
    for section in re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)*)", docstring, re.M):
        for names, text in re.findall(r"^ {4}(\S[^:]*): (.*(?:\n {5,}.*)*)", section, re.M):
            for name in names.split(", "):
                yield name.strip("*`"), " ".join(text.split())


def _repeats(name: str, text: str) -> bool:
    """Return whether a text has no shape, number or unit, and at most three words of its own."""
    if re.search(r"\(\w+,|\d|``|None|seconds|bytes|column|order|least|most", text):
        return False
    words = set(re.findall(r"[a-z]+", text.lower())) - STOP_WORDS
    return len(words - set(re.split("_", name.lower()))) <= 3


def rooms(project: Path) -> dict[str, list[Path]]:
    """Return the product's files by package; a package that consists of packages is split."""
    found: dict[str, list[Path]] = {}
    for file in sorted((project / "leakaudit").rglob("*.py")):
        parts = file.relative_to(project / "leakaudit").parts[:-1]
        found.setdefault("/".join(parts) or "leakaudit", []).append(file)
    for leaf in LEAVES:
        found[leaf] = sorted((project / leaf).glob("*.py"))
    return found


def table(folders: dict[str, list[Path]]) -> Iterator[str]:
    """Yield one line per folder, and one for the total."""
    yield f"{'':24s}" + "".join(f"{name:>15s}" for name in ("lines", *COUNTED, *TOTALS))
    total: Counter[str] = Counter()
    for name, files in folders.items():
        found: Counter[str] = Counter()
        for file in files:
            found += measure(file)
        total += found
        yield _row(name, found)
    yield _row("all", total)


def _row(name: str, found: Counter[str]) -> str:
    thousands = max(found["lines"], 1) / 1000
    figures = "".join(f"{found[counted] / thousands:15.1f}" for counted in COUNTED)
    totals = "".join(f"{found[counted]:15,d}" for counted in TOTALS)
    return f"{name:24s}{found['lines']:15d}{figures}{totals}"


def net(project: Path, commit: str) -> dict[str, int]:
    """Return the net lines since a commit: product, its docstrings among them, and tests."""
    found: Counter[str] = Counter(product=0, docstrings=0, tests=0)
    for folder in ("leakaudit", *LEAVES, "tests"):
        kind = "tests" if folder == "tests" else "product"
        for sign, text in _versions(project, commit, folder):
            found[kind] += sign * text.count("\n")
            if kind == "product":
                found["docstrings"] += sign * _docstring_lines(text)
    return dict(found)


def _versions(project: Path, commit: str, folder: str) -> Iterator[tuple[int, str]]:
    """Yield the Python files of a folder that changed, as they are (1) and as they were (-1)."""
    git = ["git", "-C", str(project)]
    listed = [*git, "diff", "--no-renames", "--name-only", commit, "--", f"{folder}/**.py"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split():
        if (project / name).is_file():
            yield 1, (project / name).read_text(encoding="utf-8")
        before = subprocess.run(
            [*git, "show", f"{commit}:{name}"], capture_output=True, check=False
        )
        if before.returncode == 0:
            yield -1, before.stdout.decode()


def _docstring_lines(text: str) -> int:
    lines = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, *DOCUMENTED)):
            docstring = ast.get_docstring(node, clean=False)
            lines += 0 if docstring is None else docstring.count("\n") + 1
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--since", metavar="COMMIT", help="print net lines since a commit")
    asked = parser.parse_args()
    if asked.since:
        lines = ", ".join(
            f"{kind} {count:+,d}" for kind, count in net(PROJECT, asked.since).items()
        )
        sys.stdout.write(f"net lines since {asked.since}: {lines}\n")
        return
    folders = {str(folder): sorted(folder.rglob("*.py")) for folder in asked.folders}
    sys.stdout.writelines(f"{line}\n" for line in table(folders or rooms(PROJECT)))


if __name__ == "__main__":
    main()
