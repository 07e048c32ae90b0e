"""Programs that do not use leakaudit write the wire format: what is attacked is what they computed.

The numpy program always runs; the others need JAX, or a C++ compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit.capture.tap.messages import description
from leakaudit.cli import main
from leakaudit.traces import trace_file


def run(program: Path, *args: str) -> None:
    subprocess.run([sys.executable, str(program), *args], check=True, timeout=300)


def reconstructed(trace: la.Trace) -> dict[int, tuple[str, torch.Tensor]]:
    """Node -> certificate and picture, without a look at the truth."""
    found = la.attack(la.leaks(trace), "auto", generator=torch.Generator().manual_seed(0))
    return {one.node: (one.certificate.name, one.x[0]) for one in found}


def test_fedsgd_in_numpy_is_inferred_and_its_pictures_come_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run(project / "examples" / "wire" / "numpy_fedsgd.py", "messages", "--truth", "truth.npz")
    assert main(["trace", "import", "messages", "-o", "own.pt", "--truth", "truth.npz"]) == 0
    said = capsys.readouterr().err
    assert "own.pt: fedsgd, 4 nodes, 3 edges, 5 rounds, 30 messages" in said
    assert "recomputed gradients confirm the model" in said
    trace = trace_file.load(tmp_path / "own.pt")
    assert trace.complete
    assert trace.params["lr"] == 0.1  # the program's STEP
    with np.load("truth.npz") as truth:
        found = reconstructed(trace)
        assert sorted(found) == [0, 1, 2]
        for node, (certificate, x) in found.items():
            assert certificate == "EXACT"
            assert np.array_equal(x.float().numpy(), truth["x"][node])
    # The inferred description describes the same trace.
    assert main(["trace", "import", "messages", "--describe", "own.toml", "-o", "again.pt"]) == 0
    (again,) = trace_file.load(tmp_path / "again.pt").messages
    assert torch.equal(again.payload, trace.messages[0].payload)


@pytest.mark.slow
def test_dpsgd_in_jax_is_inferred_and_its_pictures_come_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    monkeypatch.chdir(tmp_path)
    run(project / "examples" / "wire" / "jax_dpsgd.py", "messages", "--truth", "truth.npz")
    assert main(["trace", "import", "messages", "-o", "own.pt"]) == 0
    said = capsys.readouterr().err
    assert "own.pt: dpsgd, 4 nodes, 4 edges, 5 rounds, 40 messages" in said
    assert "recomputed gradients confirm the model and the order of its parameters" in said
    found = description.read(tmp_path / "own.toml")
    assert dict(found.params) == {"alpha": 0.1, "order": "combine", "samples": 1}
    assert dict(found.task.spec.args) == {"hidden": "32", "act": "relu"}
    names = ("layer1.bias", "layer1.weight.T", "layer2.bias", "layer2.weight.T")
    assert found.order == names
    with np.load("truth.npz") as truth:
        pictures = reconstructed(trace_file.load(tmp_path / "own.pt"))
        assert sorted(pictures) == [0, 1, 2, 3]
        for node, (certificate, x) in pictures.items():
            assert certificate == "EXACT"
            assert np.array_equal(x.float().numpy(), truth["x"][node])

    # A description with other axes contradicts shapes that are not square.
    text = Path("own.toml").read_text()
    Path("own.toml").write_text(text.replace('"layer1.weight.T"', '"layer1.weight"'))
    assert main(["trace", "import", "messages", "--describe", "own.toml", "-o", "no.pt"]) == 2
    assert "the shapes fit [messages] order" in capsys.readouterr().err
    assert not Path("no.pt").exists()


@pytest.mark.slow
def test_the_program_in_cpp_of_the_page_writes_two_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    monkeypatch.chdir(tmp_path)
    page = (project / "docs" / "wire.md").read_text()
    program = page[page.index("#include") :]
    Path("program.cpp").write_text(program[: program.index("```")])
    Path("messages").mkdir()
    subprocess.run([compiler, "program.cpp", "-o", "program"], check=True, timeout=300)
    subprocess.run(["./program"], check=True, timeout=60)
    Path("own.toml").write_text(
        'payload = "weights"\nfirst = "update"\n[params]\nalpha = 0.1\n'
        '[model]\nname = "logistic"\nshape = [2]\nclasses = 2\n'
    )
    assert main(["trace", "import", "messages", "--describe", "own.toml", "-o", "own.pt"]) == 0
    (m,) = trace_file.load(tmp_path / "own.pt").messages
    sent = {int(src): m.payload[row].tolist() for src, row in zip(m.src, m.row, strict=True)}
    assert sent[0] == [0.5, -1.0, 0.25, 2.0, 0.0, 0.125]
    assert sent[1] == [0.5, -1.0, 0.25, 2.0, 1.0, 0.125]
