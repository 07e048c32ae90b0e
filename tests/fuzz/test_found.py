"""What the fuzzer found, one test per cause: each input is refused in one line, or read."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mutations
import numpy as np
import pytest
import torch
from corpus import FACES, SMALL
from invoked import refused

from leakaudit._util.npz import Npz
from leakaudit._util.seeds import nth_generator
from leakaudit.adversary import Adversary
from leakaudit.cli import main
from leakaudit.errors import LONGEST, LeakauditError, one_line
from leakaudit.pipeline.checkpoint import Checkpoint
from leakaudit.protocols.declared import protocol_of
from leakaudit.relations import Vector
from leakaudit.relations.estimate import recorded
from leakaudit.relations.semidefinite import supremum
from leakaudit.rendering.gallery import image
from leakaudit.results import record_file
from leakaudit.sweeping import tables
from leakaudit.tasks import data_files
from leakaudit.tasks.exported import archive
from leakaudit.trace import Layout
from leakaudit.traces import trace_file
from leakaudit.traces._storage import foreign
from leakaudit.viewing.running import Stage

ATTACK = ("attack", "c.pt", "-o", "out", "-q")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, a results folder, and the unfinished part of the same attack."""
    folder = tmp_path_factory.mktemp("made")
    assert main(["record", "dpsgd", "-o", str(folder / "a.pt"), *SMALL]) == 0
    assert main(["record", "fedsgd", "-o", str(folder / "c.pt"), *FACES, "--set", "hidden=4"]) == 0
    with patch.object(Checkpoint, "clear", lambda self: None):
        assert main(["attack", str(folder / "c.pt"), "-o", str(folder / "out"), "-q"]) == 0
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change the tree and the description of a torch file."""
    tree = torch.load(path, weights_only=True, mmap=False)
    about = json.loads(tree["meta"])
    change(tree, about)
    tree["meta"] = json.dumps(about)
    path.write_bytes(mutations.torch_bytes(tree))
    path.with_name(f"{path.name}.sha256").unlink(missing_ok=True)


# --- messages repeat parts of a file ---------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J", "a\u2028b", "\u202eb", "one\ntwo", "##[stop-commands]x", "\x9b31m", "\x00"],
)
def test_an_error_is_one_printable_line(text: str) -> None:
    line = str(LeakauditError(f"unknown key {text!s}"))
    assert line.isprintable()
    assert "##[" not in line
    assert line == one_line(line)


def test_an_error_is_not_as_long_as_the_file() -> None:
    line = str(LeakauditError("first " + "9" * 10**6 + " last"))
    assert len(line) < LONGEST + 10
    assert line.startswith("first ")
    assert line.endswith(" last")


# --- numbers that no recording of this size has ----------------------------------------------


def test_a_million_nodes_without_edges(here: Path) -> None:
    edit(here / "a.pt", lambda tree, about: about.update(nodes=10**6))
    assert "its topology has 1000000 nodes" in refused_by("trace", "info", "a.pt")


def test_rounds_without_messages(here: Path) -> None:
    def late(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["messages"]["written"][2] = 2**31 - 1

    edit(here / "a.pt", late)
    assert "messages go up to round 2147483647" in refused_by("bound", "a.pt")


def test_more_inner_steps_than_messages_can_mean(here: Path) -> None:
    assert main(["record", "dpnorm", "-o", "n.pt", *SMALL]) == 0
    edit(here / "n.pt", lambda tree, about: about["params"].update(inner=10**9))
    assert "far more than a recording of this size can have" in refused_by("bound", "n.pt")


def test_an_honest_recording_is_far_below_these_limits(here: Path) -> None:
    trace = trace_file.load(here / "a.pt")
    assert len(protocol_of(trace).whole.vectors) < 10 * len(trace)


def refused_by(*argv: str) -> str:
    """Run a command that must fail; return its line."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        assert main(argv) == 2
    (line,) = said.getvalue().splitlines()
    return line


