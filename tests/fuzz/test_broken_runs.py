"""One command and every fault, once; the whole table takes half an hour (`make faults`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).with_name("faults.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or not (shutil.which("cc") or shutil.which("gcc")),
        reason="errors of the disk are injected on Linux, with a C compiler",
    ),
]


def lines(*argv: str) -> list[dict[str, object]]:
    found = subprocess.run(
        [sys.executable, str(FAULTS), "--runs", "1", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert found.returncode in (0, 1), found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("command", ["record", "attack", "check --update", "report"])
def test_nothing_is_lost_and_nothing_half_written_is_trusted(command: str) -> None:
    cells = lines("--only", command)
    assert len(cells) >= 8
    assert [cell for cell in cells if cell["held"] != cell["runs"]] == []


def test_the_page_keeps_the_figures_of_cells_that_did_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# a\n\n<!-- faults: begin -->\n<!-- faults: end -->\n\nb\n")
    lines("--only", "record/clock", "--page", str(page))
    assert "| `record` | ? | ? | ? | ? | ? | ? | ? | ? | 1/1 |" in page.read_text()
    lines("--only", "record/power", "--page", str(page))
    text = page.read_text()
    assert "| `record` | ? | ? | ? | ? | ? | ? | 1/1 | ? | 1/1 |" in text
    assert text.startswith("# a\n")
    assert text.endswith("\n\nb\n")
