"""The processes of a tapped program: the tap starts in each of them, comes with torch alone, and leaves the program as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leakaudit.capture.tap.launch import SITE
from leakaudit.capture.tap.log.environment import VARIABLE


def probe(folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SITE), str(folder)]),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env=settings,
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )


def test_a_users_own_sitecustomize_runs_and_the_tap_costs_a_process_without_torch_little(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'ran'\n")
    code = "import sys; print(mine, sys.modules['sitecustomize'].__file__, 'torch' in sys.modules, any('tap/site' in p for p in sys.path))"
    listening = '{"folder": "' + str(tmp_path / "log") + '"}'
    assert probe(tmp_path, code, **{VARIABLE: listening}).stdout.split() == [
        "ran",
        str(tmp_path / "sitecustomize.py"),
        "False",
        "False",
    ]
    assert not (tmp_path / "log").exists()


@pytest.mark.skipif(
    sys.prefix == sys.base_prefix, reason="needs a second environment, the one below a virtual one"
)
def test_a_program_may_run_in_an_environment_without_leakaudit(tmp_path: Path) -> None:
    hooks = "leakaudit.capture.tap.hooks.install"
    code = f"import sys; print({hooks!r} in sys.modules); import leakaudit.core.errors"
    settings = {**os.environ, "PYTHONPATH": str(SITE), VARIABLE: '{"folder": "log"}'}
    base = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run(
        [base, "-c", code], env=settings, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout == "True\n"
    assert "leakaudit tap:" not in done.stderr


def test_a_process_with_broken_instructions_runs_untapped_and_says_so(tmp_path: Path) -> None:
    done = probe(tmp_path, "print('runs')", **{VARIABLE: "{"})
    assert done.stdout == "runs\n"
    assert done.stderr.startswith("leakaudit tap: this process is not tapped: ")


@pytest.mark.slow
def test_the_hooks_come_with_torch_and_change_no_function_that_programs_compare(
    tmp_path: Path,
) -> None:
    code = (
        "import torch.distributed as d, inspect\n"
        "from torch.nn.parallel import DistributedDataParallel as D\n"
        "print(d.ProcessGroup.send.__module__, D.forward.__module__, d.isend.__module__, inspect.getsource(d)[:3] != '')\n"
        "print(d.__loader__ is d.__spec__.loader, type(d.__loader__).__name__)\n"
    )
    found = probe(tmp_path, code, **{VARIABLE: '{"folder": "log"}'}).stdout.split()
    assert found[2:] == ["torch.distributed.distributed_c10d", "True", "True", "SourceFileLoader"]
    marked = probe(
        tmp_path,
        "import torch.distributed as d; print(hasattr(d.ProcessGroup.send, '__wrapped__'))",
        **{VARIABLE: '{"folder": "log"}'},
    )
    assert marked.stdout == "True\n"
