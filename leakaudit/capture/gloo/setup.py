"""The setup of a run for its processes, in a folder that only they and their parent read."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Generator, Tensor

from leakaudit._util.files import replacing, write_tensors
from leakaudit._util.own_code import Trust
from leakaudit.capture.gloo.board import ProcessBoard
from leakaudit.capture.gloo.faults import Fault
from leakaudit.core.payload import StoredColumns
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols.recording import Plan
from leakaudit.protocols.scenario import Scenario

FILE = "setup.pickle"


@dataclass(frozen=True)
class ProcessLayout:
    """The distribution of a run over processes."""

    procs: int  # number of processes; each gets a block of consecutive nodes
    timeout: float = 120.0  # seconds after which a process that neither sends nor waits is given up
    faults: tuple[Fault, ...] = ()

    def place(self, nodes: int) -> list[int]:
        """Return the process of every node."""
        return [i * self.procs // nodes for i in range(nodes)]


@dataclass(frozen=True)
class Setup:
    """The setup of one run, as its processes read it."""

    folder: Path
    scenario: Scenario
    spec: TaskSpec
    graph: Graph
    wires: tuple[tuple[int, int], ...]  # undirected edges that are recorded
    kept: StoredColumns  # what is recorded of each message
    public: Mapping[str, Tensor]
    random: Tensor  # initial state of the generator, common to all processes
    options: ProcessLayout  # the distribution of the run over processes
    trusted: Trust  # the `package.module:factory` that may execute its code; True for any

    @cached_property
    def place(self) -> list[int]:
        """The process of every node."""
        return self.options.place(self.graph.nodes)

    def here(self, rank: int) -> list[int]:
        """Return the nodes of a process."""
        return [i for i, p in enumerate(self.place) if p == rank]

    def generator(self) -> Generator:
        """Return the common generator.

        Every process draws for all nodes, and uses what it drew for its own.
        """
        made = Generator()
        made.set_state(self.random)
        return made

    def data(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return x (k, b, *shape) and y (k, b) of a process's nodes, and remove their file."""
        path = self.folder / f"data{rank}.pt"
        found = torch.load(path, weights_only=True)
        path.unlink()
        return found["x"], found["y"]

    @classmethod
    def read(cls, folder: Path) -> Setup:
        """Read the setup that `prepare` wrote."""
        setup: Setup = pickle.loads((folder / FILE).read_bytes())
        return setup


def prepare(
    folder: Path, plan: Plan, public: Mapping[str, Tensor], options: ProcessLayout, trusted: Trust
) -> Setup:
    """Write the files of the processes: the common setup, the data of each, and an empty board.

    Args:
        folder: A private folder, because its files are unpickled.
        trusted: The ``package.module:factory`` that may execute its code; True for any.
    """
    setup = Setup(
        folder,
        scenario=plan.scenario,
        spec=plan.task.spec,
        graph=plan.graph,
        wires=tuple(plan.wires),
        kept=plan.kept,
        public=dict(public),
        random=plan.random["run"].get_state(),
        options=options,
        trusted=trusted,
    )
    with replacing(folder / FILE, durable=False) as file:
        pickle.dump(setup, file)
    place = torch.tensor(setup.place)
    for rank in range(options.procs):
        rows = plan.rows[place == rank]
        own = {"x": plan.source.x[rows].to(plan.task.dtype), "y": plan.source.y[rows]}
        write_tensors(folder / f"data{rank}.pt", own, durable=False)
    ProcessBoard(folder / "board", options.procs, new=True)
    return setup
