"""What is written as TOML is read again, whatever it holds, and a wrong key has its line."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakaudit._util import config
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.scenario import Scenario

QUICK = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Any Unicode text: line breaks, quotes, backslashes, control characters, emoji. Lone surrogates are
# no text, and no file of UTF-8 holds them.
TEXT = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    ["\n", '"', "\\", "a\r\nb", "\0", "'''"]
)
NUMBERS = st.integers() | st.floats(allow_nan=False)
PLAIN = TEXT | NUMBERS | st.booleans()
VALUES = st.recursive(
    PLAIN, lambda held: st.lists(held, max_size=4) | st.dictionaries(TEXT, held, max_size=4)
)


@given(victim=TEXT, data=TEXT, seed=st.integers(), constants=st.dictionaries(TEXT, VALUES))
@QUICK
def test_a_scenario_is_the_same_after_toml(
    tmp_path: Path, victim: str, data: str, seed: int, constants: dict[str, Any]
) -> None:
    scenario = Scenario(victim=victim, data=data, seed=seed, set=constants)
    path = tmp_path / "s.toml"
    path.write_bytes(scenario.to_toml().encode())
    assert Scenario.from_toml(path) == scenario


def test_numbers_that_are_not_finite_are_the_same_after_toml(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    constants = {"most": math.inf, "least": -math.inf, "no": math.nan}
    path.write_text(Scenario(set=constants).to_toml())
    read = Scenario.from_toml(path).set
    assert (read["most"], read["least"]) == (math.inf, -math.inf)
    assert math.isnan(read["no"])


def test_none_is_written_as_on_the_command_line_and_what_toml_lacks_is_refused() -> None:
    assert tomllib.loads(Scenario(set={"clip": None}).to_toml())["set"] == {"clip": "none"}
    with pytest.raises(LeakauditError, match=r"cannot be written as TOML.*complex"):
        Scenario(set={"z": 1j}).to_toml()


def test_a_scenario_is_written_as_people_write_it() -> None:
    lines = Scenario(victim="dpsgd", set={"sigma": 0.2, "order": "adapt"}).to_toml().split("\n")
    assert lines[:3] == ['victim = "dpsgd"', "nodes = 10", 'graph = "rgg"']
    assert lines[-5:] == ["", "[set]", "sigma = 0.2", 'order = "adapt"', ""]


@given(value=VALUES)
@QUICK
def test_a_value_on_one_line_is_read_again(value: Any) -> None:
    text = config.inline(value)
    assert "\n" not in text
    assert tomllib.loads(f"x = {text}") == {"x": value}


FILE = """\
# nodes
seeds = [
  1,   # nodes
  2]
text = '''
nodes = 3
'''
[check."a b"]
nodes = [0]
set.exact.visits = 2
[[budget]]
most = 1
[[budget]]
level = "warn"
most = 2
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("seeds",), 2),
        (("text",), 5),
        (("check", "a b"), 8),
        (("check", "a b", "nodes"), 9),
        (("check", "a b", "set", "exact", "visits"), 10),
        (("budget", 0), 11),
        (("budget", 0, "most"), 12),
        (("budget", 1), 13),
        (("budget", 1, "most"), 15),
        (("budget", 2), None),
        (("nodes",), None),
        ((), None),
    ],
)
def test_a_key_is_found_on_its_line(path: tuple[str | int, ...], line: int | None) -> None:
    assert config.line_of(FILE, path) == line


def test_a_line_is_given_up_where_it_would_take_long() -> None:
    many = "x = [\n" + "  1, # a a\n" * 3000 + "]\na = 1\n"
    assert config.line_of(many, ("a",)) is None
    assert config.line_of("a = 1\n" + many.replace("\na = 1", ""), ("a",)) == 1


def test_a_scenario_of_python_is_checked_by_the_same_types() -> None:
    with pytest.raises(LeakauditError, match=r"^a key of set: expected text, got 1$"):
        Scenario(set={1: 2})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes = 'x'", "nodes: expected a whole number, got 'x' (at line 1)"),
        ("\n\nnoes = 3", "unknown key 'noes'; did you mean 'nodes'? (at line 3)"),
        ("rounds = 1\nnodes = 0", "nodes: expected at least 1, got 0 (at line 2)"),
        ("dtype = 'int8'", "dtype: expected float32 or float64, got 'int8' (at line 1)"),
        ("states = 1", "states: expected true or false, got 1 (at line 1)"),
        ("nodes = 2.0", "nodes: expected a whole number, got 2.0 (at line 1)"),
        ("x = " + "[" * 9000 + "]" * 9000, "not valid TOML: lists or tables nest too deeply"),
        ("set = 3", "set: expected a table, got 3 (at line 1)"),
        ("[scenario]\nvictim = 3", "victim: expected text, got 3 (at line 2)"),
    ],
)
def test_what_is_wrong_with_a_scenario_is_said_in_full(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(LeakauditError) as caught:
        Scenario.from_toml(path)
    assert str(caught.value) == f"scenario {path}: {says}"
