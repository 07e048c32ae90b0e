"""The help of every verb begins with what it does and ends with two examples that its parser
accepts.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from leakaudit._util.settings import SETTINGS
from leakaudit.cli import main, parser, tapped
from leakaudit.cli._options import EXAMPLES
from leakaudit.cli.record import CHOICES
from leakaudit.protocols.scenario import Scenario


def walk(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its verbs and their actions."""
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from walk(inner)


APART = {"leakaudit tap describe": tapped.describing, "leakaudit tap merge": tapped.merging}
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


def test_the_defaults_that_record_prints_are_those_of_a_scenario() -> None:
    for name, (_, text) in CHOICES.items():
        assert text.endswith(f"(default {getattr(Scenario(), name)})"), name


def test_a_shared_option_names_its_default() -> None:
    text = " ".join(parser().format_help().split())
    assert "leakaudit VERB --help" in text
    options = {a.dest: a.help or "" for one in PARSERS for a in one._actions}
    for name, setting in SETTINGS.items():
        if name not in ("download", "output"):  # a flag without value; several verbs have an output
            assert f"(default {setting.default})" in options[name]
