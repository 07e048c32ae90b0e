"""Three clients and a server train softmax regression by FedSGD, in numpy.

    python numpy_fedsgd.py messages/ --truth truth.npz

McMahan et al. 2017 with one local step. The server is node 3. All nodes run in this process, which
records what they would send; `wire.py` beside it writes the messages.
"""

import argparse

import numpy as np
from wire import record_message

CLIENTS, SIDE, CLASSES = 3, 8, 4
STEP = 0.1


def gradient(w, b, x, y):
    """Return the gradient of the cross-entropy of one picture, in single precision."""
    logits = w @ x.ravel() + b
    p = np.exp(logits - logits.max())
    q = np.float32(p / p.sum()) - np.eye(CLASSES, dtype=np.float32)[y]
    return np.outer(q, x.ravel()), q


def main():
    """Train for some rounds, and record every message."""
    parser = argparse.ArgumentParser(description="FedSGD in numpy")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--truth", help="write the pictures to this .npz file, to score attacks")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    x = np.float32(random.integers(0, 256, (CLIENTS, 1, SIDE, SIDE)) / 255)
    y = random.integers(CLASSES, size=CLIENTS)
    w = np.float32(0.1 * random.standard_normal((CLASSES, SIDE * SIDE)))
    b = np.zeros(CLASSES, np.float32)
    for t in range(args.rounds):
        record_message(args.folder, t, CLIENTS, "all", {"w": w, "b": b}, kind="w")
        gradients = [gradient(w, b, x[i], y[i]) for i in range(CLIENTS)]
        for i, (of_w, of_b) in enumerate(gradients):
            record_message(args.folder, t, i, CLIENTS, {"w": of_w, "b": of_b}, kind="g")
        w = w - np.float32(STEP) * np.mean([g for g, _ in gradients], axis=0)
        b = b - np.float32(STEP) * np.mean([g for _, g in gradients], axis=0)
    if args.truth:
        np.savez(args.truth, x=x, y=y, node=np.arange(CLIENTS))


if __name__ == "__main__":
    main()
