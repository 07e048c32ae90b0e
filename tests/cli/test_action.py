"""The GitHub action, its steps run as a runner does: from action.yml, in a fresh environment that has nothing but what GitHub sets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema
import yaml

SOURCES = ("leakaudit", "attacks", "victims", "reports")
INPUT, OUTPUT = (
    re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}"),
    re.compile(r"\$\{\{ steps\.([a-z]+)\.outputs\.([a-z]+) \}\}"),
)


@pytest.fixture(scope="module")
def action(project: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((project / "action.yml").read_text())
    return read


# --- what it declares -------------------------------------------------------------------------------------------------


def test_it_is_a_composite_action_whose_steps_name_their_shell(action: dict[str, Any]) -> None:
    assert set(action) == {"name", "description", "branding", "inputs", "outputs", "runs"}
    assert action["runs"]["using"] == "composite"
    scripts = [step for step in action["runs"]["steps"] if "run" in step]
    for step in scripts:
        assert set(step) - {"id", "if"} == {"name", "shell", "env", "working-directory", "run"}
    assert {step["shell"] for step in scripts} == {"bash"}
    for name, one in action["inputs"].items():
        assert set(one) == {"description", "default"}, name
        assert isinstance(one["default"], str), (
            f"{name}: a value that is no text reaches the step as YAML reads it"
        )


def test_every_input_and_output_is_there_and_none_is_in_a_script(action: dict[str, Any]) -> None:
    steps = action["runs"]["steps"]
    read = {
        name
        for step in steps
        for value in (
            *step.get("env", {}).values(),
            *step.get("with", {}).values(),
            step.get("working-directory", ""),
            step.get("if", ""),
        )
        for name in re.findall(r"inputs\.([a-z-]+)", str(value))
    }
    assert read == set(action["inputs"])
    assert "${{" not in "".join(step.get("run", "") for step in steps), (
        "an input in a script is a way to run code"
    )
    made = {
        step.get("id"): set(re.findall(r'echo "([a-z]+)=', step.get("run", ""))) for step in steps
    }
    for name, one in action["outputs"].items():
        (match,) = OUTPUT.findall(one["value"])
        assert match[1] == name
        assert match[1] in made[match[0]]


def test_actions_of_others_are_pinned_and_cannot_change_the_verdict(
    project: Path, action: dict[str, Any]
) -> None:
    """By the hash of a commit, and the same as in our own workflows; a failed upload is no verdict."""
    workflows = "".join(
        file.read_text() for file in sorted((project / ".github" / "workflows").glob("*.yml"))
    )
    used = [step for step in action["runs"]["steps"] if "uses" in step]
    assert [step["uses"].partition("@")[0] for step in used] == [
        "github/codeql-action/upload-sarif",
        "actions/upload-artifact",
    ]
    for step in used:
        name, _, commit = step["uses"].partition("@")
        assert re.fullmatch(r"[0-9a-f]{40}", commit)
        assert step["continue-on-error"] is True
        assert step["if"].startswith("${{ always() && ")
        if name in workflows:
            assert step["uses"] in workflows


# --- a runner ---------------------------------------------------------------------------------------------------------


@dataclass
class Runner:
    """Runs the steps of a composite action as GitHub documents it: inputs in env, one bash a step, the first failure ends it."""

    action: dict[str, Any]
    path: Path
    python: Path
    home: Path
    code: int = 0
    log: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    used: list[dict[str, str]] = field(default_factory=list)

    def run(self, workspace: Path, **inputs: str) -> Runner:
        """Run it in a folder; inputs with underscores for hyphens."""
        self.code, self.log, self.outputs = 0, "", {}
        given = {name: one["default"] for name, one in self.action["inputs"].items()} | {
            k.replace("_", "-"): v for k, v in inputs.items()
        }
        self.used = []
        for step in self.action["runs"]["steps"]:
            if "uses" in step:
                self.used.append(self._given(step["with"], given))
            elif self.code == 0 and "if" not in step:
                self._step(step, workspace, given)
        return self

    def _given(self, wanted: dict[str, str], given: dict[str, str]) -> dict[str, str]:
        """What a step of another action receives; one that follows a failed step runs, too."""
        told = self.outputs.get("check", {})
        filled = {k: INPUT.sub(lambda m: given[m[1]], v) for k, v in wanted.items()}
        return {k: OUTPUT.sub(lambda m: told.get(m[2], ""), v) for k, v in filled.items()}

    def output(self, name: str) -> str:
        """What a job reads as ``steps.ID.outputs.NAME``."""
        (match,) = OUTPUT.findall(self.action["outputs"][name]["value"])
        return self.outputs[match[0]][match[1]]

    def _step(self, step: dict[str, Any], workspace: Path, given: dict[str, str]) -> None:
        def filled(value: object) -> str:
            return INPUT.sub(lambda m: given[m[1]], str(value))

        told = self.home / "output"
        told.write_text("")
        environ = {
            **{
                "HOME": str(self.home),
                "PATH": f"{self.python.parent}:/usr/bin:/bin",
                "CI": "true",
                "GITHUB_ACTIONS": "true",
            },
            **{
                "GITHUB_ACTION_PATH": str(self.path),
                "GITHUB_WORKSPACE": str(workspace),
                "RUNNER_TEMP": str(self.home / "temp"),
            },
            **{"GITHUB_OUTPUT": str(told), "GITHUB_STEP_SUMMARY": str(self.home / "summary.md")},
            **{
                "PIP_NO_INDEX": "1",
                "PIP_NO_BUILD_ISOLATION": "0",
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            },  # of this test: no network
            **{name: filled(value) for name, value in step["env"].items()},
        }
        script = self.home / "step.sh"
        script.write_text(step["run"])
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        done = subprocess.run(
            ["env", "-i", *(f"{k}={v}" for k, v in environ.items()), *bash],
            cwd=workspace / filled(step["working-directory"]),
            capture_output=True,
            text=True,
            check=False,
        )
        self.code, self.log = done.returncode, self.log + done.stdout + done.stderr
        self.outputs[step.get("id", step["name"])] = dict(
            line.split("=", 1) for line in told.read_text().splitlines()
        )


@pytest.fixture(scope="module")
def checkout(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The action's repository as a runner checks it out."""
    copy = tmp_path_factory.mktemp("action")
    for folder in SOURCES:
        shutil.copytree(
            project / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "action.yml"):
        shutil.copy(project / file, copy)
    return copy


