"""Would compression make traces smaller? Size and speed for recorded messages, in four forms.

python bench/compress.py [--rounds 20] [--model mlp]

The messages of a channel are compressed as they are; as differences to the message of the round
before, by exclusive or of their bits, which is exact; and both with the bytes of all numbers sorted
by significance, which compressors of numbers do first. zlib at level 1; reading a file in place,
as attacks do, is not possible after any of them. Prints one JSON line per protocol and form.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from typing import Any

import numpy as np
import torch

import leakaudit as la

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpsgd": ("dpsgd", {}),
    "dpsgd, noise 1e-3": ("dpsgd", {"sigma": 1e-3}),
    "dpsgd, adam": ("dpsgd", {"optimiser": "adam", "alpha": 1e-3}),
    "pdmm, differential": ("pdmm", {}),
    "pdmm, not differential": ("pdmm", {"differential": False}),
    "tracking": ("tracking", {}),
}


def forms(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the forms of consecutive messages (n, d) in float32."""
    bits = rows.view(np.uint32)
    changed = bits.copy()
    changed[1:] ^= bits[:-1]
    found = {"plain": bits, "differences": changed}
    for name, values in [*found.items()]:
        sorted_bytes = values.view(np.uint8).reshape(len(values), -1, 4).transpose(0, 2, 1)
        found[f"{name}, bytes sorted"] = np.ascontiguousarray(sorted_bytes)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", default="mlp")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, (victim, constants) in RUNS.items():
        scenario = la.Scenario(
            victim, nodes=4, graph="ring", rounds=asked.rounds, model=asked.model, set=constants
        )
        trace, _ = la.record(scenario)
        (m,) = trace.messages
        usual = m.kind == m.kind.mode().values
        chosen = usual & (m.src == 0) & (m.dst == m.dst[usual & (m.src == 0)][0])
        rows = m.payload[m.row[chosen].long()].contiguous().numpy()
        for form, values in forms(rows).items():
            before = time.process_time()
            size = sum(len(zlib.compress(row.tobytes(), 1)) for row in values)
            taken = time.process_time() - before
            print(
                json.dumps(
                    {
                        "bench": f"compress/{name}: {form}",
                        "ratio": round(size / rows.nbytes, 3),
                        "unit": "of the size",
                        "MB/s": round(rows.nbytes / taken / 1e6, 1),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
