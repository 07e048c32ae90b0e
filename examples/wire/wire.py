"""Record messages in the wire format of `leakaudit trace import`; copy this into a program.

It needs numpy, but neither leakaudit nor any other package.
"""

import json
import os

import numpy as np


def record_message(folder, round, src, dst, tensors, file="messages", **more):
    """Append one message; dst: a node, a list of nodes or "all"; tensors: name -> array."""
    os.makedirs(folder, exist_ok=True)
    line = {"round": round, "src": src, "dst": dst, **more, "file": f"{file}.bin"}
    with open(os.path.join(folder, f"{file}.bin"), "ab") as numbers:
        line |= {"offset": numbers.tell(), "dtype": "float32", "names": list(tensors)}
        line["shapes"] = [np.shape(tensor) for tensor in tensors.values()]
        for tensor in tensors.values():
            numbers.write(np.asarray(tensor, "<f4").tobytes())
    with open(os.path.join(folder, f"{file}.jsonl"), "a") as lines:
        lines.write(json.dumps(line) + "\n")  # last, so that no line lacks its numbers
