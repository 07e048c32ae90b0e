"""Measure how dense the Python code of a folder is, and find public names without argument lists.

    python tests/air.py                        the product's code, one row per package
    python tests/air.py FOLDER ...             any other code, for example an installed package
    python tests/air.py --missing [FOLDER ...] public functions and classes without Args, by line

Figures are per 1,000 non-blank lines. Each of `LIMITS` is twice the largest figure of eight
packages that serve as models (lineax, optimistix, foolbox, jax_privacy, dp_accounting, inspect_ai's
scorers, httpx, click), measured in the same way.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LEAVES = ("attacks", "victims", "reports")
COLUMNS = 100
LIMITS = {"wide": 0.0, "conditional": 22.8, "comprehension": 36.8, "targets": 5.8, "walrus": 0.0}
COUNTED = (*LIMITS, "comment")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def measure(file: Path) -> Counter[str]:
    """Count what `COUNTED` names in one file, and its non-blank lines."""
    text = file.read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip()]
    found = Counter(lines=len(lines), wide=sum(len(line) > COLUMNS for line in lines))
    for node in ast.walk(ast.parse(text)):
        found["conditional"] += isinstance(node, ast.IfExp)
        found["comprehension"] += isinstance(node, COMPREHENSIONS)
        found["targets"] += _has_several_targets(node)
        if isinstance(node, COMPREHENSIONS):
            found["walrus"] += any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        found["comment"] += token.type == tokenize.COMMENT
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


def without_args(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every public function or class without an argument list.

    A function without parameters and a class without fields need no list.
    """
    if file.stem.startswith("_") and file.stem != "__init__":
        return
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
            continue  # the implementation lists the arguments
        text = ast.get_docstring(node) or ""
        if _takes_arguments(node) and "Args:" not in text and "Attributes:" not in text:
            yield node.lineno, node.name


def _takes_arguments(node: ast.FunctionDef | ast.ClassDef) -> bool:
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        return bool(arguments.posonlyargs or arguments.args or arguments.kwonlyargs)
    if any("Enum" in ast.unparse(base) for base in node.bases):
        return False
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    return any(not _is_described(field) for field in fields)


def _is_described(field: ast.AnnAssign) -> bool:
    """Return whether a field needs no entry: it is a class variable, or `param` contains its
    text.
    """
    if "ClassVar" in ast.unparse(field.annotation):
        return True
    value = field.value
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "param"


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
    yield f"{'':24s}" + "".join(f"{name:>15s}" for name in ("lines", *COUNTED, "without Args"))
    total: Counter[str] = Counter()
    for name, files in folders.items():
        found: Counter[str] = Counter()
        for file in files:
            found += measure(file)
            found["missing"] += len(list(without_args(file)))
        total += found
        yield _row(name, found)
    yield _row("all", total)


def _row(name: str, found: Counter[str]) -> str:
    thousands = max(found["lines"], 1) / 1000
    figures = "".join(f"{found[counted] / thousands:15.1f}" for counted in COUNTED)
    return f"{name:24s}{found['lines']:15d}{figures}{found['missing']:15d}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--missing", action="store_true")
    asked = parser.parse_args()
    folders = {str(folder): sorted(folder.rglob("*.py")) for folder in asked.folders}
    folders = folders or rooms(PROJECT)
    if asked.missing:
        for file in (file for files in folders.values() for file in files):
            for line, name in without_args(file):
                sys.stdout.write(f"{file}:{line}: {name}\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in table(folders))


if __name__ == "__main__":
    main()
