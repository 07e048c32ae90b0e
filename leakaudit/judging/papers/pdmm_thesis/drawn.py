"""The PDMM thesis: its random graphs, and its figures of inexact updates with known models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator

from leakaudit.core.leak import GradientLeak
from leakaudit.inversion import attacking
from leakaudit.judging.papers.drawing import draws, exact, of_seeds
from leakaudit.judging.papers.measured import MeasuredPanel
from leakaudit.judging.papers.pdmm_thesis.claims import THESIS, from_models
from leakaudit.judging.papers.runs import FinishedRun, fresh, run
from leakaudit.scoring.scoring import score

NODES = (20, 60, 100)  # the thesis' networks have 60 and 100 nodes
GRAPHS = {"small": 2_000, "paper": 20_000}  # of each size
TOGETHER = 500  # graphs whose matrices are multiplied at once
STEPS = (1, 5, 10, 20, 50, 100)  # k_max of Figure 6.2
STEPS_OF_IMAGES = (1, 20, 100, 300)  # k_max of Figure 6.3
IMAGES = {"small": ("faces",), "paper": ("faces", "photos")}
ATTACK = {"steps": 30, "restarts": 1, "adam_steps": 400}  # 30 steps, as in section 5.4


def connected(
    nodes: int, radius: float, graphs: int, generator: Generator, *, torus: bool = False
) -> int:
    """Count the connected ones of random geometric graphs on the unit square, or on a torus."""
    found = 0
    for start in range(0, graphs, TOGETHER):
        some = min(TOGETHER, graphs - start)
        places = torch.rand(some, nodes, 2, generator=generator, dtype=torch.float64)
        apart = (places[:, :, None] - places[:, None]).abs()
        if torus:
            apart = torch.minimum(apart, 1 - apart)
        reached = (apart.norm(dim=-1) < radius).float()  # a node reaches itself
        for _ in range(math.ceil(math.log2(nodes))):  # then paths twice as long
            reached = (reached @ reached).clamp_(max=1)
        found += int((reached[:, 0] > 0).all(1).sum())
    return found


@draws("pdmm-thesis/fig3.1")
def _fig_3_1(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    graphs = GRAPHS[scale]
    shares: dict[bool, list[list[float]]] = {False: [], True: []}
    for seed in seeds:
        for torus, of_all in shares.items():
            generator = fresh(seed)
            of_seed = []
            for nodes in NODES:
                radius = math.sqrt(math.log(nodes) / nodes)
                found = connected(nodes, radius, graphs, generator, torus=torus)
                of_seed.append(found / graphs)
            of_all.append(of_seed)
    least = [1 - 1 / nodes**2 for nodes in NODES]
    lines = (
        of_seeds("radius sqrt(log N / N) on a square", NODES, seeds, shares[False]),
        of_seeds("radius sqrt(log N / N) on a torus", NODES, seeds, shares[True]),
        exact("1 - 1 / N^2", NODES, least),
    )
    return (MeasuredPanel("connected", "share of connected graphs", "nodes N", lines),)


@draws("pdmm-thesis/fig5.1")
def _fig_5_1(_scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    return (_error_panel((1000,), 20, seeds),)


@draws("pdmm-thesis/fig6.2")
def _fig_6_2(_scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    return (_error_panel(STEPS, 100, seeds),)


def _error_panel(all_steps: Sequence[int], rounds: int, seeds: Sequence[int]) -> MeasuredPanel:
    """Return the error of the inputs by round, a line for each number of gradient steps."""
    lines = []
    for steps in all_steps:
        errors = []
        for seed in seeds:
            settings = {**THESIS["set"], "k_max": steps}
            done = run(**{**THESIS, "set": settings, "rounds": rounds, "seed": seed})
            errors.append(_input_errors(done))
        lines.append(of_seeds(f"k_max = {steps}", range(1, rounds - 1), seeds, errors))
    said = "mean Euclidean error of the inputs, eq. (6.9)"
    return MeasuredPanel("error", said, "round t", lines, logarithmic=True)


def _input_errors(done: FinishedRun) -> list[float]:
    """Return the mean distance of the inputs from the ratios of eqs. (5.12) and (5.13), by t."""
    distances = []
    for node in range(done.trace.graph.nodes):
        difference = from_models(done, node)
        x, _ = done.truth.of(node)
        found = difference[:, :-1] / difference[:, -1:]
        distances.append((found - x.double()).norm(dim=1))
    return list(map(float, torch.stack(distances).mean(0)))


@draws("pdmm-thesis/fig6.3")
def _fig_6_3(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    lines = []
    for data in IMAGES[scale]:
        values = [[_psnr(data, steps, seed) for steps in STEPS_OF_IMAGES] for seed in seeds]
        lines.append(of_seeds(data, STEPS_OF_IMAGES, seeds, values))
    return (MeasuredPanel("psnr", "PSNR, dB", "k_max", lines),)


def _psnr(data: str, steps: int, seed: int) -> float:
    """Return the PSNR of a node's image from the first difference of eq. (2.13)."""
    settings = {"rho": 0.4, "alpha": 0.1, "k_max": steps, "z0": 0.01, "hidden": 50}
    network = {"nodes": 6, "graph": "ring", "rounds": 3, "seed": seed, "wires": "none"}
    done = run(**network, data=data, model="mlp", set=settings)
    models = done.truth.states["w"][1:, 0]
    leak = GradientLeak(
        node=0,
        rounds=torch.arange(1, 4),
        combination=torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64),
        value=from_models(done, 0),
        std=torch.full((1,), 1e-15, dtype=torch.float64),
        columns=(0, models.shape[1]),
        theta=models,
        batch=1,
        records=1,
        theta_rounds=torch.arange(1, 4),
        estimate="the equation assumes an exact local update",
    )
    found = attacking.attack_one(leak, done.plan.task, "differential", fresh(seed), **ATTACK)
    (scored,) = score([found], done.truth)
    assert scored.psnr is not None
    return float(scored.psnr[0] or 0.0)
