"""The help of every verb begins with what it does and ends with two examples that its parser
accepts.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakaudit._util.settings import SETTINGS
from leakaudit.capture.gloo.setup import ProcessLayout
from leakaudit.cli import main, parser, tapped
from leakaudit.cli._main import GROUPS
from leakaudit.cli._parser import EXAMPLES
from leakaudit.protocols.scenario import Scenario
from leakaudit.reports import sarif


def walk(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its verbs and their actions."""
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from walk(inner)


APART = {f"leakaudit {one.name}": one.parser for one in (tapped.describe, tapped.merge)}
PARSERS = [*walk(parser()), *(make() for make in APART.values())]
IDS = [one.prog for one in PARSERS]


@pytest.mark.parametrize("one", PARSERS, ids=IDS)
def test_help_begins_with_what_the_verb_does(one: argparse.ArgumentParser) -> None:
    about = one.description or ""
    assert one.format_help().split()[: len(about.split())] == about.split()
    sentences = re.findall(r"[^.]\.(?= [A-Z'-]|$)", about)
    assert 1 <= len(sentences) <= 2, about
    assert about[0].isupper()
    assert about.endswith(".")


@pytest.mark.parametrize("one", PARSERS, ids=IDS)
def test_help_ends_with_examples_that_parse(one: argparse.ArgumentParser) -> None:
    heading, *examples = (one.epilog or "").split("\n")
    assert heading == EXAMPLES
    assert 2 <= len(examples) <= 3
    assert one.format_help().rstrip().split("\n")[-len(examples) :] == examples
    for example in examples:
        assert len(example) <= 80
        words = shlex.split(example)
        assert example.strip().startswith(one.prog)
        for prog, make in APART.items():
            if example.strip().startswith(prog):
                make().parse_args(words[3:])
                break
        else:
            assert callable(parser().parse_args(words[1:]).run)


@pytest.mark.parametrize("one", PARSERS, ids=IDS)
def test_every_option_has_a_help_text(one: argparse.ArgumentParser) -> None:
    for action in one._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, action.dest


@pytest.mark.parametrize("one", PARSERS[1:], ids=IDS[1:])
def test_help_fits_a_terminal(
    one: argparse.ArgumentParser,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main([*one.prog.split()[1:], "--help"])
    assert end.value.code == 0
    assert max(map(len, capsys.readouterr().out.split("\n"))) <= 80


def test_an_example_that_is_wrong_is_refused() -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["attack", "trace.pt", "--no-such-option"])


REPEATABLE = ("attack", "audit", "check", "sweep")  # verbs that write several formats at once
# Defaults that a verb fills in after parsing, besides settings and the choices of a scenario.
LATER: dict[tuple[str, str], object] = {
    **{(f"leakaudit {verb}", "format"): "text" for verb in REPEATABLE},
    ("leakaudit record", "timeout"): ProcessLayout.timeout,
    ("leakaudit report", "location"): sarif.LOCATION,
    ("leakaudit report", "width"): "page",
    ("leakaudit bound", "coalitions"): 1,
    ("leakaudit trace lint", "truth"): "none",
}
IN_WORDS = {("leakaudit view", "folder"): Path(), ("leakaudit view", "port"): 0}


def default_of(one: argparse.ArgumentParser, action: argparse.Action) -> object:
    """What the program uses if an option is not given; None if that is no value."""
    place = (one.prog, action.dest)
    if place in LATER:
        assert action.default is None
        return LATER[place]
    setting = SETTINGS.get(action.dest)
    if setting is not None and (action.help or "").startswith(f"{setting.help} (default"):
        assert action.default is None
        return setting.default
    if one.prog == "leakaudit record" and action.option_strings and action.default is None:
        return getattr(Scenario(), action.dest, None)  # a flag, such as --states, states none
    if place in IN_WORDS:
        assert action.default == IN_WORDS[place]
        return None
    return action.default


@pytest.mark.parametrize("one", PARSERS, ids=IDS)
def test_the_default_of_every_option_is_the_one_that_its_help_states(
    one: argparse.ArgumentParser,
) -> None:
    """A value is stated as "(default 16)", anything else as "(default: all nodes)"."""
    for action in one._actions:
        stated = re.search(r"\(default (.+?)[:)]", action.help or "")
        value = default_of(one, action)
        if value is None or value is False or value in ([], "", argparse.SUPPRESS):
            assert stated is None, action.dest
        else:
            assert stated is not None, action.dest
            assert type(value)(stated[1]) == value, action.dest  # type: ignore[call-arg]


def test_the_help_of_the_program_lists_every_verb_in_its_group() -> None:
    text = parser().format_help()
    assert parser(None, bare=True).format_help() == text
    found: dict[str, tuple[str, ...]] = {}
    for title in GROUPS:
        section = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        found[title] = tuple(re.findall(r"^  (\S+)", section, re.M))
    assert found == GROUPS


def test_the_help_of_the_program_refers_to_that_of_a_verb() -> None:
    assert "leakaudit VERB --help" in " ".join(parser().format_help().split())
