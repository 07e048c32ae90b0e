"""Records of every kind and version: as they were written they are read, and the JSON schema that is shipped describes them.

``python tests/contract/test_record_schema.py`` writes the schema anew after a change of the types.
"""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from leakaudit.core.errors import LeakauditError
from leakaudit.reporting import results
from leakaudit.reporting.findings.wording import OUTCOMES
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import RuleStatus

SHIPPED = Path(results.__file__).parent / "schema.json"
PROJECT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "records"
NAMES = [f"{kind}_v{version}" for kind in model.KINDS for version in (1, 2)]


def free(kind: type) -> dict[str, Any]:
    """Any JSON value fits a field that the schema leaves free."""
    if kind is object:
        return {"description": "a JSON value"}
    raise NotImplementedError


def generated() -> dict[str, Any]:
    # As it is read from a file: tuples are lists.
    made = json.loads(json.dumps(msgspec.json.schema(model.Record, schema_hook=free)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "results.json of leakaudit",
        **made,
    }


def unindented(schema: Any) -> Any:
    """Return a schema whose descriptions are not indented, as docstrings of Python 3.13 are not."""
    if isinstance(schema, list):
        return [unindented(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: unindented(value) for key, value in schema.items()}
    if isinstance(found.get("description"), str):
        found["description"] = inspect.cleandoc(found["description"])
    return found


def golden(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return record


@pytest.mark.skipif(
    f"msgspec=={msgspec.__version__}" not in (PROJECT / "constraints.txt").read_text().split(),
    reason="other versions of msgspec describe the types in other words",
)
def test_the_shipped_schema_is_that_of_the_types() -> None:
    assert unindented(json.loads(SHIPPED.read_text())) == unindented(generated())
    jsonschema.Draft202012Validator.check_schema(generated())


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_record_is_valid_and_comes_back_as_it_was(name: str) -> None:
    record = golden(name)
    jsonschema.Draft202012Validator(json.loads(SHIPPED.read_text())).validate(record)
    record_file.validate(record)
    assert model.plain(model.of(record)) == record


@pytest.mark.parametrize("name", NAMES)
def test_what_departs_is_refused_by_the_types_and_by_the_schema(name: str) -> None:
    schema = jsonschema.Draft202012Validator(json.loads(SHIPPED.read_text()))
    for change in ({"complete": "perhaps"}, {"surprise": 1}, {"summary": None}):
        wrong = {**copy.deepcopy(golden(name)), **change}
        assert not schema.is_valid(wrong)
        with pytest.raises(LeakauditError, match=next(iter(change))):
            record_file.validate(wrong)


def test_a_name_with_a_line_break_is_no_file_name() -> None:
    record = {**golden("attack_v1"), "picture": "grid.png\n"}
    with pytest.raises(LeakauditError, match="picture: expected a file name without a folder"):
        record_file.validate(record)


def test_a_key_that_is_no_unicode_text_is_refused_in_words() -> None:
    with pytest.raises(LeakauditError, match="unknown entry"):
        record_file.validate({**golden("attack_v1"), "\ud800": 1})


def test_every_status_of_a_rule_has_a_meaning() -> None:
    assert list(RuleStatus) == list(OUTCOMES)
    assert [status.name for status in RuleStatus] == [status.value for status in RuleStatus]


if __name__ == "__main__":
    SHIPPED.write_text(json.dumps(generated(), indent=2) + "\n")
