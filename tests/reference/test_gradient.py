"""One gradient and a model, as a user has them: forms of files, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from invoked import refused
from safetensors.torch import save_file
from torch import Tensor, nn

import leakaudit as la
from leakaudit.cli import main
from leakaudit.reporting.results import record_file
from leakaudit.tasks import data

SPEC = la.TaskSpec("mlp", {"hidden": 64}, shape=(1, 25, 25), classes=10, levels=255)
TOLD = ["--model", "mlp", "--arg", "hidden=64", "--shape", "1,25,25"]
BATCH = 3


class Saved:
    """A model, its gradient on three faces, and these."""

    def __init__(self) -> None:
        self.task = la.Task.build(SPEC)
        model = self.task.module
        self.x = data.load("faces").x[:BATCH]
        self.y = torch.tensor([4, 4, 9])
        loss = nn.functional.cross_entropy(model(self.x), self.y)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        names = self.task.layout.names
        self.gradient = dict(zip(names, parts, strict=True))
        self.weights = {name: value.detach() for name, value in model.state_dict().items()}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    monkeypatch.chdir(tmp_path)
    made = Saved()
    torch.save(made.gradient, "g.pt")
    torch.save(made.weights, "w.pt")
    return made


def attacked(*words: str, code: int = 0) -> dict[str, Any]:
    """The finding of a command on a gradient."""
    assert main(["attack", *words, *TOLD, "--levels", "255", "-o", "out", "-q"]) == code
    results: Any = record_file.read(Path("out/results.json"))
    (finding,) = results["findings"]
    return dict(finding)


def wrapped(prefix: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in given.items()}


FORMS: dict[str, Callable[[Saved], None]] = {
    "by name": lambda s: torch.save(s.gradient, "g.pt"),
    "in order": lambda s: torch.save(list(s.gradient.values()), "g.pt"),
    "one vector": lambda s: torch.save(
        torch.cat([g.flatten() for g in s.gradient.values()]), "g.pt"
    ),
    "float64": lambda s: torch.save({k: v.double() for k, v in s.gradient.items()}, "g.pt"),
    "a checkpoint": lambda s: torch.save({"state_dict": s.weights, "epoch": 3}, "w.pt"),
    "DistributedDataParallel": lambda s: torch.save(wrapped("module.", s.weights), "w.pt"),
    "torch.compile": lambda s: torch.save(wrapped("_orig_mod.", s.gradient), "g.pt"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_records_come_back_from_files_of_every_form(saved: Saved, form: str) -> None:
    FORMS[form](saved)
    np.savez("t.npz", x=saved.x, y=saved.y)
    told = ["--gradient", "g.pt", "--weights", "w.pt", "--batch", "3", "--truth", "t.npz"]
    found = attacked(*told)
    assert found["certificate"]["name"] == "EXACT"
    assert found["scores"]["exact"]["per_image"] == [True] * BATCH
    assert found["scores"]["label_correct"]["per_image"] == [True] * BATCH


def test_safetensors_and_npz_are_read(saved: Saved) -> None:
    save_file({k: v.contiguous() for k, v in saved.weights.items()}, "w.safetensors")
    arrays: dict[str, Any] = {name: value.numpy() for name, value in saved.gradient.items()}
    np.savez("g.npz", **arrays)
    told = ["--gradient", "g.npz", "--weights", "w.safetensors", "--classes", "10"]
    found = attacked(*told, "--batch", "3")
    assert found["certificate"]["name"] == "EXACT"


def test_the_weights_after_one_step_stand_for_the_gradient(saved: Saved) -> None:
    after = {name: saved.weights[name] - 0.5 * saved.gradient[name] for name in saved.weights}
    torch.save(after, "after.pt")
    np.savez("t.npz", x=saved.x, y=saved.y)
    told = ["--after", "after.pt", "--lr", "0.5", "--weights", "w.pt", "--batch", "3"]
    assert attacked(*told, "--truth", "t.npz")["scores"]["exact"]["per_image"] == [True] * BATCH


def test_earlier_results_and_files_of_the_user_stay_until_there_are_new_ones(
    saved: Saved,
) -> None:
    Path("out").mkdir()
    Path("out/trace.pt").write_text("of the user")
    np.savez("t.npz", x=saved.x, y=saved.y)
    told = ["--gradient", "g.pt", "--weights", "w.pt", "--batch", "3"]
    attacked(*told, "--truth", "t.npz")
    before = {file.name: file.read_bytes() for file in Path("out").iterdir()}
    assert before["trace.pt"] == b"of the user"
    for wrong in (["--as", "node:7"], ["--attack", "none"], ["--truth", "w.pt"]):
        assert main(["attack", *told, *TOLD, *wrong, "-o", "out"]) == 2
        assert {file.name: file.read_bytes() for file in Path("out").iterdir()} == before
    assert "scores" in attacked(*told)  # without the truth of the run before
    assert not Path("out/gradient.trace.truth.pt").exists()
    assert main(["attack", *told, *TOLD, "--dry-run", "-o", "dry", "-q"]) == 0
    assert not Path("dry").exists()


def test_without_the_number_of_records_nothing_is_proven(saved: Saved) -> None:
    found = attacked("--gradient", "g.pt", "--weights", "w.pt", code=3)
    assert found["certificate"]["name"] == "APPROXIMATE"


def test_a_gradient_of_another_model_is_not_explained(saved: Saved) -> None:
    torch.save({k: torch.randn_like(v) for k, v in saved.gradient.items()}, "g.pt")
    found = attacked("--gradient", "g.pt", "--weights", "w.pt", "--batch", "3", code=3)
    assert found["certificate"]["name"] == "FAILED"


def test_running_statistics_come_with_the_weights(tmp_path: Path) -> None:
    spec = la.TaskSpec("resnet10", {"bn": "eval"}, shape=(1, 25, 25), classes=10)
    task = la.Task.build(spec)
    state = {name: value.clone() for name, value in task.module.state_dict().items()}
    for name, value in state.items():
        if name.endswith("running_mean"):
            value += 0.5
    gradient = torch.randn(task.layout.size)
    path = tmp_path / "t.pt"
    la.from_gradient(gradient, state, spec, path=path)
    trace = la.load(path)
    kept = trace.task.constants
    assert kept
    assert all(torch.equal(kept[name], state[name]) for name in kept)


BAD: dict[str, tuple[list[str], str]] = {
    "no trace": ([], "expected a trace, or --gradient FILE"),
    "no weights": (["--gradient", "g.pt", *TOLD], "--weights: expected"),
    "no model": (["--gradient", "g.pt", "--weights", "w.pt"], "--model: expected"),
    "no step": (["--after", "w.pt", "--weights", "w.pt", *TOLD], "--after: expected --lr"),
    "other names": (
        ["--gradient", "names.pt", "--weights", "w.pt", *TOLD],
        "--gradient: model 'mlp' has no tensor 'a'",
    ),
    "one is missing": (
        ["--gradient", "less.pt", "--weights", "w.pt", *TOLD],
        "--gradient: tensor 'layer2.bias' (10,) is missing",
    ),
    "another shape": (
        ["--gradient", "list.pt", "--weights", "w.pt", *TOLD],
        "--gradient: expected 4 tensors of shapes",
    ),
    "NaN": (
        ["--gradient", "nan.pt", "--weights", "w.pt", *TOLD],
        "--gradient: tensor 'layer2.bias': 10 of 10 numbers are not finite",
    ),
    "whole numbers": (
        ["--gradient", "whole.pt", "--weights", "w.pt", *TOLD],
        "--gradient: tensor 'layer2.bias': expected floating-point numbers, got torch.int64",
    ),
    "objects": (
        ["--gradient", "objects.pt", "--weights", "w.pt", *TOLD],
        "other Python objects, which are never loaded",
    ),
    "text": (
        ["--gradient", "text.pt", "--weights", "w.pt", *TOLD],
        "contains a dict of something else than tensors",
    ),
    "no file": (["--gradient", "none.pt", "--weights", "w.pt", *TOLD], "No such file"),
    "a folder": (["--gradient", "folder.pt", "--weights", "w.pt", *TOLD], "expected a file"),
    "another form": (["--gradient", "g.csv", "--weights", "w.pt", *TOLD], "expected a file .pt"),
    "records": (
        ["--gradient", "g.pt", "--weights", "w.pt", *TOLD, "--batch", "-1"],
        "--batch: expected a number of records, got -1",
    ),
    "classes": (
        ["--gradient", "g.pt", "--weights", "w.safetensors", *TOLD],
        "--classes: expected the number of classes",
    ),
    "another number than in the truth": (
        ["--gradient", "g.pt", "--weights", "w.pt", *TOLD, "--batch", "2", "--truth", "t.npz"],
        "--batch: expected the 3 records of --truth, got 2",
    ),
    "a trace as well": (
        ["t.pt", "--gradient", "g.pt", "--weights", "w.pt"],
        "--gradient, --weights: expected without a trace",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    saved: Saved, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    last = {"layer2.bias": saved.gradient["layer2.bias"]}
    torch.save({**saved.gradient, "a": torch.ones(2)}, "names.pt")
    torch.save({k: v for k, v in saved.gradient.items() if k not in last}, "less.pt")
    torch.save(list(saved.gradient.values())[::-1], "list.pt")
    torch.save({**saved.gradient, "layer2.bias": torch.full((10,), torch.nan)}, "nan.pt")
    torch.save({**saved.gradient, "layer2.bias": torch.ones(10).long()}, "whole.pt")
    torch.save(SPEC, "objects.pt")
    torch.save({"a": "b"}, "text.pt")
    save_file({k: v.contiguous() for k, v in saved.weights.items()}, "w.safetensors")
    np.savez("t.npz", x=saved.x, y=saved.y)
    Path("folder.pt").mkdir()
    Path("g.csv").touch()
    words, says = BAD[case]
    assert says in refused(capsys, "attack", *words, "-o", "out")
    assert not Path("out").exists()
