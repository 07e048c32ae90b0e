"""The pytest plugin, the example repository and the pre-commit hooks, each as its users run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakaudit import pytest_plugin
from leakaudit.cli import main
from leakaudit.judging.gate import baseline
from leakaudit.judging.gate.config import Check

OWN = """
from pathlib import Path
from train import train

def test_own(leakage):
    leakage.check("own", train, attacks=["exact"], set={"exact": {"visits": 2}}, budget={"exact": 0.0}, seeds=2, lint="strict")

def test_plain():
    pass
"""


@pytest.fixture
def repo(project: Path, tmp_path: Path) -> Path:
    """A copy of examples/ci-repo with two seeds, so that it is fast, and without a baseline."""
    shutil.copytree(
        project / "examples" / "ci-repo",
        tmp_path / "repo",
        ignore=shutil.ignore_patterns("__pycache__", "leakaudit-out"),
    )
    file = tmp_path / "repo" / "leakaudit.toml"
    file.write_text(file.read_text().replace("seeds = 16", "seeds = 2"))
    (tmp_path / "repo" / "leakage-baseline.json").unlink()
    return tmp_path / "repo"


def run(folder: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )


def pytested(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "pytest", "-q", "-p", "no:cacheprovider", *argv)


def edit(folder: Path, old: str, new: str) -> None:
    file = folder / "train.py"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


def without_noise(folder: Path) -> None:
    edit(folder, "return model + SIGMA * rng.normal(size=model.shape)", "return model")


# --- the plugin -------------------------------------------------------------------------------------------------------


def test_a_run_that_does_not_use_it_imports_no_torch_and_few_modules(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n")
    probe = (
        "import sys, pytest\n"
        "from importlib.metadata import EntryPoint\n"
        "load, taken = EntryPoint.load, []\n"
        "def timed(self):\n"
        "    before = len(sys.modules)\n"
        "    try:\n"
        "        return load(self)\n"
        "    finally:\n"
        "        if self.value == 'leakaudit.pytest_plugin': taken.append(len(sys.modules) - before)\n"
        "EntryPoint.load = timed\n"
        "code = pytest.main(['-q', '-p', 'no:cacheprovider'])\n"
        "own = {'leakaudit.judging.gate', 'leakaudit.core.errors'}\n"
        "heavy = sorted(({'torch', 'numpy', 'scipy', 'skimage'} | own) & set(sys.modules))\n"
        "print(f'RESULT {int(code)} {len(taken)} {taken[0]} {heavy}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    code, loads, imported, heavy = (
        done.stdout.splitlines()[-1].removeprefix("RESULT ").split(" ", 3)
    )
    assert (code, loads, heavy) == ("0", "1", "[]")
    assert int(imported) <= 10


FORKED = """
import json, os, sys
import leakaudit.attacks.exact, leakaudit.judging.gate.files, leakaudit.victims.dpsgd
import pytest, skimage.data, skimage.metrics, torch
sys.path.insert(0, os.getcwd())
for line in sys.stdin:
    if (child := os.fork()) == 0:
        os.dup2(os.open("out.txt", os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
        code = pytest.main(["-q", "-p", "no:cacheprovider", *json.loads(line)])
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
def test_a_check_of_a_tests_own_is_marked_and_its_baseline_written_and_compared(repo: Path) -> None:
    """Five runs of pytest, forked from one process that has imported torch."""
    (repo / "tests" / "test_privacy.py").write_text(OWN)
    command, pipe, environ = (
        [sys.executable, "-W", "ignore", "-c", FORKED],
        subprocess.PIPE,
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with subprocess.Popen(
        command, cwd=repo, stdin=pipe, stdout=pipe, text=True, env=environ
    ) as forking:

        def tested(*argv: str) -> tuple[int, str]:
            assert forking.stdin is not None
            assert forking.stdout is not None
            forking.stdin.write(json.dumps(argv) + "\n")
            forking.stdin.flush()
            return int(forking.stdout.readline()), (repo / "out.txt").read_text()

        assert "1 passed, 1 deselected" in tested("-m", "not leakage")[1]
        code, said = tested()
        assert "this cell is not in the baseline" in said
        assert code == 1
        assert tested("--leakage-update", "first", "--strict-markers")[0] == 0
        written = baseline.read(repo / "leakage-baseline.json")
        assert (set(written.cells), written.reason) == ({"own/eavesdropper/exact"}, "first")
        assert tested("--leakage-strict")[0] == 0
        without_noise(repo)
        code, said = tested()
        assert code == 1
        assert re.search(
            r"own/eavesdropper/exact .*\n.* eavesdropper reconstructs the training input of node \d bit for bit",
            said,
        )
        assert re.search(
            r"NOT AS DECLARED  lint P20: insufficient noise, REFUTED: the noise of ", said
        )
        assert "Traceback" not in said
        assert baseline.read(repo / "leakage-baseline.json") == written
        assert forking.stdin is not None
        forking.stdin.close()


@pytest.mark.slow
def test_workers_of_xdist_write_one_baseline(repo: Path) -> None:
    (repo / "tests" / "test_privacy.py").unlink()
    for name in ("one", "two"):
        (repo / "tests" / f"test_{name}.py").write_text(OWN.replace('"own"', f'"{name}"'))
    done = pytested(
        repo, "-n", "2", "--dist", "loadfile", "--leakage-update", "by two workers", "-m", "leakage"
    )
    assert "2 passed" in done.stdout, done.stdout
    written = baseline.read(repo / "leakage-baseline.json")
    assert (set(written.cells), written.reason) == (
        {"one/eavesdropper/exact", "two/eavesdropper/exact"},
        "by two workers",
    )


def test_what_workers_of_xdist_measured_is_written_once_by_the_main_process(tmp_path: Path) -> None:
    """The two ends of pytest-xdist's `workeroutput`, without its processes."""
    path = tmp_path / "b.json"

    def cells(name: str) -> dict[str, Any]:
        return {
            str(path): {
                name: {
                    "check": name[0],
                    "digest": "ab" * 32,
                    "seeds": [0, 1],
                    "samples": {"gain": [0.0, 1.0]},
                }
            }
        }

    def config(**more: Any) -> Any:
        made = SimpleNamespace(
            stash=pytest.Stash(),
            addinivalue_line=lambda name, line: None,
            getoption=lambda name: "a reason",
            **more,
        )
        pytest_plugin.pytest_configure(made)  # type: ignore[arg-type]
        return made

    main, outputs = config(), []
    for name in ("a/e/x", "b/e/x"):
        worker = config(workeroutput={})
        worker.stash[pytest_plugin._MEASURED] = cells(name)
        pytest_plugin.pytest_sessionfinish(SimpleNamespace(config=worker))  # type: ignore[arg-type]
        assert not path.exists()
        outputs.append(worker.workeroutput)
    for output in outputs:
        pytest_plugin.pytest_testnodedown(
            SimpleNamespace(config=main, workeroutput=json.loads(json.dumps(output))), None
        )
    pytest_plugin.pytest_testnodedown(SimpleNamespace(config=main), "a worker that crashed")
    pytest_plugin.pytest_sessionfinish(SimpleNamespace(config=main))  # type: ignore[arg-type]
    assert set(baseline.read(path).cells) == {"a/e/x", "b/e/x"}


REFUSED = {
    "name": ("'rign'", "rign: check 'rign' does not exist; did you mean 'ring'?"),
    "setting": (
        "'own', print, lnit='off'",
        "own: there is no setting 'lnit'; did you mean 'lint'?",
    ),
    "value": ("'own', print, lint='of'", "own: check own: lint: "),
    "beside": (
        "'ring', lint='off'",
        "ring: its settings are those of the file, unless it has a run",
    ),
    "budget": ("'ring', budget={'psnr': 9}", "ring: its settings are those of the file"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_a_mistake_in_a_check_is_one_line(arguments: str, said: str, repo: Path) -> None:
    (repo / "tests" / "test_privacy.py").write_text(
        f"def test_it(leakage):\n    leakage.check({arguments})\n"
    )
    done = pytested(repo)
    assert done.returncode == 1
    assert f"leakage gate {said}" in done.stdout


def test_a_check_of_a_test_has_the_defaults_of_the_file() -> None:
    check = pytest_plugin._new_check("own", print, {"adversaries": ["node:1"]})
    assert check == Check("own", print, adversaries=("node:1",))
    assert check.sensitivity is None


# --- the example ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_passes_as_it_is_committed(project: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(
        project / "examples" / "ci-repo",
        tmp_path / "repo",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    done = pytested(copy)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_the_example_fails_without_its_noise_and_says_what_leaked(
    project: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(
        project / "examples" / "ci-repo",
        tmp_path / "repo",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    without_noise(copy)
    done = run(copy, "leakaudit", "check", "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    leak = r"Leak: eavesdropper reconstructs the training input of node \d bit for bit .*; "
    limit = r"over the budget in ring/eavesdropper/exact: records recovered bit for bit: 100\.0%, "
    assert re.match(leak + limit, done.stdout)


@pytest.mark.slow
def test_the_example_fails_with_half_its_noise(project: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(
        project / "examples" / "ci-repo",
        tmp_path / "repo",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    edit(copy, "SIGMA = 0.25", "SIGMA = 0.125")
    done = run(copy, "leakaudit", "check", "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(
        r"epsilon of one record: 28\.8\d*, at most 12 allowed: view bound of eavesdropper for the data of node \d",
        done.stdout,
    )


# --- where it runs ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_hooks_run_what_they_say(project: Path, repo: Path) -> None:
    hooks = (project / ".pre-commit-hooks.yaml").read_text()
    config, trace = re.findall(r"^  entry: (.*)$", hooks, re.M)
    assert config == "leakaudit config lint"
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def hook(entry: str, *files: str) -> int:
        command = f"{entry} {' '.join(files)}"
        return subprocess.run(
            command, shell=True, cwd=repo, env=environ, capture_output=True, check=False
        ).returncode

    assert hook(config) == 0
    assert (
        main(
            [
                "record",
                "fedsgd",
                "-o",
                str(repo / "trace.pt"),
                "--nodes",
                "2",
                "--rounds",
                "1",
                "-q",
            ]
        )
        == 0
    )
    shutil.copy(repo / "trace.pt", repo / "b.trace.pt")
    assert hook(trace, "trace.pt", "b.trace.pt") == 0
    with (repo / "b.trace.pt").open("r+b") as file:
        file.truncate(1000)
    assert hook(trace, "b.trace.pt", "trace.pt") == 1
    pattern = re.compile(re.findall(r"^  files: (.*)$", hooks, re.M)[1])
    assert [
        bool(pattern.search(n))
        for n in ("trace.pt", "a/b.trace.pt", "trace.truth.pt", "weights.pt")
    ] == [True, True, False, False]
    (repo / "leakaudit.toml").write_text("[gate]\nsede = 1\n[check.a]\nrun = 'a:b'\n")
    assert hook(config) == 2
