"""Victims, attacks and renderers of a user's own: by `--plugin`, by LEAKAUDIT_PLUGINS, by an entry point; never by a file that is read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError

COUNT = 'from leakaudit.core.registry import renderer\n\n\n@renderer("{0}")\ndef render(results):\n    """{0}."""\n    return "{0}"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder that holds the module `mine_here` with the renderer `mine`; nothing of it stays."""
    (tmp_path / "mine_here.py").write_text(COUNT.format("mine"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setenv(registry.PLUGINS, "")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for name in ("mine", "theirs"):
        registry._found["reports"].pop(name, None)


def test_a_flag_names_a_module_of_the_current_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "reports", "-f", "json"]) == 0
    assert '"mine"' not in capsys.readouterr().out
    assert main(["list", "reports", "-f", "json", "--plugin", "mine_here"]) == 0
    assert '"mine"' in capsys.readouterr().out


def test_child_processes_find_it_too(folder: Path) -> None:
    registry.add_plugins(["mine_here"])
    registry.add_plugins(["mine_here"])
    assert os.environ[registry.PLUGINS] == "mine_here"
    probe = "from leakaudit.core import registry; print(registry.get('reports', 'mine')({}))"
    assert (
        subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, check=True
        ).stdout
        == "mine\n"
    )


@pytest.mark.parametrize(
    ("module", "text", "why"),
    [("nowhere", "", "ModuleNotFoundError"), ("broken", "1 / 0", "ZeroDivisionError")],
)
def test_one_that_cannot_be_imported_is_one_line(
    folder: Path, module: str, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (folder / f"{module}.py").write_text(text)
    assert main(["list", "reports", "--plugin", module]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"leakaudit list: plugin '{module}': expected a module of the current folder or an installed one"
    )
    assert why in said
    assert said.count("\n") == 1
    assert main(["list", "reports"]) == 0  # what could not be imported is not kept


def test_a_name_that_is_taken_is_refused(folder: Path) -> None:
    (folder / "again.py").write_text(COUNT.format("json"))
    registry.get("reports", "json")
    with pytest.raises(
        LeakauditError, match=r"two reports are called 'json': leakaudit.reports.json and again"
    ):
        registry.add_plugins(["again"])


def test_a_configuration_file_names_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "leakaudit.toml").write_text('plugin = "mine_here"\n')
    assert main(["config", "show"]) == 2
    assert "unknown key 'plugin'" in capsys.readouterr().err
    assert "mine_here" not in sys.modules


def test_an_entry_point_of_another_distribution_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = folder / "site" / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[leakaudit.reports]\ntheirs = theirs_there:render\n")
    (folder / "site" / "theirs_there.py").write_text(COUNT.format("theirs"))
    monkeypatch.syspath_prepend(str(folder / "site"))
    assert "theirs" in registry.names("reports")
    assert registry.get("reports", "theirs")({}) == "theirs"


def test_help_knows_the_parameters_of_a_victim_of_ones_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/add-a-victim.md").read_text()
    (folder / "theirs_too.py").write_text(
        text.partition(":caption: heavyball.py\n")[2].partition("```")[0]
    )
    with pytest.raises(SystemExit) as ended:
        main(["record", "heavyball", "--plugin", "theirs_too", "--help"])
    registry._found["victims"].pop("heavyball")
    assert ended.value.code == 0
    assert "share of the momentum that is kept" in capsys.readouterr().out


HALF = '''from dataclasses import dataclass

from leakaudit.core.registry import victim
from leakaudit.theory.relations import Relations
from leakaudit.protocols.victim import Victim


@victim("half_written")
@dataclass(frozen=True)
class Half{0}:
    """A victim of which something is missing."""
{1}'''
RUN = "\n    def run(self, problem, graph, rounds, recorder, generator, wires):\n        pass\n"
DECLARE = "\n    def relations(self, graph, rounds, public):\n        return Relations(graph)\n"


@pytest.mark.parametrize(
    ("base", "written", "says"),
    [
        ("(Victim)", RUN, "the victim Half of half does not define relations;"),
        ("(Victim)", DECLARE, "the victim Half of half does not define run;"),
        ("(Victim)", "", "the victim Half of half does not define relations and run;"),
        (
            "",
            RUN + DECLARE,
            "expected a subclass of leakaudit.Victim, got <class 'half.Half'>",
        ),
    ],
)
def test_a_half_written_victim_is_refused_by_what_it_lacks(
    folder: Path, base: str, written: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "half.py").write_text(HALF.format(base, written))
    made = ["record", "half_written", "--plugin", "half", "-o", "trace.pt", "-q"]
    ended = main([*made, "--nodes", "4", "--graph", "ring", "--data", "gaussians"])
    registry._found["victims"].pop("half_written")
    out, err = capsys.readouterr()
    assert (ended, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("leakaudit record: ")
    assert says in err
    assert not (folder / "trace.pt").exists()


def test_a_victim_of_two_methods_is_whole(folder: Path) -> None:
    """What is optional has defaults: listed, recorded, and with nothing to claim."""
    (folder / "half.py").write_text(HALF.format("(Victim)", RUN + DECLARE))
    made = ["record", "half_written", "--plugin", "half", "-o", "trace.pt", "-q"]
    ended = main([*made, "--nodes", "4", "--graph", "ring", "--data", "gaussians"])
    listed = main(["list", "victims", "-q"])
    registry._found["victims"].pop("half_written")
    assert (ended, listed) == (0, 0)
    assert (folder / "trace.pt").exists()


@pytest.mark.parametrize("kind", ["attack", "audit", "check"])
def test_a_report_of_a_plugin_is_chosen_for_every_kind(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of = Path(__file__).parents[1] / "golden" / "records" / f"{kind}_v1.json"
    assert main(["report", str(of), "-f", "mine"]) == 2
    capsys.readouterr()
    assert main(["report", str(of), "-f", "mine", "--plugin", "mine_here"]) == 0
    assert capsys.readouterr().out == "mine"
