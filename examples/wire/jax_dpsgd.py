"""Nodes on a ring train a network in JAX by D-PSGD; each has one picture, and sends its model.

    python jax_dpsgd.py messages/ --truth truth.npz

Lian et al. 2017, Algorithm 1. All nodes run in this process, which records what they would send.
The program does not use leakaudit: `wire.py` beside it writes the messages.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from wire import record_message

NODES, SIDE, HIDDEN, CLASSES = 4, 12, 32, 3
STEP = 0.1


def picture(node):
    """Return the picture (side, side) of a node, in k/255, and its label."""
    random = np.random.default_rng(100 + node)
    return np.float32(random.integers(0, 256, (SIDE, SIDE)) / 255), node % CLASSES


def start():
    """Return the parameters, as JAX and Flax hold them: kernels are (in, out)."""
    one, two = jax.random.split(jax.random.key(0))
    return {
        "dense1": {
            "kernel": 0.1 * jax.random.normal(one, (SIDE * SIDE, HIDDEN)),
            "bias": jnp.zeros(HIDDEN),
        },
        "dense2": {
            "kernel": 0.1 * jax.random.normal(two, (HIDDEN, CLASSES)),
            "bias": jnp.zeros(CLASSES),
        },
    }


def loss(w, x, y):
    """Return the cross-entropy of one picture."""
    hidden = jax.nn.relu(x.ravel() @ w["dense1"]["kernel"] + w["dense1"]["bias"])
    logits = hidden @ w["dense2"]["kernel"] + w["dense2"]["bias"]
    return -jax.nn.log_softmax(logits)[y]


def named(w):
    """Return name -> array; JAX sorts the names, so a bias precedes its kernel."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(w)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def main():
    """Train for some rounds, and record every message."""
    parser = argparse.ArgumentParser(description="D-PSGD on a ring, in JAX")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--truth", help="write the pictures to this .npz file, to score attacks")
    args = parser.parse_args()
    gradient = jax.jit(jax.grad(loss))
    data = [picture(node) for node in range(NODES)]
    models = [start() for _ in range(NODES)]
    for t in range(args.rounds):
        for i in range(NODES):
            near = [(i - 1) % NODES, (i + 1) % NODES]
            record_message(args.folder, t, i, near, named(models[i]), kind="w")
        new = []
        for i in range(NODES):
            three = (models[i], models[(i - 1) % NODES], models[(i + 1) % NODES])
            g = gradient(models[i], *data[i])
            new.append(jax.tree.map(lambda a, b, c, d: (a + b + c) / 3 - STEP * d, *three, g))
        models = new
    if args.truth:
        x, y = zip(*data, strict=True)
        np.savez(args.truth, x=np.stack(x)[:, None], y=np.array(y), node=np.arange(NODES))


if __name__ == "__main__":
    main()
