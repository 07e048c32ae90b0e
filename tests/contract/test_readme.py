"""The README's own code, run as it stands."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from leakaudit.cli import main


def test_every_python_block_runs(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["record", "pdmm", "-o", "trace.pt", "--nodes", "4", "--set", "hidden=32", "-q"]) == 0
    )
    (block,) = re.findall(r"```python\n(.*?)```", (project / "README.md").read_text(), re.S)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("(200.0,) (True,)") == 2


def test_its_links_and_its_picture_are_there(project: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (project / "README.md").read_text()):
        assert (project / target).is_file(), target
    assert (project / "docs/images/report.png").stat().st_size < 200_000


@pytest.mark.slow
def test_every_shell_command_is_understood(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `leakaudit` line of the README runs and ends with code 0.

    `demo` has the sizes of the example, whose own lines run with fewer nodes and rounds; tests/reference/test_claims.py has all claims.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PET_STANDALONE", "1")  # torchrun takes a free port
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "examples").symlink_to(project / "examples")
    blocks = re.findall(r"^```sh\n(.*?)^```$", (project / "README.md").read_text(), re.M | re.S)
    lines = re.findall(r"^(?:\.venv/bin/)?leakaudit (.*?)(?:\s+#.*)?$", "\n".join(blocks), re.M)
    assert len(lines) >= 5
    for line in lines:
        line = line.replace("--nodes 10", "--nodes 5").replace(
            "--rounds 20", "--rounds 8"
        ) + " --row 10" * (line == "reproduce --claims")
        assert main([line.split()[0], "-q", *line.split()[1:]]) == 0, line
