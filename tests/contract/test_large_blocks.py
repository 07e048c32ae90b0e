"""Memory of large vectors is used again during a search, and returned after it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource
import torch
from leakaudit._util import large_blocks

torch.set_num_threads(1)
NUMBERS = 8_000_000

def faults():
    x = torch.ones(NUMBERS, dtype=torch.float64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        x = x * 0.5 + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

usual = faults()
size = resident()
with large_blocks.kept(NUMBERS):
    kept = faults()
    with large_blocks.kept(NUMBERS):
        pass
    again = faults()
grown = resident() - size
print(json.dumps([usual, kept, again, grown, faults()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns large blocks")
def test_blocks_are_used_again_and_returned() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    usual, kept, again, grown, after = json.loads(done.stdout)
    pages = 8 * 8_000_000 // 4096  # of one vector
    assert usual > 10 * pages
    assert kept < 8 * pages  # of 20 vectors; how many are new depends on what lies between them
    assert again < 8 * pages
    assert grown < pages
    assert after > 2 * pages  # what was returned is new again; the rest depends on its neighbours
