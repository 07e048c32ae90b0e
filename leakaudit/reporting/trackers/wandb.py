"""Weights & Biases: a run in a project, online or offline."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from leakaudit.reporting.trackers.content import RECORD, REPORT, TrackerContent

PROJECT = "leakaudit"


def send(
    content: TrackerContent, to: str | None, name: str, step: int, settings: dict[str, Any]
) -> str:
    """Write to the active run, or to a new one."""
    import wandb

    if to is None and not settings and wandb.run is not None:
        _write(wandb, wandb.run, content, step)
        return str(wandb.run.id)
    with wandb.init(project=to or PROJECT, name=name, **settings) as run:
        _write(wandb, run, content, step)
        return str(run.id)


def _write(wandb: Any, run: Any, content: TrackerContent, step: int) -> None:
    images = {tag: wandb.Image(image) for tag, image in content.images.items()}
    for path in content.files:
        images[path.stem] = wandb.Image(str(path))
    run.log({"leakaudit_step": step, **content.metrics, **images})
    run.summary["leakaudit_headline"] = content.headline
    artifact = wandb.Artifact(f"leakaudit-{run.id}", type="leakaudit")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in ((RECORD, content.record), (REPORT, content.report)):
            written = Path(folder) / name
            written.write_text(text, encoding="utf-8")
            artifact.add_file(str(written))
        for path in content.files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)
