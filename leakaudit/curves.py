"""How a training goes, round by round: the curves that the papers draw."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder
    from leakaudit.task import Problem

NAMES = ("loss", "accuracy", "consensus", "seconds")


class Curves:
    """Observes a run for its recorder, where that one was asked to keep curves; else it costs nothing."""

    def __init__(self, recorder: Recorder, problem: Problem) -> None:
        self.recorder, self.problem, self.started = recorder, problem, time.perf_counter()

    def observe(self, round: int, w: Tensor, **vectors: Tensor) -> None:
        """Keep loss and accuracy of the mean model on all nodes' data, the consensus error, and norms.

        w: (N, d). consensus: root mean square over nodes of |w_i - mean|. norm_w, and norm_NAME of each vector given, (N, d) or
        (N, k, d): root mean square over nodes of the Euclidean norm. seconds: since the last call.
        """
        if not self.recorder.keep_curves:
            return
        task, mean, passed = self.problem.task, w.mean(0), time.perf_counter() - self.started
        x, y = self.problem.x.flatten(0, 1), self.problem.y.flatten(0, 1)
        keep = self.recorder.curve
        keep("loss", round, float(task.loss(mean, x, y)))
        if task.spec.loss != "squared":
            keep("accuracy", round, task.accuracy(mean, x, y))
        keep("consensus", round, float((w - mean).norm(dim=1).square().mean().sqrt()))
        for name, value in {"w": w, **vectors}.items():
            keep(f"norm_{name}", round, float(value.flatten(1).norm(dim=1).square().mean().sqrt()))
        keep("seconds", round, passed)
        self.started = time.perf_counter()
