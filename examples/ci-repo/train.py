"""A tiny decentralised training program: four nodes on a ring learn to tell faces from others.

Adapt-then-combine D-PSGD: every round a node clips its gradient, takes a step, adds Gaussian noise
and sends its model to its neighbours, then all average. `python train.py` trains; `train(seed,
path)` also records what travels, for the gate in leakaudit.toml.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from skimage.data import lfw_subset

import leakaudit as la

NODES, ROUNDS, CLASSES, SIDE = 4, 8, 2, 8
STEP, CLIP = 0.1, 1.0
SIGMA = 0.25  # noise of a message, per coordinate


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """200 pictures (200, 64) in [0, 1], k/255, and their classes: faces first."""
    large = lfw_subset()[:, : 3 * SIDE, : 3 * SIDE].reshape(200, SIDE, 3, SIDE, 3).mean((2, 4))
    return np.round(large * 255).reshape(200, -1) / 255, (np.arange(200) < 100).astype(int)


def gradient(w: np.ndarray, x: np.ndarray, label: int) -> np.ndarray:
    """Gradient of softmax regression with a bias, clipped to norm `CLIP`."""
    logits = w[:-CLASSES].reshape(CLASSES, -1) @ x + w[-CLASSES:]
    p = np.exp(logits - logits.max())
    q = p / p.sum() - np.eye(CLASSES)[label]
    g = np.concatenate([np.outer(q, x).ravel(), q])
    return g * min(1.0, CLIP / np.linalg.norm(g))


def privatise(model: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What a node sends in place of its model."""
    return model + SIGMA * rng.normal(size=model.shape)


def train(seed: int, path: Path | None = None) -> np.ndarray:
    """Train, and record what travels at `path`; returns the models (NODES, d)."""
    rng = np.random.default_rng(seed)
    x, y = pictures()
    mine = rng.permutation(len(x))[:NODES]
    graph = la.Graph(NODES, ((0, 1), (0, 3), (1, 2), (2, 3)))
    task = la.TaskSpec(
        "logistic", shape=(1, SIDE, SIDE), classes=CLASSES, levels=255, data="lfw_subset, 8x8"
    )
    w = np.zeros((NODES, CLASSES * x.shape[1] + CLASSES))
    params = {
        "alpha": STEP,
        "order": "adapt",
        "noise": "message",
        "sigma": SIGMA,
        "clip": CLIP,
        "samples": 1,
    }
    with la.Recorder(
        path,
        protocol="dpsgd",
        task=task,
        graph=graph,
        params=params,
        public={"w0": w[0]},
        rounds=ROUNDS,
    ) as recorder:
        for i, row in enumerate(mine):  # the private side, only for scoring
            picture = x[row].reshape(1, 1, SIDE, SIDE)
            recorder.truth(node=i, x=picture, y=y[row : row + 1], index=[row])
        recorder.pool(np.delete(x, mine, 0).reshape(-1, 1, SIDE, SIDE))
        for t in range(1, ROUNDS + 1):
            stepped = [w[i] - STEP * gradient(w[i], x[mine[i]], y[mine[i]]) for i in range(NODES)]
            sent = [privatise(model, rng) for model in stepped]
            for i in range(NODES):
                recorder.send(round=t, src=i, dst=graph.neighbours[i], kind="w", value=sent[i])
            sums = [sent[i] + sum(sent[j] for j in graph.neighbours[i]) for i in range(NODES)]
            w = np.stack(sums) / 3
    return w


if __name__ == "__main__":
    print(f"models differ by {np.ptp(train(0), axis=0).max():.3f} at most")
