"""What the fuzzer found, one test per cause: each input is refused in one line, or read."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import math
import resource
import shutil
import struct
import sys
import time
import tomllib
import tracemalloc
import warnings
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
from corpus import FACES, SMALL, SWEEP, export_model
from invoked import refused
from msgspec import Struct
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from leakaudit._util import config
from leakaudit._util.assignment import match, match_labels
from leakaudit._util.decoding import TypeMismatch, decoded
from leakaudit._util.plain import is_number
from leakaudit._util.seeds import nth_generator
from leakaudit._util.uncollected import CONTAINERS, read_json
from leakaudit._util.untrusted.npz import Npz
from leakaudit.capture.tap.guessing import observed
from leakaudit.capture.tap.log.reading import number, read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.messages.streams import LogChannel
from leakaudit.cli import main
from leakaudit.cli.check import _write
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LONGEST, AttackError, LeakauditError, brief, one_line
from leakaudit.core.leak import GradientLeak
from leakaudit.core.quantities import QUANTITIES
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import Graph, Layout, TaskSpec
from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.search import batched_search
from leakaudit.inversion.search.lbfgs import LbfgsMemory
from leakaudit.inversion.search.objectives import missing
from leakaudit.protocols import declared
from leakaudit.protocols.declared import protocol_of
from leakaudit.reporting.findings import redaction, wording
from leakaudit.reporting.rendering.audit_text import counted
from leakaudit.reporting.rendering.gallery import image
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import NumberColumn, VerdictEntry
from leakaudit.reporting.viewing.running import _StageProgress
from leakaudit.runs.pipeline.checkpoint import Checkpoint
from leakaudit.runs.sweeping import tables
from leakaudit.scoring import lpips_weights
from leakaudit.scoring.metrics import identification, ssim
from leakaudit.tasks import data_files
from leakaudit.tasks.exported import archive
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Relations, Vector
from leakaudit.theory.relations.declare import OUTLINED, TERMS, at_most, outline
from leakaudit.theory.relations.estimate import recorded
from leakaudit.theory.relations.semidefinite import supremum
from leakaudit.traces import trace_file, vocabulary
from leakaudit.traces._storage import arrays, foreign, sizes
from leakaudit.views.accounting import symmetry
from leakaudit.views.accounting.symmetry import _Symmetry
from leakaudit.views.conformance import substitute
from leakaudit.views.messages import ExpectedMessages

pytestmark = pytest.mark.usefixtures("own_folder")

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


def test_rounds_far_behind_the_last_message(here: Path) -> None:
    """Rounds without messages do not count like those with some: 100 of them are too many.

    A bound of the nine nodes over 100 rounds takes a minute.
    """
    nine = ("--nodes", "9", "--graph", "complete")
    assert main(["record", "secured", "-o", "s.pt", *SMALL, *nine]) == 0

    def late(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["messages"]["written"][2] = 100

    edit(here / "s.pt", late)
    assert "vectors without a recorded message" in refused_by("bound", "s.pt")


def test_rounds_of_equal_relations_far_behind_the_last_message(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds that are alike are copied, which is limited as well; every view would take 3 s."""

    def late(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["messages"]["written"][2] = 1_000

    edit(here / "a.pt", late)
    (here / "a.truth.pt").unlink()
    main(["bound", "a.pt", "-q"])
    said = "".join(capsys.readouterr())
    assert "not recorded; the first is" in said


def test_names_that_no_archive_takes(here: Path) -> None:
    def other(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["public"]["w" * 70_000] = torch.zeros(1)

    edit(here / "a.pt", other)
    line = refused_by("trace", "convert", "a.pt", "a.npz")
    assert "names of at most 1000 characters" in line


def test_no_garbage_is_collected_while_json_is_read() -> None:
    """A baseline of 12 MB took 6.5 s instead of .6 s."""
    collecting = []

    def loads(text: str, **options: Any) -> object:
        collecting.append(gc.isenabled())
        return original(text, **options)

    original = json.loads
    with patch.object(json, "loads", loads):
        assert read_json("[[]]") == [[]]
        with pytest.raises(ValueError, match="Expecting"):
            read_json("[")
    assert collecting == [False, False]
    assert gc.isenabled()


def test_a_bound_beside_the_truth_of_another_recording(here: Path) -> None:
    for end in ("", ".sha256"):
        (here / f"c.truth.pt{end}").replace(here / f"a.truth.pt{end}")
    assert "; replace a.truth.pt, or move it elsewhere" in refused_by("bound", "a.pt")


def test_only_the_shown_beginning_of_a_value_is_written() -> None:
    """The whole representation of a deep value is copied at every level: 5 s for 7 MB."""
    written = 0

    class Leaf:
        def __repr__(self) -> str:
            nonlocal written
            written += 1
            return "leaf"

    assert brief([Leaf()] * 200_000).startswith("[leaf, leaf, ")
    assert written <= 20
    deep: Any = [Leaf()] * 200_000
    for _ in range(500):
        deep = {"a": [deep]}
    assert brief(deep) == "{'a': [{'a': [{...}]}]}"
    assert written <= 20
    assert brief({"a": 1, "b": "text"}) == "{'a': 1, 'b': 'text'}"
    assert brief("x" * 10**6) == "'" + "x" * 59


class Part(Struct):
    """A part of a file, with one entry that may be any JSON."""

    known: int
    free: Any


def test_values_of_another_shape_are_not_searched_for_infinity() -> None:
    """Writing 28 MB of JSON again took 4 s, although the first key was wrong."""
    with patch.object(json, "dumps", side_effect=AssertionError), pytest.raises(TypeMismatch):
        decoded({"known": "text", "free": 1}, Part)
    with pytest.raises(TypeMismatch):
        decoded({"known": 1, "free": math.inf}, Part)
    assert decoded({"known": 1, "free": [2]}, Part) == Part(1, [2])


def test_a_long_file_of_toml(here: Path) -> None:
    (here / "w.toml").write_text("a = [" + "[1]," * 300_000 + "]\n")
    line = refused_by("sweep", "w.toml", "--dry-run")
    assert "expected at most 1048576 characters, got 1200007" in line


def test_renamings_that_fail_are_not_searched_for_ever(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constants of a recording may make all nodes of a complete graph differ."""
    nine = ("--nodes", "9", "--graph", "complete")
    assert main(["record", "dpsgd", "-o", "k.pt", *SMALL, *nine, "--set", "sigma=1"]) == 0
    monkeypatch.setattr(symmetry, "invariant", lambda *_: False)
    searched = 0

    def counted(self: _Symmetry, *args: Any) -> object:
        nonlocal searched
        searched += 1
        return renaming(self, *args)

    renaming = _Symmetry._renaming
    monkeypatch.setattr(_Symmetry, "_renaming", counted)
    assert main(["bound", "k.pt", "-q"]) == 0
    assert searched <= 3 * symmetry.PATIENCE


def test_steps_of_a_protocol_without_messages(here: Path) -> None:
    """A lint outlines it only, which takes a tenth of the time, but is not free."""
    assert main(["record", "single", "-o", "i.pt", *SMALL]) == 0
    edit(here / "i.pt", lambda tree, about: about["params"].update(inner=10**6))
    with outline(), pytest.raises(LeakauditError, match=rf"more than {OUTLINED * 5_000} vectors"):
        ExpectedMessages.of(trace_file.load(here / "i.pt"))


def test_a_million_local_steps_are_refused_before_they_are_declared(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lint declared 745,000 vectors of such a recording before it refused the rest."""
    assert main(["record", "fedavg", "-o", "i.pt", *SMALL]) == 0
    edit(here / "i.pt", lambda tree, about: about["params"].update(epochs=10**6))
    capsys.readouterr()
    with patch.object(Relations, "grad", side_effect=AssertionError("a step is declared")):
        assert main(["trace", "lint", "i.pt"]) == 0
    assert "vectors up to round 1, far more than a recording" in capsys.readouterr().out


def test_rounds_beyond_all_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = 'victim = "dpsgd"\nnodes = 3\ngraph = "ring"\nrounds = {}\nmodel = "logistic"\n'
    for rounds in (10**20, 10**400):
        (here / "s.toml").write_text(scenario.format(rounds) + "[set]\nsigma = 0.5\n")
        assert "expected at most 2147483647, got 1000000" in refused_by("bound", "s.toml")
    (here / "s.toml").write_text(scenario.format(2**31 - 1) + "[set]\nsigma = 0.5\n")
    assert main(["bound", "s.toml", "-q"]) == 0
    assert "no bound: 2,147,483,647 rounds have more than" in capsys.readouterr().out


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
    assert "got shape" in refused_by("explain", "a.pt", "-q")


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


def test_the_depth_of_a_record_is_not_counted_to_its_end() -> None:
    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    text = json.dumps([deep] * 5_000)
    begun = time.process_time()
    with pytest.raises(ValueError, match="nest more than 100 levels"):
        read_json(text, 100)
    assert time.process_time() - begun < 5


def test_a_record_with_a_number_beyond_all_floats(here: Path) -> None:
    """A table of findings ended with OverflowError."""
    path = here / "out" / "results.json"
    values = json.loads(path.read_text())
    values["findings"][0]["seconds"] = 10**400
    path.write_text(json.dumps(values))
    with pytest.raises(LeakauditError, match="a whole number of 401 digits is beyond all floats"):
        record_file.read(path)


def test_a_record_of_countless_nodes_is_not_redacted(here: Path) -> None:
    path = here / "out" / "results.json"
    values = json.loads(path.read_text())
    values["trace"]["nodes"] = 10**9
    with pytest.raises(LeakauditError, match="renumbers at most 200,000 nodes"):
        redaction.redact(values)


def test_a_difference_of_baselines_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _write([("- \u202eCANARY\u202c\n::error::x", {})], "text", "")
    assert capsys.readouterr().out == "- CANARY : :error::x\n"


def test_muffliato_on_a_graph_of_two_parts_claims_nothing() -> None:
    victim = registry.configure(registry.get("victims", "muffliato"), {"sigma": 1.0, "clip": 1.0})
    assert victim.claims(Graph(4, ((0, 1), (1, 2), (2, 3))), 3)
    assert victim.claims(Graph(4, ((0, 1), (2, 3))), 3) == ()


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
    values["trace"]["rounds"] = 2**31 - 1
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
        entry(certified=-(2**64)),
        entry(certified=2),
        entry(certificate="PROVEN"),
        entry(others=3),
        tensor("x0", torch.zeros(1, 1, 25, 25, dtype=torch.bfloat16)),
        tensor("x0", torch.zeros(())),
        tensor("x0", torch.zeros(1, 625)),
        tensor("y0", torch.zeros(1, 2, dtype=torch.int64)),
        tensor("y0", torch.zeros(1, dtype=torch.bool)),
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


def test_a_sparse_table_of_gigabytes_of_zeros(tmp_path: Path) -> None:
    """Its last index made it 2 GB large."""
    path = tmp_path / "s.txt"
    path.write_text("1 1:0.5 111111111:1\n-1 2:1\n1 1:1\n-1 3:2\n")
    with pytest.raises(LeakauditError, match="444444444 numbers, but the file has only 5 entries"):
        data_files.read_libsvm(path)


def test_the_share_of_a_sweep_of_astronomic_length() -> None:
    assert _StageProgress("cells", 10**400, 3).share == "100%"
    assert _StageProgress("cells", 3, 10**400).share == "0%"


@pytest.mark.parametrize("shape", [(1, 3), (2,), (0,)])
def test_a_public_model_of_another_shape_is_no_vector(shape: tuple[int, ...], here: Path) -> None:
    def other(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["public"]["w0"] = torch.zeros(shape)

    edit(here / "a.pt", other)
    trace = trace_file.load(here / "a.pt", verify=False)
    with pytest.raises(LeakauditError, match="public tensor 'w0' has shape"):
        recorded(Adversary().view(trace))(Vector("public", "w0", None, 0))


# --- found with seeds 31 and 42 ---------------------------------------------------------------


def test_bfloat16_of_a_checkpoint_is_stored_as_float32(tmp_path: Path) -> None:
    half = torch.tensor([[0.1, 1 / 3]], dtype=torch.bfloat16)
    one = Reconstruction(
        0, "exact", half.float(), None, Certificate.APPROXIMATE, 0.0, choices={0: half}
    )
    record_file.save_reconstructions(tmp_path / "r.npz", [one])
    with Npz(tmp_path / "r.npz") as file:
        assert torch.equal(torch.from_numpy(file["choices0_0"]), half.float())


def test_noise_whose_covariance_has_no_root() -> None:
    leak = GradientLeak(
        node=0,
        rounds=torch.tensor([1, 2]),
        combination=torch.eye(2),
        value=torch.ones(2, 3),
        std=torch.ones(2),
        columns=(0, 3),
        noise=torch.tensor([[1.0, math.nan], [1.0, 1.0]]),
    )
    with pytest.raises(AttackError, match="too ill-conditioned"):
        first_layer_rows.whiten(torch.ones(2, 3), leak, slice(None))


def test_a_program_whose_strides_reach_beyond_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    export_model(path)
    assert archive.read(path)
    changed = []
    for name, body in mutations.entries(path.read_bytes()):
        if name.endswith(".json") and b'"strides"' in body:
            tree = json.loads(body)
            for payload in tree.get("config", {}).values():
                payload["tensor_meta"]["strides"][0] = {"as_int": 2**62}
            body = json.dumps(tree).encode()
        changed.append((name, body))
    path.write_bytes(mutations.zipped(changed))
    with pytest.raises(LeakauditError, match="more than are stored"):
        archive.read(path)


def test_a_program_that_was_exported_for_a_huge_batch(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    export_model(path)
    changed = []
    for name, body in mutations.entries(path.read_bytes()):
        if name.endswith("model.json"):
            tree = json.loads(body)
            graph = tree["graph_module"]["graph"]
            for meta in graph["tensor_values"].values():
                meta["sizes"][0] = {"as_int": 2**62}
            body = json.dumps(tree).encode()
        changed.append((name, body))
    path.write_bytes(mutations.zipped(changed))
    with pytest.raises(LeakauditError, match="expected a batch of at most 67108864 numbers"):
        archive.read(path)


def test_the_line_of_a_key_in_a_long_file_is_not_sought_for_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "over.sigma = [" + "0.1, " * 180_000 + "\n" + "# sigma\n" * 2_000 + "]\n"
    lengths: list[int] = []
    parsed = config._parsed

    def counted(beginning: str) -> dict[str, Any]:
        lengths.append(len(beginning))
        return parsed(beginning)

    monkeypatch.setattr(config, "_parsed", counted)
    config.line_of(text, ["over", "sigma"])
    assert 0 < sum(lengths) <= config.EXAMINED


def test_ssim_of_huge_numbers_warns_of_nothing() -> None:
    huge = torch.full((1, 1, 8, 8), 1e200, dtype=torch.float64)
    value = ssim(huge, torch.zeros_like(huge), data_range=1.0)
    assert value is not None
    assert value.shape == (1,)


def test_a_sweep_of_two_billion_nodes_is_planned_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = '[scenario]\nvictim = "dpsgd"\nnodes = 2147483647\n[sweep]\nseeds = 1\n'
    Path("w.toml").write_text(plan + 'adversaries = ["node:0"]\n')
    begun = time.process_time()
    assert main(["sweep", "w.toml", "-o", "out", "--dry-run"]) in (0, 2)
    capsys.readouterr()
    assert time.process_time() - begun < 5


def test_a_sweep_of_a_million_seeds_has_too_many_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.toml").write_text(SWEEP.replace("seeds = 2", "seeds = 1000000"))
    begun = time.process_time()
    assert "expected at most 50000 cells" in refused(capsys, "sweep", "w.toml", "--dry-run")
    assert time.process_time() - begun < 5


LONG = "1" + "0" * 5_000


def test_toml_with_a_number_of_too_many_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(f"victim = 'dpsgd'\nseed = {LONG}\n")
    assert "not valid TOML" in refused(capsys, "record", "--scenario", "s.toml", "--dry-run")
    Path("p.toml").write_text(f"name = 'x'\nround = 'm[i -> neighbours] = w0'\nx = {LONG}\n")
    assert "not valid TOML" in refused(capsys, "record", "x", "--plugin", "p.toml", "--dry-run")


def test_an_archive_whose_extra_field_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(mutations.torch_bytes({"x": torch.zeros(3)}))
    raw = bytearray(path.read_bytes())
    entry = raw.rfind(b"PK\1\2")
    name, extra = struct.unpack_from("<HH", raw, entry + 28)
    field = struct.pack("<HHI", 1, 16, 0)  # 16 bytes are stated, four follow
    raw[entry + 46 + name : entry + 46 + name + extra] = field
    struct.pack_into("<H", raw, entry + 30, len(field))
    end = raw.rfind(b"PK\5\6")
    longer = len(field) - extra
    struct.pack_into("<I", raw, end + 12, struct.unpack_from("<I", raw, end + 12)[0] + longer)
    if (wide := raw.rfind(b"PK\6\6")) >= 0:
        length, begin = struct.unpack_from("<QQ", raw, wide + 40)
        struct.pack_into("<Q", raw, wide + 40, length + longer)
        struct.pack_into("<Q", raw, raw.rfind(b"PK\6\7") + 8, begin + length + longer)
    path.write_bytes(raw)
    with pytest.raises(LeakauditError):
        trace_file.load(path)


@pytest.mark.parametrize("alpha", ["1e308", "1e-320", "-1e31"])
def test_constants_at_the_ends_of_float32(
    alpha: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(
        capsys, "record", "dpsgd", "-o", f"{tmp_path}/x.pt", *SMALL, "--set", f"alpha={alpha}"
    )
    assert "alpha: expected 0 or a number from 1e-30 to 1e+30 in size" in said


def test_a_coefficient_beyond_all_floats() -> None:
    p = Relations()
    x = p.state("x", 0)
    p.relate(p.state("y", 0), x * 10**300)
    with pytest.raises(LeakauditError, match=r"coefficient of x\[0,0\] is beyond all"):
        p.relate(p.state("z", 0), x * 10**400)


def test_a_declaration_of_many_terms() -> None:
    def growing(vectors: int) -> None:
        p = Relations()
        w = p.public("w0")
        for k in range(vectors - 1):
            w = w - p.grad(0, at=w, index=k)

    growing(200)
    with (
        at_most((200, 200, frozenset())),
        pytest.raises(LeakauditError, match=f"more than {TERMS * 200} terms"),
    ):
        growing(200)


def test_gradients_of_many_local_steps_are_not_all_computed(here: Path) -> None:
    steps = ("--set", "epochs=300", "--rounds", "8")
    assert main(["record", "fedavg", "-o", "f.pt", *SMALL, "--graph", "star", *steps]) == 0
    trace = trace_file.load(here / "f.pt")
    computed = 0

    def counted(self: Task, thetas: torch.Tensor, *args: Any) -> torch.Tensor:
        nonlocal computed
        computed += len(thetas)
        return gradients(self, thetas, *args)

    gradients = Task.gradients
    with patch.object(Task, "gradients", counted):
        assert main(["trace", "lint", "f.pt", "--truth", "f.truth.pt", "-q"]) == 0
    most = substitute.SOME_GRADIENTS + substitute.GRADIENTS * len(trace)
    assert 2 * most < 3 * 300 * 8
    assert most <= computed <= 2 * most


def test_labels_of_true_and_false(here: Path) -> None:
    path = here / "out" / "reconstructions.npz"
    with np.load(path) as file:
        arrays = dict(file)
    changed = {name: value > 0 if name == "y0" else value for name, value in arrays.items()}
    np.savez(path, **changed)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = here / "out" / "results.json"
    values = json.loads(record.read_text())
    values["files"][path.name] = digest
    record.write_text(json.dumps(values))
    assert "labels are numbers" in refused_by(
        "report", "out", "--rescore", "--truth", "c.truth.pt", "-o", "p"
    )


def test_json_of_a_merged_sweep_is_ascii(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.toml").write_text(SWEEP)
    assert main(["sweep", "w.toml", "-o", "out", "--workers", "0", "-q"]) == 0
    plan = Path("out/plan.json")
    values = json.loads(plan.read_text())
    values["versions"]["torch"] = "\u202e1"
    plan.write_text(json.dumps(values))
    capsys.readouterr()
    assert main(["sweep", "merge", "out", "-o", "m/results.json", "-f", "json", "-q"]) == 3
    said = capsys.readouterr().out
    assert said.isascii()
    assert "\\u202e1" in said


def test_inputs_of_a_graph_in_another_form_are_refused(tmp_path: Path) -> None:
    """They ended with AttributeError, KeyError and TypeError."""
    sound = tmp_path / "sound.pt2"
    export_model(sound)
    graph = "models/model.json"
    with zipfile.ZipFile(sound) as stored:
        name = next(name for name in stored.namelist() if name.endswith(graph))
        program = json.loads(stored.read(name))

    def without_name(signature: dict[str, Any]) -> None:
        del signature["input_specs"][0]["parameter"]["parameter_name"]

    def without_argument(signature: dict[str, Any]) -> None:
        signature["input_specs"][-1]["user_input"]["arg"] = None

    def of_a_list(signature: dict[str, Any]) -> None:
        signature["output_specs"][0]["user_output"]["arg"] = []

    for change in (without_name, without_argument, of_a_list):
        changed = json.loads(json.dumps(program))
        change(changed["graph_module"]["signature"])
        path = tmp_path / f"{change.__name__}.pt2"
        with zipfile.ZipFile(sound) as stored, zipfile.ZipFile(path, "w") as out:
            for entry in stored.infolist():
                content = stored.read(entry)
                if entry.filename == name:
                    content = json.dumps(changed).encode()
                out.writestr(entry, content)
        with pytest.raises(LeakauditError, match="inputs and outputs of its graph"):
            archive.read(path)


def test_a_size_beyond_all_floats_is_a_size() -> None:
    assert sizes.human(10**400) == "1e+288 TB"


def test_a_column_of_scores_with_too_few_entries_is_reported(made: Path, tmp_path: Path) -> None:
    """It ended with IndexError."""
    shutil.copytree(made / "out", tmp_path / "out")
    path = tmp_path / "out" / "results.json"
    record = json.loads(path.read_text())
    for one in record["findings"]:
        one["scores"]["exact"]["per_image"] = []
        one["scores"]["psnr"]["per_image"] = []
    path.write_text(json.dumps(record))
    for form in ("sarif", "html"):
        assert main(["report", str(tmp_path / "out"), "-f", form, "-o", f"{path}.{form}"]) == 0


def test_figures_of_a_verdict_that_lack_some_are_not_shown() -> None:
    verdict = VerdictEntry(
        epsilon=1.0,
        adversary="eavesdropper",
        node=0,
        test="view",
        attack="",
        promise=None,
        verdict="NOT_REFUTED",
        says="",
        power="",
        p=None,
        level=None,
        needs=None,
        figures={"exact": 1.0},  # no claimed epsilon
    )
    assert counted(verdict) == ""


def test_a_description_that_nests_deeply_is_refused(here: Path) -> None:
    """It could be read, but writing it in another format ended with RecursionError."""
    deep: dict[str, Any] = {}
    for _ in range(450):
        deep = {"a": deep}
    edit(here / "a.pt", lambda tree, about: about["task"]["args"].update(deep))
    with pytest.raises(LeakauditError, match="its description 'meta' is not JSON text"):
        trace_file.load(here / "a.pt")

    assert main(["record", "dpsgd", "-o", "b.pt", *SMALL]) == 0
    assert main(["trace", "convert", "b.pt", "b.safetensors"]) == 0
    arrays = load_file(here / "b.safetensors")
    with safe_open(here / "b.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["meta"])
    about["task"]["args"].update(deep)
    save_file(arrays, here / "b.safetensors", {"meta": json.dumps(about)})
    with pytest.raises(LeakauditError, match="lacks a valid description"):
        foreign.read_safetensors(here / "b.safetensors", 1e9)


def test_a_million_samples_behind_three_numbers_are_not_searched(here: Path) -> None:
    """DLG moved a million dummy inputs, with 4 GB of memory."""
    leak = GradientLeak(
        node=0,
        rounds=torch.tensor([1]),
        combination=torch.ones(1, 1),
        value=torch.ones(1, 3),
        std=torch.zeros(1),
        columns=(0, 3),
        theta=torch.zeros(1, 3),
        batch=10**6,
    )
    assert "1000000 samples are behind each gradient of 3 numbers" in str(missing(leak, None))
    assert missing(replace(leak, batch=300), None) is None


def test_pairs_of_a_search_fit_in_memory() -> None:
    """A hundred pairs of two million unknowns are 3 GB; as many as fit are kept."""
    kept = []

    class Noted(LbfgsMemory):
        def __init__(self, like: torch.Tensor, m: int) -> None:
            kept.append((like.shape, m))
            super().__init__(like, m)

    task = Task.build(TaskSpec("logistic", shape=(2,), classes=2, loss="binary"))
    x = torch.rand(4, 2, generator=nth_generator(0, 1))
    y = torch.tensor([0.0, 1.0, 0.0, 1.0])
    theta = torch.zeros(1, task.layout.size)
    value = task.gradient(theta[0], x, y)[None]
    leak = GradientLeak(
        node=0,
        rounds=torch.tensor([1]),
        combination=torch.ones(1, 1),
        value=value,
        std=torch.zeros(1),
        columns=(0, task.layout.size),
        theta=theta,
        batch=4,
    )
    with (
        patch.object(batched_search, "LbfgsMemory", Noted),
        patch.object(batched_search, "MEMORY", 1000),
    ):
        registry.get("attacks", "dlg")(steps=1, restarts=1)(leak, task, nth_generator(0, 0))
    (shape, m), *_ = kept
    assert m * 2 * shape.numel() * 8 <= 1000


def test_labels_that_are_neither_classes_nor_probabilities(here: Path) -> None:
    """Labels as bfloat16 for a loss of classes: RuntimeError from torch."""
    task = TaskSpec("mlp", shape=(1, 2, 2), classes=3)
    vocabulary.labels(torch.tensor([0, 2]), task, "y")
    vocabulary.labels(torch.full((2, 3), 1 / 3), task, "y")
    with pytest.raises(LeakauditError, match="expected whole numbers as labels"):
        vocabulary.labels(torch.tensor([0.0, 2.0]), task, "y")


def test_relations_are_checked_with_a_truth_of_every_node(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truth without some nodes ended with KeyError, and one with odd labels with RuntimeError."""

    def fewer(tree: dict[str, Any], about: dict[str, Any]) -> None:
        kept = tree["node"] == 0
        for name in ("x", "y", "node", "index"):
            tree[name] = tree[name][kept]

    def odd(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["y"] = tree["y"] + 7

    for change, says in ((fewer, "the truth has none of node 1"), (odd, "expected labels")):
        assert main(["record", "dpsgd", "-o", "b.pt", *SMALL, "--states"]) == 0
        edit(here / "b.truth.pt", change)
        assert says in refused(capsys, "trace", "verify", "b.pt", "--relations")


def test_records_in_half_precision_are_ranked() -> None:
    """Distances of torch do not exist in half precision."""
    records = torch.rand(5, 3, generator=nth_generator(0, 0)).half()
    rank, candidates = identification(records[:2] + 0.001, records[:2], records)
    assert rank.tolist() == [1, 1]
    assert candidates.tolist() == [5, 5]


def test_whole_numbers_that_no_float_holds_are_no_numbers() -> None:
    """A log of a tapped program stated 10**400 seconds: OverflowError."""
    for huge in (10**400, -(10**400)):
        assert number(huge) == 0.0
        assert not is_number(huge)
    assert number(10**300) == 1e300


def test_a_log_that_spent_forever_is_read(tmp_path: Path) -> None:
    with Log(tmp_path / "log", 0, world=1) as log:
        log.write("send", torch.ones(3), 0, 0, round=0, kind="w")
    (path,) = (tmp_path / "log").glob("*.jsonl")
    *lines, last = path.read_text().splitlines()
    end = json.loads(last)
    assert "spent" in end
    path.write_text("\n".join([*lines, json.dumps({**end, "spent": 10**400}), ""]))
    (read,) = read_logs(tmp_path / "log")
    assert len(read.events) == 1


def test_a_toml_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "p.toml").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(LeakauditError, match="expected at most 4194304 bytes"):
        config.read(tmp_path / "p.toml")


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited as on Linux")
def test_a_picture_that_states_gigabytes_is_refused(tmp_path: Path) -> None:
    """Pillow asked for 4 GB, and the MemoryError was a traceback."""
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(tmp_path / "a.png")
    damaged = bytearray((tmp_path / "a.png").read_bytes())
    damaged[damaged.index(b"IDAT") - 4] = 0xFF  # the first byte of the length of the pixels
    (tmp_path / "a.png").write_bytes(damaged)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    try:
        with pytest.raises(LeakauditError, match="states a length beyond the free memory"):
            data_files.read_folder(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def test_the_expected_messages_of_many_rounds_with_many_steps_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A million local steps in each of 64 declared rounds kept a lint busy for a minute."""
    assert main(["record", "dpadmm", "-o", "steps.pt", *SMALL]) == 0

    def many(tree: dict[str, Any], about: dict[str, Any]) -> None:
        about["params"]["steps"] = 10**6
        about["rounds"] = 1000

    edit(here / "steps.pt", many)
    trace = trace_file.load(here / "steps.pt")
    says = "far more than a recording of this size can have"
    with outline(), pytest.raises(LeakauditError, match=says):
        ExpectedMessages.of(trace)


def test_a_score_without_a_median_is_shown_by_its_range() -> None:
    """It ended with TypeError."""
    column = NumberColumn(per_image=(1.0, 2.0), min=1.0, median=None, mean=None)
    assert wording.spread(column, QUANTITIES["psnr"]) == "- (1.0 to 2.0)"


def test_records_of_a_node_below_zero_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lint ended with RuntimeError."""

    def below(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree["node"][0] = -3

    assert main(["record", "dpsgd", "-o", "b.pt", *SMALL]) == 0
    edit(here / "b.truth.pt", below)
    said = refused(capsys, "trace", "lint", "b.pt", "--truth", "b.truth.pt")
    assert "node -3 of its records does not exist" in said


def test_a_refused_bound_says_nothing_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It first said which views it evaluates, and then that the truth is of another recording."""
    assert main(["record", "secagg", "-o", "b.pt", *SMALL]) == 0
    with patch("leakaudit.cli.bound.LARGE", 1), patch.object(declared, "MODELLED", 0):
        capsys.readouterr()
        assert main(["bound", "b.pt"]) in (0, 3)
        assert "only the outsider is evaluated" in capsys.readouterr().err

        def more_nodes(tree: dict[str, Any], about: dict[str, Any]) -> None:
            tree["node"] += 100

        edit(here / "b.truth.pt", more_nodes)
        assert "belongs to another recording" in refused(capsys, "bound", "b.pt")


def test_numbers_of_128_bits_are_refused() -> None:
    """It ended with TypeError."""
    with pytest.raises(LeakauditError, match="expected an array of real numbers"):
        arrays.tensor(np.zeros(2, np.longdouble), "payload")


def test_a_node_without_neighbours_has_no_dpnorm_constants() -> None:
    victim = registry.configure(registry.get("victims", "dpnorm"), {})
    with pytest.raises(LeakauditError, match="every node to have a neighbour, got none of node 2"):
        victim.relations(Graph(3, ((0, 1),)), 1, {})


@pytest.mark.parametrize(("name", "value"), [("x", math.nan), ("y", math.inf), ("pool", -math.inf)])
def test_a_truth_has_finite_numbers(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, value: float
) -> None:
    """An attack could not pair its reconstructions with such records, and ended with ValueError."""
    assert main(["record", "dpsgd", "-o", "n.pt", *SMALL]) == 0

    def spoil(tree: dict[str, Any], about: dict[str, Any]) -> None:
        tree[name] = torch.cat([tree[name].double(), tree[name][:1].double() * 0 + value])[1:]

    edit(here / "n.truth.pt", spoil)
    said = refused(capsys, "attack", "n.pt", "-o", "o")
    assert f"'{name}' should contain finite numbers, but has NaN or infinity" in said


def test_records_and_labels_whose_squared_errors_are_infinite_are_paired() -> None:
    guesses = torch.tensor([[3e200], [-3e200]], dtype=torch.float64)
    records = torch.tensor([[1e200], [-1e200], [1.0]], dtype=torch.float64)
    assert match(guesses, records).missing == 1
    assert match_labels(guesses[:, 0] * 1e107, -guesses[:1, 0] * 1e107).missing == 0


def test_weights_with_a_call_of_a_tensor(here: Path) -> None:
    """Torch warned of its own code, and advised to load the file with all that it executes."""
    torch.save({"net.0.weight": torch.ones(2)}, here / "plain.pth")
    with zipfile.ZipFile(here / "plain.pth") as plain, zipfile.ZipFile("w.pth", "w") as called:
        for entry in plain.infolist():
            content = plain.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert content.endswith(b"s.")
                content = content[:-2] + b")Rs."
            called.writestr(entry.filename, content)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(LeakauditError, match="tensors only") as refusal:
            lpips_weights.read(Path("w.pth"))
    assert "weights_only" not in str(refusal.value)
    assert not shown


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_record_of_millions_of_lists_is_refused_at_once(as_bytes: bool) -> None:
    """A file of 130 MB had 29 million lists and objects, which took gigabytes."""
    written = "[" + ",".join(["[]"] * CONTAINERS) + "]"
    text = written.encode() if as_bytes else written
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"at most {CONTAINERS} lists and objects"):
            read_json(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_configuration_is_parsed_only_once(here: Path) -> None:
    """A configuration of 900,000 characters was parsed four times, a second each."""
    text = "seed = 3\n[check.a]\nrun = 'a:b'\n"
    Path("leakaudit.toml").write_text(text)
    with patch.object(tomllib, "loads", wraps=tomllib.loads) as loads:
        main(["config", "lint"])
    assert [call.args[0] for call in loads.call_args_list].count(text) == 1


def test_a_rank_of_a_log_that_no_program_has() -> None:
    # Found by the fuzzer: a rank of 2^32 made a graph of as many nodes.
    wires = [LogChannel(0, 1 << 32, "send")]
    with pytest.raises(LeakauditError, match="the log names rank 4294967296; expected at most"):
        observed._graph(wires)
