"""TensorBoard: an event file in a folder. It has no artifacts, so results.json is not sent."""

from __future__ import annotations

from typing import Any

from leakaudit.reporting.trackers.content import TrackerContent, pixels


def send(
    content: TrackerContent, to: str | None, name: str, step: int, settings: dict[str, Any]
) -> str:
    """Write an event file."""
    from torch.utils.tensorboard import SummaryWriter

    folder = to or "runs/leakaudit"
    with SummaryWriter(folder, **settings) as writer:
        for metric, value in content.metrics.items():
            writer.add_scalar(metric, value, step)
        for tag, image in content.images.items():
            writer.add_image(tag, image, step, dataformats="HWC")
        for path in content.files:
            writer.add_image(path.stem, pixels(path), step, dataformats="HWC")
        writer.add_text(f"{name}/headline", content.headline, step)
        writer.add_text(f"{name}/report", content.report, step)
    return folder
