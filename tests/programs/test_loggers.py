"""Results arrive in the real trackers, offline, and personal data only if it was not turned off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import leakaudit as la
from leakaudit.cli import main
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.trackers import content

RECORD = "record fedsgd -o t.pt --nodes 2 --graph star --rounds 2 --data faces --samples 1 --model mlp --set hidden=32 -q"
PSNR = "attack/analytic/eavesdropper/psnr/median"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of an attack on two faces, with pictures and the truth."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(RECORD.split()) == 0
        assert main(["attack", "t.pt", "-o", "out", "--attack", "analytic", "-q"]) == 0
    return folder / "out"


def sent(results: Path, **options: bool) -> content.TrackerContent:
    chosen = {"pictures": True, "redact": False, **options}
    return content.gather(
        record_file.read(results / "results.json"),
        results,
        pictures=chosen["pictures"],
        redact=chosen["redact"],
        key=None,
    )


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_scores_are_metrics_and_pictures_show_originals_beside_reconstructions(
    results: Path,
) -> None:
    found = sent(results)
    assert found.metrics[PSNR] == 200.0
    assert found.metrics["attack/analytic/eavesdropper/exact"] == 2
    assert [image.shape for image in found.images.values()] == [(25, 50, 3)] * 2
    (first, _) = found.images.values()
    assert (first[:, :25] == first[:, 25:]).all()
    assert [path.name for path in found.files] == ["reconstructions.png"]
    assert json.loads(found.record)["kind"] == "attack"
    assert "bit for bit" in found.headline


def test_without_pictures_no_image_is_sent(results: Path) -> None:
    found = sent(results, pictures=False)
    assert not found.images
    assert not found.files


def test_redacted_results_have_no_images_labels_and_paths(results: Path) -> None:
    found = sent(results, redact=True)
    assert not found.images
    assert not found.files
    assert str(results.parent) not in found.record + found.report + found.headline
    assert all(one["labels"] is None for one in json.loads(found.record)["findings"])
    assert found.metrics[PSNR] == 200.0


def test_pictures_of_another_run_are_not_sent(results: Path, tmp_path: Path) -> None:
    for file in results.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "reconstructions.png").write_bytes(b"another")
    with pytest.raises(la.LeakauditError, match=r"reconstructions\.png"):
        sent(tmp_path)


def test_names_of_a_malicious_record_are_inert(results: Path) -> None:
    record = json.loads((results / "results.json").read_text())
    for one in record["findings"]:
        one["adversary"] = "../../<script>\x1b[31m"
    names = content.metrics(model.of(record))
    assert PSNR.replace("eavesdropper", "_..__script_31m") in names
    assert all(content.safe(name) == name for name in names)


def test_a_record_in_memory_and_a_sweep_have_metrics(tmp_path: Path) -> None:
    plan = tmp_path / "sweep.toml"
    plan.write_text(
        '[scenario]\nvictim = "dpsgd"\nnodes = 3\ngraph = "ring"\nrounds = 2\ndata = "gaussians"\n'
        'model = "logistic"\n[sweep]\nattacks = ["analytic"]\nseeds = 1\n'
    )
    swept = la.sweep(plan, tmp_path / "swept", executor=la.Executor())
    assert swept.record is not None
    found = content.metrics(swept.record)
    assert found["sweep/analytic/eavesdropper/records"] == 3
    with pytest.raises(la.LeakauditError, match="redact does not apply to the results of a sweep"):
        la.log_to("tensorboard", swept, redact=True)


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def test_tensorboard_receives_scores_pictures_and_texts(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="is in the environment of `make trackers`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = la.log_to("tensorboard", results, to=str(tmp_path), step=7)
    events = EventAccumulator(folder).Reload()
    (score,) = events.Scalars(PSNR)
    assert (score.step, score.value) == (7, 200.0)
    assert {"reconstructions", "pictures/analytic/eavesdropper/0"} <= set(events.Tags()["images"])
    assert any("headline" in tag for tag in events.Tags()["tensors"])


def test_tensorboard_receives_a_record_in_memory(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="is in the environment of `make trackers`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = model.of(record_file.read(results / "results.json"))
    la.log_to("tensorboard", record, to=str(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars(PSNR)[0].value == 200.0
    assert not events.Tags()["images"]


# --- MLflow and wandb: in a process of their own, since both change the one that imports them -------------------------


def in_a_process(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("pictures", [True, False])
def test_mlflow_receives_scores_pictures_texts_and_artifacts(
    results: Path, tmp_path: Path, pictures: bool
) -> None:
    pytest.importorskip("mlflow", reason="is in the environment of `make trackers`")
    code = f"""
import json, mlflow
import leakaudit as la
store = "sqlite:///mlflow.db"
before = mlflow.get_tracking_uri()
run = la.log_to("mlflow", {str(results)!r}, to=store, name="nightly", step=3, pictures={pictures})
assert mlflow.get_tracking_uri() == before
client = mlflow.MlflowClient(tracking_uri=store)
seen = client.get_run(run)
files = []
todo = [""]
while todo:
    for one in client.list_artifacts(run, todo.pop()):
        (todo if one.is_dir else files).append(one.path)
history = client.get_metric_history(run, {PSNR!r})
path = client.download_artifacts(run, "results.json")
print(json.dumps([seen.info.status, seen.data.tags["mlflow.note.content"], sorted(files),
                  [(h.step, h.value) for h in history], json.load(open(path))["kind"]]))
"""
    status, said, files, history, kind = json.loads(in_a_process(code, tmp_path).splitlines()[-1])
    assert status == "FINISHED"
    assert "bit for bit" in said
    assert history == [[3, 200.0]]
    assert kind == "attack"
    assert {"results.json", "report.md"} <= set(files)
    assert ("reconstructions.png" in files) is pictures
    assert any(file.startswith("pictures/") for file in files) is pictures


def test_mlflow_continues_the_active_run(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="is in the environment of `make trackers`")
    code = f"""
import mlflow
import leakaudit as la
mlflow.set_tracking_uri("sqlite:///mlflow.db")
with mlflow.start_run() as active:
    assert la.log_to("mlflow", {str(results)!r}, pictures=False) == active.info.run_id
    assert mlflow.active_run().info.status == "RUNNING"
print(mlflow.get_run(active.info.run_id).data.metrics[{PSNR!r}])
"""
    assert in_a_process(code, tmp_path).splitlines()[-1] == "200.0"


def test_wandb_receives_everything_offline(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="is in the environment of `make trackers`")
    code = f"""
import json, wandb
import leakaudit as la
with wandb.init(project="own", mode="offline") as active:
    assert la.log_to("wandb", {str(results)!r}) == active.id
    said = active.summary["leakaudit_headline"]
    score = active.summary[{PSNR!r}]
again = la.log_to("wandb", {str(results)!r}, to="own", pictures=False, mode="offline")
assert again != active.id and wandb.run is None
print(json.dumps([said, score]))
"""
    said, score = json.loads(in_a_process(code, tmp_path).splitlines()[-1])
    assert "bit for bit" in said
    assert score == 200.0
    first, second = sorted(
        (tmp_path / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime_ns
    )
    images = [len(list(run.rglob("*.png"))) for run in (first, second)]
    assert sorted(images) == [0, 3]


def test_wandb_says_which_setting_it_does_not_know(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="is in the environment of `make trackers`")
    with pytest.raises(la.LeakauditError, match=r"wandb does not accept these settings \(colour\)"):
        la.log_to("wandb", results, to="own", colour="red")