@pytest.fixture(scope="module")
def runner(
    action: dict[str, Any], checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Runner:
    """A runner with a fresh environment, which sees this one's dependencies, so that nothing is fetched, and no leakaudit."""
    home = tmp_path_factory.mktemp("runner")
    (home / "temp").mkdir()
    venv.create(home / "python", with_pip=True, symlinks=True)
    python = home / "python" / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    for old in site.glob(
        "setuptools*"
    ):  # that of Python 3.11 is too old to build, and would come first
        shutil.rmtree(old)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    absent = subprocess.run(
        [str(python), "-c", "import leakaudit"],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'leakaudit'" in absent.stderr
    return Runner(action, checkout, python, home)


def example(project: Path, place: Path, seeds: int = 16) -> Path:
    copy = shutil.copytree(
        project / "examples" / "ci-repo",
        place / "repo",
        ignore=shutil.ignore_patterns("__pycache__", "leakaudit-out"),
    )
    if seeds != 16:
        file = copy / "leakaudit.toml"
        file.write_text(
            file.read_text()
            .replace("seeds = 16", f"seeds = {seeds}")
            .replace('"leakage-baseline.json"', '""')
        )
    return copy


@pytest.mark.slow
def test_it_installs_itself_and_passes_the_example_as_it_is_committed(
    project: Path, runner: Runner, tmp_path: Path
) -> None:
    repo = example(project, tmp_path)
    (repo / "requirements.txt").write_text("numpy>=1.26\n")
    done = runner.run(tmp_path, working_directory="repo", requirements="requirements.txt")
    assert done.code == 0, done.log
    assert done.output("verdict") == "pass"
    where = subprocess.run(
        [str(runner.python), "-c", "import leakaudit; print(leakaudit.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(runner.python.parent.parent)
    made = Path(done.output("results"))
    assert json.loads(made.read_text())["gate"]["code"] == 0
    schemas = project / "tests" / "schemas"
    jsonschema.Draft202012Validator(json.loads((schemas / "sarif.json").read_text())).validate(
        json.loads(made.with_name("leakaudit.sarif").read_text())
    )
    xmlschema.XMLSchema11(schemas / "junit.xsd").validate(made.with_name("junit.xml"))
    assert (runner.home / "summary.md").read_text().startswith("# Leakage gate: pass\n")
    assert sorted(p.name for p in repo.iterdir() if p.name != "__pycache__") == sorted(
        [
            *(
                p.name
                for p in (project / "examples" / "ci-repo").iterdir()
                if p.name not in ("__pycache__", "leakaudit-out")
            ),
            "requirements.txt",
        ]
    )


@pytest.mark.slow
def test_it_fails_the_job_with_an_annotation_that_says_what_leaked(
    project: Path, runner: Runner, tmp_path: Path
) -> None:
    repo = example(project, tmp_path, seeds=2)
    file = repo / "train.py"
    file.write_text(
        file.read_text().replace(
            "return model + SIGMA * rng.normal(size=model.shape)", "return model"
        )
    )
    done = runner.run(repo, strict="false", install="false" if runner.outputs else "")
    assert (done.code, done.output("verdict")) == (1, "leak"), done.log
    assert re.search(
        r"^::error title=ring/eavesdropper/exact%3A budget%3A records recovered bit for bit::OVER BUDGET: .* of node \d bit for bit",
        done.log,
        re.M,
    )
    assert re.search(
        r"^::error title=ring/lint%3A lint P20::NOT AS DECLARED: ring/lint: insufficient noise, REFUTED: ",
        done.log,
        re.M,
    )
    assert "# Leakage gate: leak\n" in (runner.home / "summary.md").read_text()
    scanned, kept = done.used
    (run,) = json.loads(Path(scanned["sarif_file"]).read_text())["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    line = file.read_text().split("\n")[place["region"]["startLine"] - 1]
    assert (place["artifactLocation"]["uri"], line.strip()[:14]) == ("train.py", "recorder.send(")
    assert kept["name"] == "leakaudit"
    names = {file.name for file in Path(kept["path"]).iterdir()}
    assert {"report.html", "results.json", "leakaudit.sarif", "junit.xml"} <= names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "seeds", "code", "verdict"),
    [
        ({"max_seconds": "0.001"}, 4000, 3, "cannot tell"),
        ({"checks": "rign"}, 2, 2, "error"),
        ({"checks": "ring"}, 2, 0, "pass"),
    ],
)
def test_its_verdict_goes_with_the_exit_code(
    project: Path,
    runner: Runner,
    tmp_path: Path,
    inputs: dict[str, str],
    seeds: int,
    code: int,
    verdict: str,
) -> None:
    done = runner.run(
        example(project, tmp_path, seeds), install="false" if runner.outputs else "", **inputs
    )
    assert (done.code, done.output("verdict")) == (code, verdict), done.log


@pytest.mark.slow
def test_an_install_that_fails_ends_it_before_the_check(
    project: Path, runner: Runner, tmp_path: Path
) -> None:
    done = runner.run(example(project, tmp_path, seeds=2), install=str(tmp_path / "nowhere"))
    assert done.code != 0
    assert "check" not in done.outputs
