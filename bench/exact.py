"""How many images of a batch come back bit for bit from differential PDMM, how many were claimed wrongly, and in what time.

python bench/exact.py                     the bundled faces, batches of 2 to 16
python bench/exact.py fashion.npz 32 64   any arrays x (n, h, w[, c]) uint8 and y (n,), with batch sizes
One JSON line a setting; seconds are of the attack alone, on one thread.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import leakaudit as la
from leakaudit import recording
from leakaudit.reconstruction import Certificate
from leakaudit.scenario import Scenario

torch.set_num_threads(1)
SEEDS = 3
SHAPES = {2: (100, 20), 4: (100, 20), 8: (100, 20), 16: (256, 20), 32: (256, 50), 64: (256, 100)}  # b -> hidden units, rounds


def once(data: str, samples: int, dtype: str, differential: bool, seed: int) -> dict[str, Any]:
    """Record a ring of four, attack node 0, count."""
    hidden, rounds = SHAPES[samples]
    settings = {"hidden": hidden, "z0": 0.01, "differential": differential}
    shape: dict[str, Any] = {"nodes": 4, "graph": "ring", "rounds": rounds, "wires": "node:0", "set": settings}
    plan = recording.plan(Scenario(data=data, samples=samples, dtype=dtype, seed=seed, **shape))
    recorder = recording.record(plan, None)
    leaks = la.leaks(recorder.trace, nodes=[0], rounds=rounds)
    start = time.process_time()
    found = la.attack(leaks, "exact", generator=torch.Generator().manual_seed(0))
    seconds = time.process_time() - start
    exact = sum(bool(e) for e in la.score(found, recorder.truth_record)[0].exact or ())
    claimed = samples if found[0].certificate is Certificate.EXACT else 0
    return {"exact": exact, "claimed": claimed, "false": max(0, claimed - exact), "seconds": seconds}


def setting(data: str, samples: int, dtype: str, differential: bool) -> dict[str, Any]:
    """Sum over seeds."""
    runs = [once(data, samples, dtype, differential, seed) for seed in range(SEEDS)]
    total = {key: sum(run[key] for run in runs) for key in ("exact", "claimed", "false")}
    return {
        "bench": f"exact/{'difference' if differential else 'gradient'}-{dtype}-{samples}",
        "ratio": round(total["exact"] / (SEEDS * samples), 3),
        "unit": "of the images bit for bit",
        "target": 1,
        **total,
        "seconds_each": round(sum(run["seconds"] for run in runs) / SEEDS, 2),
    }


if __name__ == "__main__":
    given = f"npz:{sys.argv[1]}" if len(sys.argv) > 1 else "faces"
    for b in [int(a) for a in sys.argv[2:]] or [2, 4, 8, 16]:
        for dtype in ("float64", "float32"):
            for differential in (True, False):
                print(json.dumps(setting(given, b, dtype, differential)), flush=True)
