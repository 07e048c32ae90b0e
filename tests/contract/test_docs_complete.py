"""Reference pages have every name that they are about: verbs and options, victims and attacks, the Python API, entries of records."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import leakaudit
from leakaudit.cli import VERBS
from leakaudit.core import registry
from leakaudit.reporting.results import model

PROJECT = Path(__file__).resolve().parents[2]


def generated() -> Any:
    spec = importlib.util.spec_from_file_location("_generated", PROJECT / "docs/_generated.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_page_has_every_verb_and_option() -> None:
    page = generated().command_line()
    assert {
        line.split()[2] for line in page.split("\n") if line.startswith("## leakaudit ")
    } == set(VERBS)
    for words in (
        "## leakaudit trace verify",
        "`--max-seconds SECONDS`",
        "`-o OUTPUT`, `--output OUTPUT`",
        "`--plugin MODULE`",
    ):
        assert words in page
    assert "%(" not in page


@pytest.mark.parametrize("group", ["victims", "attacks"])
def test_the_registry_pages_have_every_name(group: str) -> None:
    page = generated().leaves(group)
    assert re.findall(r"^## (\S+)$", page, re.M) == registry.names(group)


def test_the_api_page_has_every_public_name() -> None:
    page = (PROJECT / "docs/api.md").read_text()
    assert [
        n
        for n in leakaudit.__all__
        if n != "__version__" and not re.search(rf":: (leakaudit\.)?{n}$", page, re.M)
    ] == []


def test_every_row_of_the_page_of_programs_names_a_test_that_exists() -> None:
    found = tomllib.loads((PROJECT / "tests/programs/programs.toml").read_text())
    page = generated().programs()
    for entry in found["program"]:
        file, _, name = entry["test"].partition("::")
        tree = ast.parse((PROJECT / file).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{entry['name']}: {file} has no {name}"
        assert f"| {entry['name']} |" in page
        assert entry["lines"] <= 3, f"{entry['name']}: an audit should change no more than 3 lines"
    for entry in found["stranger"]:
        assert f"| {entry['repository']} |" in page


@pytest.mark.parametrize("under", ["", "findings", "audit", "gate", "sweep"])
def test_the_page_of_formats_has_every_entry_of_a_record(under: str) -> None:
    page = (PROJECT / "docs/formats.md").read_text()
    kinds: dict[str, tuple[type[msgspec.Struct], ...]] = {
        "": (model.AuditRecord, model.CheckRecord, model.SweepRecord),
        "findings": (model.Finding,),
        "audit": (model.AuditPart,),
        "gate": (model.GatePart,),
        "sweep": (model.SweepPart,),
    }
    names = {field.encode_name for kind in kinds[under] for field in msgspec.structs.fields(kind)}
    assert sorted(name for name in names if f"`{name}`" not in page) == []
