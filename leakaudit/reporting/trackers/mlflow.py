"""MLflow: a run in a tracking store, local or remote."""

from __future__ import annotations

from typing import Any

from leakaudit.reporting.trackers.content import RECORD, REPORT, TrackerContent

EXPERIMENT = "leakaudit"
NOTE = "mlflow.note.content"  # the tag that MLflow displays as the description of a run


def send(
    content: TrackerContent, to: str | None, name: str, step: int, settings: dict[str, Any]
) -> str:
    """Write to the active run, or to a new one.

    Only a client is used, so that neither the active run nor the tracking URI of the process
    changes.
    """
    import mlflow

    active = None
    if to is None and not settings:
        active = mlflow.active_run()
    client = mlflow.MlflowClient(tracking_uri=to)
    if active is not None:
        run = str(active.info.run_id)
        _write(client, run, content, step)
        return run
    run = _new_run(client, name, **settings)
    status = "FAILED"
    try:
        _write(client, run, content, step)
        status = "FINISHED"
    finally:
        client.set_terminated(run, status)
    return run


def _new_run(client: Any, name: str, experiment: str = EXPERIMENT, **settings: Any) -> str:
    known = client.get_experiment_by_name(experiment)
    if known is None:
        number = client.create_experiment(experiment)
    else:
        number = known.experiment_id
    return str(client.create_run(number, run_name=name, **settings).info.run_id)


def _write(client: Any, run: str, content: TrackerContent, step: int) -> None:
    for metric, value in content.metrics.items():
        client.log_metric(run, metric, value, step=step)
    for tag, image in content.images.items():
        client.log_image(run, image, artifact_file=f"{tag}.png")
    for path in content.files:
        client.log_artifact(run, str(path))
    client.set_tag(run, NOTE, content.headline)
    client.log_text(run, content.report, REPORT)
    client.log_text(run, content.record, RECORD)
