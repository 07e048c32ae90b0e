"""Write messages in the wire format of `leakaudit trace import`; copy this class into a program.

It needs numpy, but neither leakaudit nor any other package.
"""

import json
import os

import numpy as np


class Wire:
    """Append messages to a folder."""

    def __init__(self, folder):
        """Create the folder and its two files."""
        os.makedirs(folder, exist_ok=True)
        self.data = open(os.path.join(folder, "messages.bin"), "wb")
        self.lines = open(os.path.join(folder, "messages.jsonl"), "w")

    def send(self, round, src, dst, tensors, **more):
        """Record one message; dst: a node, a list of nodes or "all"; tensors: name -> array."""
        line = {"round": round, "src": src, "dst": dst, **more, "file": "messages.bin"}
        line |= {"offset": self.data.tell(), "dtype": "float32", "names": list(tensors)}
        line["shapes"] = [np.shape(tensor) for tensor in tensors.values()]
        for tensor in tensors.values():
            self.data.write(np.asarray(tensor, "<f4").tobytes())
        self.data.flush()  # the numbers first: a program that is killed leaves no line without them
        self.lines.write(json.dumps(line) + "\n")
        self.lines.flush()
