"""What is read from the source of our files is what their classes say, and no verb loads what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING
from pathlib import Path

import pytest

from leakaudit._util import declarations
from leakaudit.cli import VERBS, main
from leakaudit.cli.list import COLUMNS
from leakaudit.cli.list import GROUPS as TABLES
from leakaudit.core import registry
from leakaudit.protocols import topology
from leakaudit.tasks import data, models

ATTRIBUTES = {
    "victims": (*COLUMNS["victims"].values(), "separable"),
    "attacks": (*COLUMNS["attacks"].values(), "rank"),
    "reports": (),
}
LEAVES = [(group, name) for group in registry.GROUPS for name in registry.names(group)]
HEAVY = ("torch", "numpy", "scipy", "skimage", "networkx", "PIL", "lpips", "torchvision")


def loaded(folder: Path, *words: str) -> list[str]:
    """Heavy packages that a call of the command line loads."""
    probe = (
        "import sys\n"
        "from leakaudit.cli import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n    code = end.code\n"
        f"sys.stderr.write(f'{{code}} ' + ' '.join(p for p in {HEAVY} if p in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    code, *packages = done.stderr.splitlines()[-1].split()
    assert int(code) == 0, done.stderr
    return packages


# --- the source says what the class says ------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "name"), LEAVES)
def test_every_leaf_is_readable_and_reads_as_it_is(group: str, name: str) -> None:
    wanted = ATTRIBUTES[group]
    read = declarations.read(f"leakaudit.{group}.{name}", name, wanted)
    assert read == declarations.of_loaded(registry.get(group, name), wanted)


def test_models_data_and_graphs_read_as_they_are() -> None:
    wanted = ("note",)
    read = declarations.classes("leakaudit.tasks.models", "MODELS", wanted)
    kinds = models.MODELS.items()
    assert read == {name: declarations.of_loaded(kind, wanted) for name, kind in kinds}
    assert declarations.table("leakaudit.tasks.data", "NAMES") == data.NAMES
    assert list(declarations.table("leakaudit.protocols.topology", "KINDS")) == list(topology.KINDS)


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        ("    steps: int = param(3, 'most')\n    rate: float\n", {"steps": 3, "rate": MISSING}),
        ("    steps: int = param(2 * 3, 'most')\n", {"steps": 6}),  # computed: the class is loaded
        ("    steps: int = field(default=4)\n", {"steps": 4}),
        ("    reads = 'something'\n    steps: int = -1\n", {"steps": -1}),
    ],
)
def test_what_is_no_literal_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, parameters: dict[str, object]
) -> None:
    (tmp_path / "drawn.py").write_text(
        "from dataclasses import dataclass, field\n"
        "from leakaudit.inversion.attack import Attack\n"
        "from leakaudit.core.registry import attack, param\n"
        "@attack('drawn')\n@dataclass(frozen=True)\n"
        f"class Drawn(Attack):\n    'One line.\\n\\n    More.'\n{body}"
        "    def refuses(self, leak, task): return None\n"
        "    def __call__(self, leak, task, generator): raise NotImplementedError\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setitem(registry._found, "attacks", dict(registry._found["attacks"]))
    monkeypatch.setattr(registry, "unloaded", lambda group, name: "drawn")

    def load(group: str, name: str) -> object:
        __import__("drawn")
        return registry._found[group][name]

    monkeypatch.setattr(registry, "get", load)
    found = declarations.of("attacks", "drawn", ("exact", "rank", "paper"))
    sys.modules.pop("drawn", None)
    declarations._tree.cache_clear()
    declarations.read.cache_clear()
    assert {key: p.default for key, p in found.parameters.items()} == parameters
    assert found.attributes == {"exact": False, "rank": 100, "paper": "unpublished"}
    assert found.note == "One line."


def test_a_list_shows_every_model_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "-f", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(models.MODELS)
    assert next(row["args"] for row in rows if row["name"] == "mlp") == "hidden=100, act=relu"
    assert all(row["note"] for row in rows)


# --- no verb loads what it does not need ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_loads_nothing_heavy(tmp_path: Path, verb: str) -> None:
    assert loaded(tmp_path, verb, "--help") == []


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_list_loads_nothing_heavy(tmp_path: Path, table: str, form: str) -> None:
    assert loaded(tmp_path, "list", table, "-f", form) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("config", "show"),
        ("config", "lint"),
        ("record", "pdmm", "--help"),
    ],
    ids=" ".join,
)
def test_what_computes_nothing_loads_nothing_heavy(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert loaded(tmp_path, *words) == []


def test_auto_loads_only_the_attacks_that_run(tmp_path: Path) -> None:
    """One record of a fully connected model is what `analytic` solves, and it comes first."""
    words = "record pdmm --nodes 4 --graph ring --rounds 5 --data faces --samples 1 -q"
    assert main([*words.split(), "-o", str(tmp_path / "trace.pt")]) == 0
    probe = (
        "import sys\n"
        "from leakaudit.cli import main\n"
        "assert main(['attack', 'trace.pt', '-q', '-o', 'out']) == 0\n"
        "print(*(m for m in sys.modules if m.startswith('leakaudit.attacks.')))\n"
        "print(*(m for m in ('scipy.optimize', 'scipy.stats', 'networkx') if m in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    attacks, other = done.stdout.split("\n")[-3:-1]
    assert attacks == "leakaudit.attacks.analytic"
    assert other == ""
