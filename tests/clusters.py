"""Clusters of dask and ray whose scheduler and two workers are separate processes, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WAITED = 120.0  # seconds for a cluster to start; nothing is concluded from it


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        backend: Name of the backend.
        address: Its address.
        workers: Process IDs of what a failure of a worker kills, and all that it started.
    """

    backend: str
    address: str
    workers: tuple[int, int]

    @property
    def words(self) -> list[str]:
        """The options that choose it."""
        return ["--backend", self.backend, "--address", self.address]

    def kill(self) -> None:
        """Kill the second worker with everything that it started."""
        pid = self.workers[1]
        for one in [pid, *descendants(pid)]:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                continue


def descendants(pid: int) -> list[int]:
    """Processes that this one started, and those that they started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    found = []
    for child in map(int, children):
        found += [child, *descendants(child)]
    return found


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours and all that it started."""
    below = descendants(process.pid)
    process.kill()
    process.wait()
    for one in below:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


@contextmanager
def dask(folder: Path) -> Iterator[Cluster]:
    """A scheduler and two workers, each started by its own command in a folder of its own."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    base = [sys.executable, "-m", "distributed.cli"]
    shared = ["--no-dashboard"]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        place = folder / name
        place.mkdir(parents=True)
        out = (place / "log.txt").open("wb")
        command = [base[0], "-m", f"distributed.cli.dask_{name.partition('-')[0]}", *words, *shared]
        process = subprocess.Popen(command, cwd=place, stdout=out, stderr=out)
        started.append(process)
        return process

    try:
        start("scheduler", "--host", "127.0.0.1", "--port", str(port))
        for k in (1, 2):
            start(f"worker-{k}", address, "--nthreads", "1", "--no-nanny", "--local-directory", ".")
        import distributed

        with distributed.Client(address, timeout=WAITED, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=WAITED)
        yield Cluster("dask", address, (started[1].pid, started[2].pid))
    finally:
        for process in reversed(started):
            ended(process)


@contextmanager
def ray(folder: Path) -> Iterator[Cluster]:
    """A head and a worker with one CPU each, both started by `ray start`."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    program = str(Path(sys.executable).with_name("ray"))
    small = ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats"]
    small += ["--block", "--temp-dir", str(folder), "--node-ip-address", "127.0.0.1"]
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "RAY_DISABLE_MEMORY_MONITOR": "1"}

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        place = folder / name
        place.mkdir(parents=True)
        out = (place / "log.txt").open("wb")
        process = subprocess.Popen(
            [program, "start", *words, *small], cwd=place, stdout=out, stderr=out, env=environment
        )
        started.append(process)
        return process

    try:
        head = ["--head", "--port", str(port), "--include-dashboard=false"]
        start("head", *head)
        _listening(port)
        start("worker", "--address", address)
        _nodes(folder, address)
        yield Cluster("ray", address, (started[0].pid, started[1].pid))
    finally:
        for process in reversed(started):
            ended(process)


def _listening(port: int) -> None:
    limit = time.monotonic() + WAITED
    while time.monotonic() < limit:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")


def _nodes(folder: Path, address: str) -> None:
    """Wait for both nodes, in a process of its own: ray cannot be left cleanly."""
    code = (
        "import ray, sys, time, logging\n"
        f"ray.init({address!r}, logging_level=logging.CRITICAL, log_to_driver=False)\n"
        "while sum(node['Alive'] for node in ray.nodes()) < 2: time.sleep(0.2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAITED, cwd=folder)