# --- values of a trace that do not fit together ----------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 1)])
def test_a_public_tensor_of_another_shape(here: Path, shape: tuple[int, ...]) -> None:
    def other(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["public"]["w0"] = torch.zeros(shape)

    edit(here / "a.pt", other)
    assert "has shape" in refused_by("explain", "a.pt", "-q")


def test_constants_that_cannot_be_compared(here: Path) -> None:
    trace = trace_file.load(here / "a.pt")
    odd = replace(trace, params={**trace.params, "sigma": None})
    with pytest.raises(LeakauditError):
        _ = protocol_of(odd).whole


def test_a_vector_of_another_length_is_not_split() -> None:
    layout = Layout(("w", "b"), ((2, 2), (2,)))
    with pytest.raises(
        LeakauditError, match=r"expected a vector of 6 parameters, got shape \(0,\)"
    ):
        layout.split(torch.zeros(0))


def test_bfloat16_among_public_tensors_is_no_npz(here: Path) -> None:
    def half(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["public"]["w0"] = tree["public"]["w0"].to(torch.bfloat16)

    edit(here / "a.pt", half)
    assert "does not support bfloat16" in refused_by("trace", "convert", "a.pt", "a.npz")
    assert not (here / "a.npz").exists()


def test_public_tensors_that_share_their_memory_become_safetensors(here: Path) -> None:
    def twice(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["public"]["again"] = tree["public"]["w0"]

    edit(here / "a.pt", twice)
    assert main(["trace", "convert", "a.pt", "a.safetensors"]) == 0
    found = foreign.read_safetensors(here / "a.safetensors", 1e9)
    assert torch.equal(found.public["again"], found.public["w0"])


# --- archives of arrays ----------------------------------------------------------------------


def broken(path: Path, name: str, body: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, body)
    return path


def header(text: str) -> bytes:
    raw = text.encode()
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + bytes(64)


HEADERS = {
    "a header that does not end": header("((((("),
    "a shape of truth values": header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,), }"
    ),
    "a number format that does not exist": header(
        "{'descr': '<f99', 'fortran_order': False, 'shape': (1,), }"
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_array_with_a_broken_header(name: str, tmp_path: Path) -> None:
    path = broken(tmp_path / "x.npz", "x.npy", HEADERS[name])
    with pytest.raises(ValueError, match=r"."), Npz(path) as file:
        file["x"]
    with pytest.raises(LeakauditError):
        data_files.read_npz(path)


def test_an_entry_that_is_no_array(tmp_path: Path) -> None:
    path = broken(tmp_path / "x.npz", "x.npy", b"text")
    with pytest.raises(ValueError, match=r"."), Npz(path) as file:
        file["x"]
    with pytest.raises(LeakauditError):
        data_files.read_npz(path)


def test_images_of_text_are_not_drawn() -> None:
    assert image(np.array([[[["a"]]]]), 0) is None


# --- records ---------------------------------------------------------------------------------


def test_a_record_that_nests_too_deeply(here: Path) -> None:
    path = here / "out" / "results.json"
    values = json.loads(path.read_text())
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    values["provenance"]["extra"] = deep
    path.write_text(json.dumps(values))
    with pytest.raises(LeakauditError, match="nest more than"):
        record_file.read(path)


def test_an_edge_of_three_nodes_is_not_drawn(here: Path) -> None:
    path = here / "out" / "results.json"
    odd: list[list[list[int]]] = [[[0, 1, 2]], [[]], [[0, 5]]]
    for links in odd:
        values = json.loads(path.read_text())
        values["trace"]["links"] = links
        path.write_text(json.dumps(values))
        assert main(["report", "out", "-o", "r.html"]) == 0


def test_rounds_of_a_record_are_not_counted_one_by_one(here: Path) -> None:
    path = here / "out" / "results.json"
    values = json.loads(path.read_text())
    values["trace"]["rounds"] = 10**12
    path.write_text(json.dumps(values))
    assert main(["report", "out", "--redact", "-f", "text", "-o", "r.txt"]) == 0


# --- the finished part of an attack ----------------------------------------------------------


def entry(**changed: Any) -> Callable[[dict[str, Any], Any], None]:
    return lambda tree, about: about[0].update(changed)


def tensor(name: str, value: torch.Tensor) -> Callable[[dict[str, Any], Any], None]:
    return lambda tree, about: tree["tensors"].update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        entry(node={}),
        entry(node=99),
        entry(note=1.5),
        entry(seconds=[1]),
        entry(residual="0"),
        entry(certified={}),
        entry(certificate="PROVEN"),
        entry(others=3),
        tensor("x0", torch.zeros(1, 1, 25, 25, dtype=torch.bfloat16)),
        tensor("x0", torch.zeros(())),
        tensor("x0", torch.zeros(1, 625)),
        tensor("y0", torch.zeros(1, 2, dtype=torch.int64)),
    ],
)
def test_an_odd_checkpoint(here: Path, change: Callable[[dict[str, Any], Any], None]) -> None:
    for path in sorted((here / "out" / "unfinished").iterdir()):
        edit(path, change)
    for path in (here / "out").iterdir():
        if path.is_file():
            path.unlink()
    assert "--resume" in refused_by(*ATTACK, "--resume")


