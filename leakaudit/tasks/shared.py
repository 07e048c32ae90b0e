"""Data sets and tasks of the last runs, for many runs that differ in little but their seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Generator

from leakaudit._util.own_code import Trust
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks import data, selected_data
from leakaudit.tasks.selection import Selection
from leakaudit.tasks.task import Task

TASKS = 8  # tasks that are held: a run needs two, and two models or victims may alternate


@dataclass
class SharedData:
    """The last data set, and the last tasks; nothing changes them."""

    # the last data set, by what it was loaded from
    sources: dict[tuple[Selection, Path | None, bool], data.Dataset] = field(default_factory=dict)
    # the last tasks, oldest first, with everything that they were built from
    tasks: list[tuple[tuple[object, ...], Task]] = field(default_factory=list)

    def source(
        self, wanted: Selection, root: Path | None, download: bool, generator: Generator
    ) -> data.Dataset:
        """Do what `selected_data.load` does, once; random data are drawn in every call."""
        if data.is_random(wanted.data):
            return selected_data.load(wanted, root, download, generator)
        key = (wanted, root, download)
        if key not in self.sources:
            self.sources.clear()
            self.sources[key] = selected_data.load(wanted, root, download, generator)
        return self.sources[key]

    def task(self, spec: TaskSpec, dtype: torch.dtype, device: str, trusted: Trust) -> Task:
        """Do what `Task.build` does, once for several calls without constants of their own."""
        if spec.constants:
            return Task.build(spec, dtype=dtype, device=device, trusted=trusted)
        key = (spec, spec.beside, dtype, device, trusted)
        for known, task in self.tasks:
            if known == key:
                return task
        task = Task.build(spec, dtype=dtype, device=device, trusted=trusted)
        self.tasks = [*self.tasks[1 - TASKS :], (key, task)]
        return task
