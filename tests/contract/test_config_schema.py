"""The JSON schema of leakaudit.toml that is shipped: it is that of the types, and takes what the program takes.

``python tests/contract/test_config_schema.py`` writes the schema anew after a change of the types.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from leakaudit._util.settings import SETTINGS
from leakaudit.cli import init, main
from leakaudit.judging.gate import config, tables
from leakaudit.protocols import scenario
from leakaudit.protocols.scenario import Scenario

# Editors for TOML follow draft 7.
DRAFT = "http://json-schema.org/draft-07/schema#"
KINDS = (config.Gate, config.Check, config.Budget, config.Acceptance, Scenario)
FORMS = (tables.GATE, tables.CHECK, tables.BUDGET, tables.ACCEPTANCE, scenario.FORM)


def free(kind: type) -> dict[str, Any]:
    """Any value fits what is left free, such as the constants of a victim."""
    if kind is object:
        return {"description": "any value"}
    raise NotImplementedError


def attributes(kind: type) -> dict[str, str]:
    """What a class's docstring says of each attribute."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.M)
    return {name: " ".join(text.replace("`", "").split()) for name, text in entries}


def settings() -> dict[str, Any]:
    made = {}
    for name, setting in SETTINGS.items():
        kind = msgspec.json.schema(setting.kind or type(setting.default))
        made[name] = {"description": setting.help, **kind, "default": setting.default}
        made[name.replace("_", "-")] = made[name]
    return made


def generated() -> dict[str, Any]:
    made, parts = msgspec.json.schema_components(
        FORMS, schema_hook=free, ref_template="#/$defs/{name}"
    )
    gate, check, budget, accept, scenario_table = made
    for kind in KINDS:
        for name, says in attributes(kind).items():
            if name in parts[kind.__name__]["properties"]:
                parts[kind.__name__]["properties"][name]["description"] = says
    parts["Check"]["properties"]["scenario"]["anyOf"] = [{"type": "string"}, scenario_table]
    many = {"type": "array", "items": budget}
    whole = {
        "$schema": DRAFT,
        "title": "leakaudit.toml",
        "type": "object",
        "properties": {
            **settings(),
            "gate": gate,
            "check": {"type": "object", "additionalProperties": check},
            "budget": many,
            "accept": {**many, "items": accept},
        },
        "additionalProperties": False,
        "$defs": parts,
    }
    plain: dict[str, Any] = json.loads(json.dumps(whole))
    return plain


def valid(text: str) -> bool:
    """Whether an editor finds nothing; it sees dates as text."""
    values = json.loads(json.dumps(tomllib.loads(text), default=date.isoformat))
    shipped = json.loads(tables.SCHEMA.read_text())
    return bool(jsonschema.Draft7Validator(shipped).is_valid(values))


def test_the_shipped_schema_is_that_of_the_types() -> None:
    assert json.loads(tables.SCHEMA.read_text()) == generated()
    jsonschema.Draft7Validator.check_schema(generated())


def test_every_key_is_explained() -> None:
    parts = generated()["$defs"].values()
    keys = [key for part in parts for key in part["properties"].values()]
    assert len(keys) > 40
    assert all(key.get("description") for key in keys)


@pytest.mark.parametrize(
    "text",
    [
        init.starter(None, None),
        init.starter("train:record", None),
        init.starter(None, Path('odd "name"\n.toml')),
        "seed = 3\nmax-bytes = '4GB'\nmax_seconds = 5\nprogress = 'plain'\ndownload = false\n",
        "[[accept]]\nid = 'a'\nreason = 'b'\nowner = 'c'\nexpires = 2030-01-31\n",
        "[gate.tolerance]\ngain = 2\n[check.a]\nrun = 'a:b'\nnodes = [0]\nset.exact.visits = 2\n",
    ],
)
def test_what_the_program_takes_is_valid(text: str) -> None:
    assert valid(text)


def test_the_example_repository_is_valid(project: Path) -> None:
    assert valid((project / "examples" / "ci-repo" / "leakaudit.toml").read_text())


@pytest.mark.parametrize(
    "text",
    [
        "sed = 3",
        "seed = 1.5",
        "[gate]\nseed = 3",
        "[gate]\nseeds = true",
        "[check.a]\natacks = ['exact']",
        "[check.a]\nattacks = 'exact'",
        "[check.a]\nlint = 'eror'",
        "[check.a.scenario]\nnoes = 3",
        "[[budget]]\nmeasure = 'psnr'",
        "[[budget]]\nmeasure = 'pnsr'\nmost = 1",
        "[budget]\nmeasure = 'psnr'\nmost = 1",
    ],
)
def test_a_mistake_is_marked(text: str) -> None:
    assert not valid(text)


def test_config_schema_prints_it_whatever_the_configuration_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("leakaudit.toml").write_text("no TOML")
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == generated()


def test_init_writes_the_schema_that_its_first_line_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "-q", "--no-baseline", "--example"]) == 0
    first = Path("leakaudit.toml").read_text().split("\n")[0]
    assert json.loads(Path(first.removeprefix("#:schema ")).read_text()) == generated()


def test_init_keeps_another_schema_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    schema = Path("leakaudit.schema.json")
    schema.write_text("{}")
    assert main(["init", "--no-baseline", "--example"]) == 0
    assert schema.read_text() == "{}"
    said = capsys.readouterr().err
    assert "leakaudit.schema.json: kept, although it differs" in said
    schema.write_bytes(tables.SCHEMA.read_bytes())
    Path("leakaudit.toml").unlink()
    assert main(["init", "--no-baseline", "--example"]) == 0
    assert "kept" not in capsys.readouterr().err


if __name__ == "__main__":
    tables.SCHEMA.write_text(json.dumps(generated(), indent=2) + "\n")
