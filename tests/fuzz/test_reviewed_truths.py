"""What a reviewer found in truths, names of protocols and sizes of coalitions, one test per cause:
what cannot be used is refused in one line, before any work is done.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import pytest
import torch
from corpus import FACES, SMALL, TOKENS
from invoked import refused
from torch import Tensor

from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols.equations import file as protocol_file
from leakaudit.reporting.findings.redaction import redact
from leakaudit.reporting.results import model, record_file
from leakaudit.scoring.scoring import SEVERAL
from leakaudit.tasks.losses import mean_loss
from leakaudit.traces import trace_file, vocabulary
from leakaudit.views.accounting.adversaries import around
from leakaudit.views.conformance import noise

pytestmark = pytest.mark.usefixtures("own_folder")

Refused = Callable[..., str]
ATTACK = ("attack", "c.pt", "-o", "out", "--attack", "exact", "-q")
LINT = ("trace", "lint", "c.pt", "--truth", "c.truth.pt")
VERIFY = ("trace", "verify", "a.pt", "--relations", "--truth", "a.truth.pt")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces and truths of numbers, pictures and tokens."""
    folder = tmp_path_factory.mktemp("made")
    runs = (
        ("a.pt", "dpsgd", (*SMALL, "--set", "sigma=0.1", "--states")),
        ("c.pt", "fedsgd", (*FACES, "--set", "hidden=4")),
        ("words.pt", "fedsgd", (*TOKENS, "--set", "width=32")),
    )
    for name, victim, options in runs:
        assert main(["record", victim, "-o", str(folder / name), *options]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, as the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def turned_down(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must end with code 2, one line, and no file left behind."""
    return lambda *argv: refused(capsys, *argv)


def edit(path: str, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change the tree and the description of a torch file."""
    file = Path(path)
    tree = torch.load(file, weights_only=True, mmap=False)
    about = json.loads(tree["meta"])
    change(tree, about)
    tree["meta"] = json.dumps(about)
    file.write_bytes(mutations.torch_bytes(tree))
    file.with_name(f"{file.name}.sha256").unlink(missing_ok=True)


def set_tensor(path: str, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """Replace one tensor of a truth."""

    def replace(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree[name] = change(tree[name]).contiguous().clone()

    edit(path, replace)


def set_state(path: str, name: str, value: Tensor) -> None:
    """Replace one state of a truth."""

    def replace(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["states"] = {**tree["states"], name: value}

    edit(path, replace)


# ---------------------------------------------------------------------------------------------
# Constants of protocol files
# ---------------------------------------------------------------------------------------------

PROTOCOL = '''
name = "x"
start = """
w[i] = w0
"""
round = """
m[i -> neighbours] = w[i] - alpha * grad(w[i])
w[i] = sum(j in closed_neighbours: W[i,j] * m[j -> i])
"""

[constants]
alpha = 0.1
NAME = 0.2

[matrices]
W = "metropolis"
'''


@pytest.mark.parametrize(
    "name",
    ["class", "None", "definition", "__slots__", "__dict__", "relations", "paper", "\u00b5"],
)
def test_a_constant_that_is_a_word_of_the_program(
    name: str, turned_down: Refused, tmp_path: Path
) -> None:
    """The class of the protocol could not be made: TypeError, or another meaning."""
    text = PROTOCOL.replace("NAME", f'"{name}"')
    Path("x.toml").write_text(text)
    said = turned_down("record", "x.toml", "-o", "x.pt", *SMALL)
    assert "is a word of the program; choose another name" in said


@pytest.mark.parametrize("name", ["lr", "\u03bc", "self", "text", "_alpha"])
def test_other_constants_are_read(name: str) -> None:
    text = PROTOCOL.replace("NAME", f'"{name}"')
    assert name in registry.values(protocol_file.victim(text)())


# ---------------------------------------------------------------------------------------------
# Labels
# ---------------------------------------------------------------------------------------------

SHAPES = ((0,), (1,), (2,), (3, 3))


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
@pytest.mark.parametrize("more", SHAPES)
def test_labels_with_further_axes(
    more: tuple[int, ...], kind: torch.dtype, here: Path, turned_down: Refused
) -> None:
    """The losses ended with errors of torch, in an attack after all work was done."""
    for path in ("a.truth.pt", "c.truth.pt", "words.truth.pt"):
        set_tensor(path, "y", lambda y: torch.zeros(len(y), *more, dtype=kind))
    words = ("attack", "words.pt", "-o", "out", "--attack", "tokens", "-q")
    for argv in (VERIFY, ("trace", "lint", "a.pt", "--truth", "a.truth.pt"), LINT, ATTACK, words):
        assert "got torch." in turned_down(*argv)


def test_the_shapes_that_the_losses_understand() -> None:
    """Each accepted shape has a loss, and the next one to it has none."""
    one = torch.zeros(4)
    several = torch.full((4, 3), 1 / 3)
    known: Mapping[str, tuple[Tensor, ...]] = {
        "cross_entropy": (one.long(), several),
        "binary": (one, one.long()),
        "squared": (several,),
        "next_token": (one.long(),),
    }
    for loss, accepted in known.items():
        classes = 2 if loss == "binary" else 3
        task = TaskSpec("mlp", shape=(2,), classes=classes, loss=loss)
        for y in accepted:
            vocabulary.labels(y, task, "y")
        out = torch.zeros(4, 1 if loss == "binary" else classes)
        assert all(mean_loss(loss, out, y).isfinite() for y in accepted)
        with pytest.raises(LeakauditError, match="y: expected"):
            vocabulary.labels(torch.zeros(4, 3, 3), task, "y")
        if loss != "squared":
            with pytest.raises(LeakauditError, match="y: expected"):
                vocabulary.labels(torch.zeros(4, 2, dtype=torch.int64), task, "y")
    with pytest.raises(LeakauditError, match="as many as the model has outputs, got 1"):
        mean_loss("squared", torch.zeros(4, 3), one)


def test_probabilities_as_labels_do_not_end_an_attack(here: Path) -> None:
    """The attack was refused after it had run. Its inputs are scored, and its labels are not."""
    classes = trace_file.load(here / "c.pt").task.classes
    set_tensor("c.truth.pt", "y", lambda y: torch.nn.functional.one_hot(y, classes).float())
    assert main([*ATTACK]) in (0, 3)
    record = json.loads(Path("out/results.json").read_text())
    for finding in record["findings"]:
        assert finding["scores"]["mse"]["per_image"]
        assert finding["scores"]["labels_found"] is None
        assert "label_correct" not in finding["scores"]
    assert record["metrics"]["label_correct"] == SEVERAL
    assert redact(record)["metrics"] == record["metrics"]
    assert main(["report", "out", "--rescore", "-q"]) in (0, 3)
    again = json.loads(Path("out/results.json").read_text())
    assert "not measured" in again["metrics"]["label_correct"]


# ---------------------------------------------------------------------------------------------
# States
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (5,), (5, 3), (5, 3, 7), (5, 3, 1), (5, 0, 3), (0, 3, 3)])
@pytest.mark.parametrize("name", ["w", "xi"])
def test_states_of_other_shapes_count_as_absent(
    name: str, shape: tuple[int, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TypeError without axes, and RuntimeError for models of another length."""
    set_state("a.truth.pt", name, torch.zeros(shape))
    assert main([*VERIFY]) in (0, 2)
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 1
    assert "internal" not in said
    assert main(["trace", "lint", "a.pt", "--truth", "a.truth.pt"]) in (0, 1, 3)
    assert "internal" not in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------
# Numbers
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "kind"), [(1e300, torch.float64), (1e38, torch.float32)])
def test_messages_whose_squares_are_infinite(
    size: float, kind: torch.dtype, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bound` ended with ZeroDivisionError."""

    def huge(tree: dict[str, Any], about: dict[str, Any]) -> None:
        payload = tree["messages"]["payload"]
        tree["messages"]["payload"] = torch.full_like(payload, size, dtype=kind)
        tree["public"] = {
            k: torch.full_like(v, size, dtype=kind) for k, v in tree["public"].items()
        }

    edit("a.pt", huge)
    assert main(["bound", "a.pt"]) in (0, 2, 3)
    assert "internal" not in capsys.readouterr().err


def test_no_samples_of_noise_are_sufficient() -> None:
    assert list(noise.insufficient([])) == []


@pytest.mark.parametrize("name", ["x", "y", "pool"])
@pytest.mark.parametrize(("size", "kind"), [(1e300, torch.float64), (-1e38, torch.float32)])
def test_a_truth_of_huge_numbers(
    size: float, kind: torch.dtype, name: str, here: Path, turned_down: Refused
) -> None:
    """Scores were infinite, which was noticed when they were written."""
    set_tensor("c.truth.pt", name, lambda value: torch.full_like(value, size, dtype=kind))
    for argv in (ATTACK, LINT):
        assert f"{name!r} has numbers beyond 1e+30 in size" in turned_down(*argv)


def test_a_truth_at_the_limit_is_scored(here: Path) -> None:
    set_tensor("c.truth.pt", "x", lambda x: torch.full_like(x, 9e29))
    assert main([*ATTACK]) in (0, 3)
    assert json.loads(Path("out/results.json").read_text())["findings"]


@pytest.mark.parametrize("name", ["x", "pool"])
@pytest.mark.parametrize("token", [-1.0, 1e9])
def test_tokens_that_do_not_exist(
    token: float, name: str, here: Path, turned_down: Refused
) -> None:
    set_tensor("words.truth.pt", name, lambda x: torch.full_like(x, token))
    said = turned_down("attack", "words.pt", "-o", "out", "--attack", "tokens", "-q")
    assert f"{name}: expected tokens from 0 to" in said


def test_huge_reconstructions_are_scored_as_missing(here: Path) -> None:
    """Stored reconstructions of 1e300 have infinite errors; nothing that is recovered is lost."""
    assert main([*ATTACK]) in (0, 3)
    arrays = dict(np.load("out/reconstructions.npz"))
    inputs = [name for name, array in arrays.items() if array.ndim == 4]
    assert inputs
    for name in inputs:
        arrays[name] = np.full_like(arrays[name], 1e300, dtype=np.float64)
    np.savez("out/reconstructions.npz", **arrays)
    record = json.loads(Path("out/results.json").read_text())
    sealed = record_file.sealed(model.of_run(record), Path("out"))
    Path("out/results.json").write_text(json.dumps(model.plain(sealed)))
    assert main(["report", "out", "--rescore", "-q"]) in (0, 3)
    again = json.loads(Path("out/results.json").read_text())
    assert {finding["scores"]["not_recovered"] for finding in again["findings"]} == {1}


# ---------------------------------------------------------------------------------------------
# Nodes and names
# ---------------------------------------------------------------------------------------------


def test_a_truth_without_an_attacked_node(here: Path, turned_down: Refused) -> None:
    """It was refused after the attack, which left its unfinished files."""

    def elsewhere(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["node"] = torch.ones_like(tree["node"])

    edit("a.truth.pt", elsewhere)
    argv = ("attack", "a.pt", "-o", "out", "--attack", "exact", "-q")
    assert "no records of node 0 (it contains nodes [1])" in turned_down(*argv)
    assert main([*argv, "--node", "1"]) in (0, 3)


def test_a_node_without_a_leak_needs_no_records(here: Path) -> None:
    """A curious node hears only its neighbours; of the others, nothing is scored."""
    ring = (*SMALL, "--nodes", "6")
    assert main(["record", "dpsgd", "-o", "ring.pt", *ring]) == 0
    about = trace_file.load_truth("ring.truth.pt")
    attack = ["attack", "ring.pt", "--as", "node:0", "--attack", "exact", "-q"]
    assert main([*attack, "-o", "whole"]) in (0, 3)
    whole = json.loads(Path("whole/results.json").read_text())
    silent = {entry["node"] for entry in whole["undetermined"]}
    if not silent:
        pytest.skip("every node leaks")
    keep = ~torch.isin(about.node, torch.tensor(sorted(silent)))
    for name in ("x", "y", "node", "index"):
        set_tensor("ring.truth.pt", name, lambda value: value[keep])
    assert main([*attack, "-o", "part"]) in (0, 3)


def test_a_coalition_of_more_nodes_than_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Its size was counted, one by one."""
    ring = Graph(3, ((0, 1), (0, 2), (1, 2)))
    assert around(ring, [0], 10**9) == around(ring, [0], 2)
    assert around(Graph(1, ()), [0], 10**9) == around(Graph(1, ()), [0], 0)


@pytest.mark.parametrize("name", ["FOLDER/x.toml", "../x.toml", "x.toml", "./x.toml"])
@pytest.mark.parametrize("carried", [None, 5])
def test_a_trace_names_no_file_of_this_machine(
    name: str, carried: object, here: Path, turned_down: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened, and its first line was shown if it was no protocol."""
    (here / "below").mkdir()
    for folder in (here, here / "below"):
        (folder / "x.toml").write_text("secret")
    path = name.replace("FOLDER", str(here))

    def named(tree: dict[str, Any], about: dict[str, Any]) -> None:
        about["protocol"] = path
        if carried is not None:
            about["provenance"][registry.TEXT] = carried

    edit("a.pt", named)
    monkeypatch.setattr(protocol_file, "load", lambda path: pytest.fail(f"{path} was opened"))
    for argv in (
        ("explain", "a.pt"),
        ("bound", "a.pt"),
        VERIFY,
        ("attack", "a.pt", "-o", "out", "-q"),
    ):
        said = turned_down(*argv)
        assert "there is no victim" in said
        assert "secret" not in said


def test_a_trace_that_carries_its_protocol_is_read(here: Path) -> None:
    """The name of a protocol may end like that of a file."""
    text = PROTOCOL.replace("NAME", "beta").replace('"x"', '"x.toml"')
    kind = registry.of_trace("x.toml", {registry.TEXT: text})
    assert kind.definition.name == "x.toml"
    with pytest.raises(LeakauditError, match="carries the protocol file"):
        registry.of_trace("../x.toml", {registry.TEXT: text})
