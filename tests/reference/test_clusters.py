"""Clusters of separate processes, one of which is killed in the middle: the bytes of one process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest
from clusters import Cluster

from leakaudit.cli import main

SWEEP = """
[scenario]
victim = "dpsgd"
nodes = 3
rounds = 1
data = "faces"
model = "mlp"

[scenario.set]
hidden = 16

[sweep]
attacks = ["idlg"]
seeds = 16
nodes = [0]

[sweep.set.idlg]
steps = 10
"""
AUDIT = """
[scenario]
victim = "dpsgd"
nodes = 4
graph = "ring"
rounds = 3
data = "faces"
model = "mlp"

[scenario.set]
hidden = 16

[audit]
attacks = ["analytic"]
adversaries = ["eavesdropper"]
epsilon = [inf, 8]
constant = "sigma"
seeds = 2
nodes = [0, 1]
replays = 100
candidates = 10
canary = 100
one_run = false
"""
RING = """
victim = "dpsgd"
nodes = 200
graph = "ring"
rounds = 1
data = "gaussians:400"
model = "mlp"

[set]
hidden = 8
"""


@pytest.fixture(params=["dask", "ray"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    package = {"dask": "distributed", "ray": "ray"}[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (pip install 'leakaudit[{request.param}]')")
    # Paths of sockets are short: ray puts them below its folder.
    folder = Path(f"/tmp/leakaudit-{request.param}-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    try:
        with getattr(clusters, request.param)(folder) as running:
            yield running
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def with_a_kill(cluster: Cluster, words: list[str], begun: Callable[[], bool]) -> str:
    """Run a command on a cluster, and kill a worker as soon as the work has begun."""
    command = [sys.executable, "-m", "leakaudit", *words, *cluster.words, "-q", "-f", "json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        while run.poll() is None and not begun():
            time.sleep(0.01)
        assert run.poll() is None, run.communicate()
        cluster.kill()
        out, told = run.communicate()
    assert "Traceback" not in told
    assert run.returncode == 0, told
    return out


def without_times(folder: Path) -> dict[str, Any]:
    """results.json without when, where and how fast it was made."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    del found["provenance"]
    for one in found["findings"]:
        del one["seconds"]
    return found


@pytest.mark.slow
def test_a_sweep_on_a_cluster_that_loses_a_worker_has_the_bytes_of_one_process(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(SWEEP)
    here, there = tmp_path / "here", tmp_path / "there"
    with_a_kill(
        cluster,
        ["sweep", str(file), "-o", str(there)],
        lambda: len([*there.glob("cells/*.json")]) >= 3,
    )
    assert main(["sweep", str(file), "-o", str(here), "--workers", "0", "-q"]) == 0
    for name in ("results.json", "report.md"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    assert {p.name: p.read_bytes() for p in (there / "cells").iterdir()} == {
        p.name: p.read_bytes() for p in (here / "cells").iterdir()
    }


@pytest.mark.slow
def test_an_audit_on_a_cluster_that_loses_a_worker_gives_what_one_process_gives(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(AUDIT)
    here, there = tmp_path / "here", tmp_path / "there"

    def replaying() -> bool:
        try:
            stages = json.loads((there / "progress.json").read_bytes())["stages"]
        except OSError:
            return False
        return any(stage["what"] == "replays" for stage in stages)

    with_a_kill(cluster, ["audit", str(file), "-o", str(there)], replaying)
    assert main(["audit", str(file), "-o", str(here), "-q"]) == 0
    assert without_times(there) == without_times(here)
    name = "reconstructions.npz"
    assert (there / name).read_bytes() == (here / name).read_bytes()


@pytest.mark.slow
def test_an_attack_on_200_nodes_survives_a_worker_and_gives_what_one_process_gives(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "ring.toml").write_text(RING)
    trace = str(tmp_path / "ring.pt")
    assert main(["record", "--scenario", str(tmp_path / "ring.toml"), "-o", trace, "-q"]) == 0
    here, there = tmp_path / "here", tmp_path / "there"
    words = ["attack", trace, "--attack", "analytic", "-o"]
    with_a_kill(
        cluster,
        [*words, str(there)],
        lambda: any(there.glob("unfinished/node*.pt")),
    )
    assert main([*words, str(here), "-q"]) == 0
    assert without_times(there) == without_times(here)
    assert len(without_times(here)["findings"]) == 200
    name = "reconstructions.npz"
    assert (there / name).read_bytes() == (here / name).read_bytes()


@pytest.mark.slow
def test_a_worker_that_cannot_open_the_trace_is_one_line_and_code_2(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", "dpsgd", "--nodes", "3", "--rounds", "1", "-o", "t.pt", "-q"]) == 0
    # The name of a file in the folder of this process only: to a worker, it is another folder.
    words = ["attack", "/proc/self/cwd/t.pt", "-o", "out", *cluster.words, "-q"]
    ran = subprocess.run(
        [sys.executable, "-m", "leakaudit", *words], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert f"{cluster.backend} workers need to reach /proc/self/cwd/t.pt" in ran.stderr
    assert not (tmp_path / "out").exists()
