"""What `auto` says of a network that no exact attack inverts, and what it still returns."""

from __future__ import annotations

import torch
from torch import Generator, nn

import leakaudit as la
from leakaudit.core.progress import watching
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task

CLASSES = 5
RECORDS = 6
LABELS = [0, 0, 1, 2, 4, 4]
HERE = f"{__name__}:pooled"


def pooled() -> nn.Module:
    """A small network with max pooling."""
    convolution = nn.Conv2d(1, 4, 3, padding=1)
    return nn.Sequential(
        convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16, CLASSES)
    )


def attacked(seconds: float, batch: int = RECORDS) -> Reconstruction:
    torch.manual_seed(0)
    model = pooled()
    x = torch.randint(0, 256, (RECORDS, 1, 8, 8)) / 255
    loss = nn.functional.cross_entropy(model(x), torch.tensor(LABELS))
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    spec = TaskSpec(HERE, shape=(1, 8, 8), classes=CLASSES, levels=255)
    state = {name: p.detach() for name, p in model.named_parameters()}
    task = Task.build(spec, trusted=True)
    leaks = la.leaks(la.from_gradient(gradient, state, task, batch=batch))
    with watching(seconds=seconds):
        found = la.attack(leaks, generator=Generator().manual_seed(0), task=task)
    return found[0]


def test_reasons_and_labels_are_left_if_the_time_of_a_search_is_over() -> None:
    found = attacked(1e-3)
    assert found.attack == "labels"
    assert found.certificate is Certificate.APPROXIMATE
    assert found.y is not None
    assert sorted(found.y.tolist()) == LABELS
    assert found.tried == ("dlg", "labels")
    assert "no exact recovery by" in found.note
    assert "MaxPool2d, and which of its inputs it lets through is not known" in found.note
    assert f"it recovers one sample, but each gradient comes from {RECORDS} samples" in found.note
    assert "completion" not in found.note  # it is meant for messages that lack coordinates


def test_reasons_are_said_once_if_nothing_was_tried() -> None:
    found = attacked(1.0, batch=0)
    assert (found.attack, found.tried) == ("none", ())
    assert found.note.count("rgap: ") == 1
    assert "no exact recovery" not in found.note