# --- others ----------------------------------------------------------------------------------


def test_a_sweep_of_two_billion_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # it is looked at, and other tests write into the checkout
    path = tmp_path / "plan.toml"
    path.write_text('[scenario]\nvictim = "dpsgd"\n[sweep]\nseeds = 2000000000\n')
    with pytest.raises(LeakauditError, match="expected at most 1000000 seeds"):
        tables.load(path)
    assert "expected at most" in refused(capsys, "sweep", str(path), "--dry-run")


def test_a_program_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w") as file:
        for name in (archive.GRAPH, *archive.TENSORS, *archive.TENSORS.values()):
            file.writestr(f"m/{name}", b'{"\x80": 1}')
    with pytest.raises(LeakauditError, match=r"m\.pt2"):
        archive.read(path)


def test_a_folder_in_which_a_recording_never_began_can_be_used(tmp_path: Path) -> None:
    """An I/O error while the first shard was made left an empty folder, which was then refused."""
    (tmp_path / "out" / "shards").mkdir(parents=True)
    (tmp_path / "out" / ".manifest.json.1.tmp").touch()
    assert main(["record", "pdmm", "-o", f"{tmp_path}/out/", *SMALL]) == 0
    (tmp_path / "other" / "shards").mkdir(parents=True)
    (tmp_path / "other" / "shards" / "notes.txt").touch()
    assert main(["record", "pdmm", "-o", f"{tmp_path}/other/", *SMALL]) == 2


def test_an_export_that_was_interrupted_can_be_repeated(here: Path) -> None:
    assert main(["view", ".", "--export", "site", "-q"]) == 0
    (here / "site" / "index.html").unlink()
    (here / "site" / ".index.html.1.tmp").touch()
    assert main(["view", ".", "--export", "site", "-q"]) == 0
    (here / "site" / "index.html").unlink()
    (here / "site" / "notes.txt").touch()
    assert "contains other files" in refused_by("view", ".", "--export", "site", "-q")


# --- found on the merged code -----------------------------------------------------------------


def test_an_epsilon_beyond_all_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    epsilon = "1" + "0" * 400
    Path("a.toml").write_text(
        f'[scenario]\nvictim = "dpnorm"\n[audit]\nepsilon = [{epsilon}, 1.0]\n'
    )
    assert "epsilon" in refused(capsys, "audit", "a.toml", "--dry-run")


def test_a_negative_seed() -> None:
    with pytest.raises(LeakauditError, match="seed: expected a whole number >= 0, got -1"):
        nth_generator(-1, 0)


def test_mu_beyond_all_floats_is_infinite() -> None:
    assert supremum(np.full((2, 2), 1e200), np.full(2, 1e100)) == (math.inf, math.inf)


def test_the_share_of_a_sweep_of_astronomic_length() -> None:
    assert Stage("cells", 10**400, 3).share == "100%"
    assert Stage("cells", 3, 10**400).share == "0%"


@pytest.mark.parametrize("shape", [(1, 3), (2,), (0,)])
def test_a_public_model_of_another_shape_is_no_vector(shape: tuple[int, ...], here: Path) -> None:
    def other(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["public"]["w0"] = torch.zeros(shape)

    edit(here / "a.pt", other)
    trace = trace_file.load(here / "a.pt", verify=False)
    with pytest.raises(LeakauditError, match="public tensor 'w0' has shape"):
        recorded(Adversary().view(trace))(Vector("public", "w0", None, 0))
