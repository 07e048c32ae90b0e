"""Clusters of dask and ray whose scheduler and two workers are separate processes, for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PRIORITY = {"RAY_worker_niceness": "0"}  # workers of ray have a low one, and wait on a busy machine
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
        _kill([pid, *descendants(pid)])


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


def _kill(processes: list[int]) -> None:
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@contextmanager
def dask(folder: Path) -> Iterator[Cluster]:
    """A scheduler and two workers, each started by its own command in a folder of its own."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    worker = [address, "--nthreads", "1", "--no-nanny", "--local-directory", ".", "--no-dashboard"]
    scheduler = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    command = [sys.executable, "-m"]
    with _started() as start:
        start([*command, "distributed.cli.dask_scheduler", *scheduler], folder / "scheduler")
        _listening(port)
        first = start([*command, "distributed.cli.dask_worker", *worker], folder / "first")
        second = start([*command, "distributed.cli.dask_worker", *worker], folder / "second")
        _run(
            "import distributed\n"
            f"client = distributed.Client({address!r})\n"
            "client.wait_for_workers(2)\n",
            folder,
        )
        yield Cluster("dask", address, (first, second))


@contextmanager
def ray(folder: Path) -> Iterator[Cluster]:
    """A head and a worker with one CPU each, both started by `ray start`."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
    command += ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats"]
    command += ["--temp-dir", str(folder), "--node-ip-address", "127.0.0.1"]
    head = ["--head", "--port", str(port), "--include-dashboard=false"]
    with _started() as start:
        first = start([*command, *head], folder / "first")
        _listening(port)
        second = start([*command, "--address", address], folder / "second")
        _run(
            "import logging, ray, time\n"
            f"ray.init({address!r}, logging_level=logging.CRITICAL, log_to_driver=False)\n"
            "while sum(node['Alive'] for node in ray.nodes()) < 2: time.sleep(0.2)\n",
            folder,
        )
        yield Cluster("ray", address, (first, second))


@contextmanager
def _started() -> Iterator[Callable[[list[str], Path], int]]:
    """Start processes in folders of their own; end them and all their children at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], folder: Path) -> int:
        folder.mkdir(parents=True)
        with (folder / "log.txt").open("wb") as out:
            process = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=out, env={**os.environ, **PRIORITY}
            )
        running.append(process)
        return process.pid

    try:
        yield start
    finally:
        for process in reversed(running):
            below = descendants(process.pid)
            process.kill()
            process.wait()
            _kill(below)


def _run(code: str, folder: Path) -> None:
    """Run code in a process of its own, so that nothing of the library stays in this one."""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAITED, cwd=folder)


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
