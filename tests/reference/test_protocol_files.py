"""Protocols in text files: the same relations as the bundled victims, a lint that names the wrong equation, and errors that name the place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator

import leakaudit as la
from leakaudit.capture.tap.messages import description
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Trace, Truth
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.runs import ready
from leakaudit.judging.lint.checks import Lint, lint
from leakaudit.protocols import declared
from leakaudit.protocols.equations import file
from leakaudit.protocols.equations.declare import MOST
from leakaudit.protocols.equations.file import load, read, victim
from leakaudit.protocols.equations.parse import DEEPEST, LARGEST_POWER
from leakaudit.protocols.equations.scan import LARGEST_NUMBER
from leakaudit.theory.relations import Relations, account, determined, know
from leakaudit.views.conformance.pitfall import Pitfall

FILES = Path(__file__).resolve().parents[1] / "protocol_files"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "protocols"


def ring(nodes: int) -> Graph:
    edges = {(min(i, (i + 1) % nodes), max(i, (i + 1) % nodes)) for i in range(nodes)}
    return Graph(nodes, tuple(sorted(edges)))


STAR = Graph(5, ((0, 4), (1, 4), (2, 4), (3, 4)))
COMPLETE = Graph(4, ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)))
GRAPHS = {"ring": ring(5), "star": STAR, "complete": COMPLETE}
# file -> the bundled victim, its constants, the file's constants
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dpsgd_combine": ("dpsgd", {}, {}),
    "dpsgd_combine slow": ("dpsgd", {"slow": 0.5}, {"slow": 0.5}),
    "dpsgd_adapt": ("dpsgd", {"order": "adapt"}, {}),
    "dpsgd_noised": ("dpsgd", {"sigma": 0.05, "own": "plain"}, {}),
    "fedavg": ("fedavg", {"epochs": 2}, {}),
    "fedavg three": ("fedavg", {"epochs": 3, "lr": 0.3}, {"K": 3, "lr": 0.3}),
    "pdmm": ("pdmm", {}, {}),
    "pdmm admm": ("pdmm", {"theta": 0.5, "rho": 0.1}, {"theta": 0.5, "rho": 0.1}),
    "pdmm_exact": ("pdmm", {"update": "exact", "differential": False}, {}),
    "tracking": ("tracking", {}, {}),
}


def text_of(name: str) -> str:
    return (FILES / f"{name.split()[0]}.toml").read_text()


def pair(name: str, graph: Graph, rounds: int) -> tuple[Relations, Relations]:
    """The relations of a file, and those of the bundled victim."""
    bundled, theirs, mine = SAME[name]
    written = registry.configure(victim(text_of(name)), mine)
    other = registry.configure(registry.get("victims", bundled), theirs)
    return written.relations(graph, rounds, {}), other.relations(graph, rounds, {})


def sent(p: Relations) -> list[tuple[Any, ...]]:
    return sorted(
        (v.round, v.name, v.owner, v.dst, v.secure) for v in p.vectors if v.kind == "message"
    )


def mu(p: Relations, adversary: Adversary, node: int) -> tuple[Any, ...]:
    try:
        bound = account(know(p, adversary), p.gradients(node), 1.0)
    except LeakauditError as error:
        return (type(error).__name__,)
    return f"{bound.attained:.9g}", bound.certificate


# --- the same protocol in both forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", SAME)
def test_a_file_declares_what_the_bundled_victim_declares(name: str, graph: str) -> None:
    if victim(text_of(name)).centralised and graph != "star":
        return  # it has a server
    mine, theirs = pair(name, GRAPHS[graph], 5)
    assert sent(mine) == sent(theirs)
    for corrupt in ((), (0,), (1, 2)):
        adversary = Adversary(corrupt=frozenset(corrupt))
        for node in (3, 0):
            if node in corrupt or (graph == "star" and node == GRAPHS[graph].nodes - 1):
                continue
            found = [
                list(map(str, determined(know(p, adversary), p.gradients(node))))
                for p in (mine, theirs)
            ]
            assert found[0] == found[1]
            assert mu(mine, adversary, node) == mu(theirs, adversary, node)


def test_a_file_counts_the_messages_of_a_long_run_as_fast_as_a_victim() -> None:
    written = registry.configure(victim(text_of("pdmm")), {})
    bundled = registry.configure(registry.get("victims", "pdmm"), {})
    wires = ring(6).edges
    assert written.messages(ring(6), 1000, wires) == bundled.messages(ring(6), 1000, wires)
    assert written.stationary
    assert not registry.configure(victim(text_of("dpsgd_combine")), {}).stationary


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpsgd_combine": ("dpsgd", {"hidden": 16}),
    "dpsgd_adapt": ("dpsgd", {"order": "adapt", "hidden": 16}),
    "fedavg": ("fedavg", {"epochs": 2, "hidden": 16}),
    "pdmm": ("pdmm", {"hidden": 16}),
    "tracking": ("tracking", {"hidden": 16}),
}


def run(name: str, graph: str = "ring", seed: int = 0, states: bool = False) -> tuple[Trace, Truth]:
    bundled, constants = RUNS[name]
    return la.record(
        la.Scenario(
            victim=bundled,
            nodes=5,
            graph=graph,
            rounds=4,
            data="faces",
            model="mlp",
            set=constants,
            seed=seed,
            states=states,
        )
    )


def carrying(trace: Trace, text: str) -> Trace:
    """The same messages as a program of somebody else's would have sent, with a protocol file."""
    name = victim(text).definition.name
    provenance = {**trace.provenance, registry.TEXT: text}
    params = {key: value for key, value in trace.params.items() if key == "samples"}
    return replace(trace, protocol=name, params=params, provenance=provenance)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", RUNS)
def test_an_attack_on_a_trace_with_a_file_finds_the_same(name: str, seed: int) -> None:
    trace, truth = run(name, seed=seed)
    found = []
    for one in (trace, carrying(trace, text_of(name))):
        attacked = la.attack(la.leaks(one), generator=torch.Generator().manual_seed(0))
        scores = la.score(attacked, truth)
        found.append(
            [
                (s.node, s.exact, s.label_correct, r.certificate.name)
                for s, r in zip(scores, attacked, strict=True)
            ]
        )
    assert found[0] == found[1]
    assert len(found[0]) == len(set(truth.node.tolist()))


# --- the lint ---------------------------------------------------------------------------------------------------------


def wrong(trace: Trace, truth: Truth | None, text: str) -> list[Pitfall]:
    return [one for one in lint(carrying(trace, text), truth) if one.number == 21]


@pytest.fixture(scope="module")
def kite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A graph on which all mixing matrices differ."""
    file = tmp_path_factory.mktemp("graph") / "kite.txt"
    file.write_text("0 1\n1 2\n2 3\n2 4\n")
    return f"file:{file}"


@pytest.fixture(scope="module")
def runs(kite: str) -> dict[str, tuple[Trace, Truth]]:
    return {name: run(name, "star" if name == "fedavg" else kite) for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_right_equations_pass(name: str, runs: dict[str, tuple[Trace, Truth]]) -> None:
    trace, truth = runs[name]
    text = text_of(name)
    assert wrong(trace, None, text) == []
    assert wrong(trace, truth, text) == []
    # With the records, every equation is tested.
    assert [one for one in Lint(carrying(trace, text), truth).unexamined if "equation" in one] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", RUNS)
def test_right_equations_pass_in_half_precision(
    name: str, dtype: torch.dtype, runs: dict[str, tuple[Trace, Truth]]
) -> None:
    trace, truth = runs[name]
    short = tuple(replace(m, payload=m.payload.to(dtype)) for m in trace.messages)
    assert wrong(replace(trace, messages=short), truth, text_of(name)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "hint"),
    [
        ("dpsgd_combine", "alpha = 0.1", "alpha = 0.2", 5, "alpha = 0.1 instead of 0.2"),
        ("dpsgd_combine", "- a * grad", "+ a * grad", 5, ""),
        ("dpsgd_combine", '"metropolis"', '"uniform"', 5, ""),
        ("dpsgd_combine", "W[i,j] * w[j]", "W[i,i] * w[j]", 5, ""),
        ("dpsgd_adapt", "alpha = 0.1", "alpha = 0.05", 4, "alpha = 0.1 instead of 0.05"),
        ("dpsgd_adapt", '"metropolis"', '"max-degree"', 5, ""),
        ("fedavg", "lr = 0.1", "lr = 0.3", 8, "lr = 0.1 instead of 0.3"),
        ("fedavg", "K = 2", "K = 3", 8, ""),
        ("fedavg", "mean(i in", "2 * mean(i in", 10, ""),
        ("pdmm", "alpha = 0.05", "alpha = 0.04", 8, "alpha = 0.05 instead of 0.04"),
        ("pdmm", "A[i,j] * z[i,j])", "A[j,i] * z[i,j])", 8, ""),
        ("pdmm", "theta = 1", "theta = 0.5", 9, "theta = 1 instead of 0.5"),
        ("tracking", "alpha = 0.1", "alpha = 0.3", 9, "alpha = 0.1 instead of 0.3"),
        ("tracking", "+ g[i] - g[i,t-1]", "+ g[i,t-1] - g[i]", 11, ""),
    ],
)
def test_a_wrong_equation_is_named(
    name: str, old: str, new: str, line: int, hint: str, runs: dict[str, tuple[Trace, Truth]]
) -> None:
    text = text_of(name)
    assert old in text
    text = text.replace(old, new)
    (found,) = wrong(*runs[name], text)
    assert found.code == "P21"
    assert found.bad
    lines = found.figures["lines"]
    assert isinstance(lines, list)
    assert line in lines
    assert f"'{text.splitlines()[line - 1].strip()}' (line {line})" in found.says
    assert hint in found.says
    residual = found.figures["residual"]
    allowed = found.figures["allowed"]
    assert isinstance(residual, float)
    assert isinstance(allowed, float)
    assert residual > allowed
    assert found.figures["round"] in (1, 2, 3)


def test_the_other_order_is_named(runs: dict[str, tuple[Trace, Truth]]) -> None:
    for mine, other in (("dpsgd_combine", "dpsgd_adapt"), ("dpsgd_adapt", "dpsgd_combine")):
        (found,) = wrong(*runs[other], text_of(mine))
        assert "grad(w[i])" in found.says
        assert found.figures["round"] in (1, 2)


def test_what_messages_contradict_needs_no_truth(runs: dict[str, tuple[Trace, Truth]]) -> None:
    trace, _ = runs["tracking"]
    text = text_of("tracking")
    (found,) = wrong(trace, None, text.replace("alpha = 0.1", "alpha = 0.3"))
    assert "alpha = 0.1 instead of 0.3" in found.says
    (found,) = wrong(trace, None, text.replace('"metropolis"', '"max-degree"'))
    assert "(line 9)" in found.says


def test_an_equation_that_fits_any_messages_is_said_to(
    runs: dict[str, tuple[Trace, Truth]],
) -> None:
    trace, truth = runs["dpsgd_combine"]
    text = text_of("dpsgd_combine")
    for one in (text, text.replace("alpha = 0.1", "alpha = 0.2")):
        said = Lint(carrying(trace, one), None).unexamined
        (equation,) = [s for s in said if "(line 5)" in s]
        assert "fit any value of g[0,1]" in equation
        assert "--truth" in equation
        assert wrong(trace, None, one) == []
    # Mini-batches are not recorded, so gradients cannot be computed.
    batches = text.replace("[constants]", "[constants]\nbatch = 2\nsamples = 4")
    known = replace(carrying(trace, batches), params={"batch": 2, "samples": 4})
    four = replace(
        truth,
        node=truth.node.repeat_interleave(4),
        x=truth.x.repeat_interleave(4, 0),
        y=truth.y.repeat_interleave(4, 0),
    )
    assert any("mini-batches" in s for s in Lint(known, four).unexamined)


def test_a_term_below_rounding_is_not_called_tested(kite: str) -> None:
    scenario = la.Scenario(
        victim="dpsgd", nodes=5, graph=kite, rounds=3, data="faces", model="mlp",
        set={"hidden": 16, "alpha": 1e-7},
    )  # fmt: skip
    trace, truth = la.record(scenario)
    text = text_of("dpsgd_combine").replace("alpha = 0.1", "alpha = 2e-7")
    assert wrong(trace, truth, text) == []
    (said,) = [s for s in Lint(carrying(trace, text), truth).unexamined if "equation" in s]
    assert "too small beside the others" in said


def test_what_half_precision_hides_is_not_called_tested(
    runs: dict[str, tuple[Trace, Truth]],
) -> None:
    trace, truth = runs["tracking"]
    short = tuple(replace(m, payload=m.payload.bfloat16()) for m in trace.messages)
    text = text_of("tracking").replace("alpha = 0.1", "alpha = 0.11")
    assert wrong(replace(trace, messages=short), truth, text) == []
    said = Lint(carrying(replace(trace, messages=short), text), truth).unexamined
    assert sum("too small beside the others" in s for s in said) >= 2


def test_another_gradient_may_be_the_reason(runs: dict[str, tuple[Trace, Truth]]) -> None:
    trace, truth = runs["dpsgd_combine"]
    other = replace(truth, x=truth.x.flip(0))
    (found,) = wrong(trace, other, text_of("dpsgd_combine"))
    assert "if gradients are those of all records of a node" in found.says


def test_what_the_file_does_not_send_is_said(runs: dict[str, tuple[Trace, Truth]]) -> None:
    trace, truth = runs["tracking"]
    said = Lint(carrying(trace, text_of("dpsgd_combine")), truth).unexamined
    assert [s for s in said if "of kind" in s] == [
        "messages of kind 'y': the protocol file does not send the one from 0 to 1 in round 0"
    ]
    rows = '[["1/2", "1/2"], ["1/2", "1/2"]]'
    small = text_of("dpsgd_combine").replace('"metropolis"', rows)
    assert any(
        "2 rows, but the graph has 5 nodes" in s
        for s in Lint(carrying(trace, small), None).unexamined
    )


def test_a_quantised_channel_is_allowed_for(kite: str) -> None:
    scenario = la.Scenario(
        victim="pdmm", nodes=5, graph=kite, rounds=4, data="faces", model="mlp",
        set={"hidden": 16, "quantize": 1e-3},
    )  # fmt: skip
    trace, truth = la.record(scenario)
    text = text_of("pdmm").replace("A[i,j] * w[i])\n", "A[i,j] * w[i]) + rounding(q)\n")
    text = text.replace("[constants]", "[constants]\nq = 0.001")
    assert "rounding" in text
    assert wrong(trace, truth, text) == []
    (found,) = wrong(trace, truth, text.replace("alpha = 0.05", "alpha = 0.5"))
    assert "(line 8)" in found.says
    written = registry.configure(victim(text), {})
    bundled = registry.configure(registry.get("victims", "pdmm"), {"quantize": 1e-3})
    stds = [
        sorted({round(v.std, 12) for v in p.vectors if v.kind == "message"})
        for p in (written.relations(STAR, 2, {}), bundled.relations(STAR, 2, {}))
    ]
    assert stds[0] == stds[1]


def test_noise_is_tested_if_it_is_recorded(kite: str) -> None:
    scenario = la.Scenario(
        victim="dpsgd", nodes=5, graph=kite, rounds=4, data="faces", model="mlp",
        set={"hidden": 16, "sigma": 0.05, "own": "plain"}, states=True,
    )  # fmt: skip
    trace, truth = la.record(scenario)
    text = text_of("dpsgd_noised")
    assert wrong(trace, truth, text) == []
    (found,) = wrong(trace, truth, text.replace("alpha = 0.1", "alpha = 0.2"))
    assert "alpha = 0.1 instead of 0.2" in found.says
    without = [s for s in Lint(carrying(trace, text), None).unexamined if "equation" in s]
    assert any("xi[0,1]" in s for s in without)


# --- where a protocol is named ----------------------------------------------------------------------------------------


def gradient(w: Any, x: Any, y: int) -> Any:
    p = np.exp(w[:15].reshape(3, 5) @ x + w[15:])
    q = p / p.sum() - np.eye(3)[y]
    return np.concatenate([np.outer(q, x).ravel(), q])


def heavyball(path: Path, protocol: str, **given: Any) -> None:
    """A training loop in numpy with the protocol of the example, recorded under a file."""
    task = la.TaskSpec("logistic", shape=(5,), classes=3)
    graph = ring(4)
    rng = np.random.default_rng(0)
    x, y = rng.random((4, 5)), rng.integers(3, size=4)
    w, v = np.zeros((4, 18)), np.zeros((4, 18))
    with la.Recorder(
        path, protocol=protocol, task=task, graph=graph, rounds=6, public={"w0": w[0]}, **given
    ) as recorder:
        for t in range(1, 7):
            v = 0.5 * v + np.stack([gradient(w[i], x[i], int(y[i])) for i in range(4)])
            h = w - 0.1 * v
            for i, near in enumerate(graph.neighbours):
                recorder.send(round=t, src=i, dst=near, kind="h", value=h[i])
            w = np.stack([h[[i, *near]].mean(0) for i, near in enumerate(graph.neighbours)])
        for i in range(4):
            recorder.truth(node=i, x=x[i : i + 1], y=y[i : i + 1])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording under the example's file."""
    monkeypatch.setenv(registry.PLUGINS, "")
    monkeypatch.chdir(tmp_path)
    heavyball(tmp_path / "own.pt", str(EXAMPLES / "heavyball.toml"))
    return tmp_path


def test_a_trace_carries_its_protocol_file(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, truth = la.load("own.pt"), la.load_truth("own.truth.pt")
    assert trace.protocol == "heavyball-file"
    assert trace.provenance[registry.TEXT] == (EXAMPLES / "heavyball.toml").read_text()
    assert declared.protocol_of(trace).victim.centralised is False
    scores = la.score(la.attack(la.leaks(trace), generator=Generator().manual_seed(0)), truth)
    assert len(scores) == 4
    assert all((score.statistics("relative_error")["mean"] or 1.0) < 1e-5 for score in scores)
    for command in (
        "explain own.pt --node 2",
        "bound own.pt",
        "attack own.pt -o out -q",
        "trace info own.pt",
    ):
        assert main(command.split()) == 0
    said = capsys.readouterr().out
    assert "g[2,3]" in said
    assert "characters (shown by -f json)" in said
    assert "closed_neighbours" not in said
    assert main(["trace", "lint", "own.pt", "--truth", "own.truth.pt", "--strict"]) == 0


def test_a_file_of_the_user_goes_before_the_text_in_a_trace(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "heavyball.toml").read_text()
    lint_it = "trace lint own.pt --truth own.truth.pt --strict --plugin"
    call = [*lint_it.split(), "mine.toml"]
    (own / "mine.toml").write_text(text.replace("beta = 0.5", "beta = 0.9"))
    assert main(call) == 1
    said = capsys.readouterr().out
    assert "fails in round 2" in said
    assert "all equations hold with beta = 0.5 instead of 0.9" in " ".join(said.split())
    (own / "mine.toml").write_text(text)  # edited, and read again
    assert main(call) == 0
    assert main(["list", "victims", "--plugin", "mine.toml"]) == 0
    assert "heavyball-file" in capsys.readouterr().out


def test_a_gate_does_not_let_a_program_describe_itself(own: Path) -> None:
    def program(seed: int, path: Path) -> None:
        heavyball(path, str(EXAMPLES / "heavyball.toml"))

    check = Check(name="own", run=program)
    with pytest.raises(
        LeakauditError, match="describes its protocol 'heavyball-file' itself"
    ) as raised:
        ready(check, own)(0)
    assert raised.value.code == 4
    registry.add_plugins([str(EXAMPLES / "heavyball.toml")])
    made = ready(check, own)(0)
    assert made.trace.protocol == "heavyball-file"


def test_a_file_cannot_be_run(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "heavyball.toml")
    assert main(["record", "heavyball-file", "--plugin", file, "-o", "x.pt"]) == 2
    said = capsys.readouterr().err
    assert "cannot be run" in said
    assert said.count("\n") == 1
    assert not (own / "x.pt").exists()


def test_a_recorder_checks_kinds_and_constants_of_a_file(tmp_path: Path) -> None:
    file = str(EXAMPLES / "heavyball.toml")
    with pytest.raises(LeakauditError, match="has no constant 'alphaa'; did you mean 'alpha'"):
        heavyball(tmp_path / "x.pt", file, params={"alphaa": 0.1})
    other = tmp_path / "other.toml"
    other.write_text((EXAMPLES / "heavyball.toml").read_text().replace("h[", "m["))
    with pytest.raises(LeakauditError, match="heavyball-file does not send messages of kind 'h'"):
        heavyball(tmp_path / "x.pt", str(other))
    with pytest.raises(LeakauditError, match=r"nowhere\.toml: No such file"):
        heavyball(tmp_path / "x.pt", "nowhere.toml")


def test_a_recording_without_a_declaration_can_be_described_later(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heavyball(own / "later.pt", "own:mine")
    assert main(["explain", "later.pt", "--node", "0"]) == 2
    text = (EXAMPLES / "heavyball.toml").read_text().replace("heavyball-file", "own:mine")
    (own / "mine.toml").write_text(text)
    assert main(["explain", "later.pt", "--node", "0", "--plugin", "mine.toml"]) == 0
    assert "g[0,6]" in capsys.readouterr().out


def test_a_name_that_is_taken_is_refused(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / "heavyball.toml").read_text()
    (own / "mine.toml").write_text(text.replace("heavyball-file", "dpsgd"))
    assert main(["trace", "lint", "own.pt", "--plugin", "mine.toml"]) == 2
    assert "another victim is called 'dpsgd'" in capsys.readouterr().err


def test_the_text_in_a_trace_is_checked(own: Path) -> None:
    trace = la.load("own.pt")
    for text, complaint in (
        (text_of("pdmm"), "carries the protocol file of 'pdmm-file'"),
        ("name = ", "the protocol file in the trace: not valid TOML"),
    ):
        broken = replace(trace, provenance={**trace.provenance, registry.TEXT: text})
        with pytest.raises(LeakauditError, match=complaint):
            la.leaks(broken)


def test_a_description_of_a_tapped_program_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text_of("dpsgd_combine"))
    (tmp_path / "tap.toml").write_text(
        'payload = "weights"\nprotocol = "mine.toml"\n[params]\nalpha = 0.05\n'
        '[model]\nname = "logistic"\nshape = [5]\nclasses = 3\n'
    )
    found = description.read(tmp_path / "tap.toml")
    assert found.protocol == str(tmp_path / "mine.toml")
    assert getattr(found.victim, "alpha", None) == 0.05


# --- the notation -----------------------------------------------------------------------------------------------------

HEAD = 'name = "x"\n[constants]\nalpha = 0.1\n[matrices]\nW = "metropolis"\n'


def made(block: str, start: str = "w[i] = w0", head: str = "") -> str:
    return f'name = "x"\n{head}\nstart = """\n{start}\n"""\nround = """\n{block}\n"""\n[constants]\nalpha = 0.1\n[matrices]\nW = "metropolis"\n'


SEND = "\nm[i -> neighbours] = w[i]"


@pytest.mark.parametrize(
    ("block", "place", "complaint"),
    [
        ("w[i] = w[i] - alphaa * grad(w[i])", "line 7, column 15", "nothing called 'alphaa'; did you mean 'alpha'"),
        ("w[i] = w[i] - alpha grad(w[i])", "line 7, column 21", r"expected an operator such as \+ - \* /"),
        ("w[i] = sum(j in neighbors: w[j])", "line 7, column 17", "expected a set of nodes, got 'neighbors'; did you mean 'neighbours'"),
        ("w[i] = sum(j in neighbours, w[j])", "line 7, column 27", "expected ':' behind the nodes"),
        ("w[i] = W[i,j] * w[i]", "line 7, column 12", "'j' is no index of this equation"),
        ("w[i] = w[i] * w[i]", "line 7, column 13", "product of two vectors is not linear; declare the step as opaque"),
        ("w[i] = w[i] / w[i]", "line 7, column 13", "a divisor must be a number"),
        ("w[i] = w[i]^2", "line 7, column 12", "the power of a vector is not linear"),
        ("w[i] = w[i] + alpha", "line 7, column 13", "cannot add a number and a vector"),
        ("w[i] = alpha", "line 7, column 8", "expected a vector on this side, got a number"),
        ("w[i] = w - grad(w[i])", "line 7, column 8", r"'w' is a vector of a node; write w\[i\]"),
        ("w[i] = v[i]", "line 7, column 8", "there is no vector 'v'"),
        ("w[i] = clip(w[i])", "line 7, column 8", "there is no function 'clip'.*opaque"),
        ("w[i] = grad(w[i]", "line 7, column 17", "expected '\\)'"),
        ("w[i,j] = w0", "line 7, column 1", "'w' has one index above"),
        ("w[i] = w[i] $ 2", "line 7, column 13", "'\\$' is not part of the notation"),
        ("w[i]", "line 7, column 5", "expected '=', got the end of the equation"),
        ("  w[i] = w[i]\nw[i] = w0", "line 8", "indentation"),
        ("w[i] = w[server]", "line 7, column 10", "there is no server"),
        ("alpha = 3", "line 7, column 1", "'alpha' is a constant already"),
        ("W[i,j] = w0", "line 7, column 1", "'W' is a matrix already"),
        ("sum[i] = w0", "line 7, column 1", "'sum' is a word of the notation"),
        ("w[i] = sum(j in neighbours: grad(w[j]))", "line 7, column 29", "every grad is a new vector"),
        ("m[i -> j] = grad(w[i])", "line 7, column 13", "for every pair of nodes"),
        ("w[i] = noise(w[i])", "line 7, column 14", "the standard deviation must be a number"),
        ("w[i] = noise(1, cauchy)", "line 7, column 17", "expected a distribution.*laplace"),
        ("repeat 3:\nw[i] = w0", "line 7, column 1", "expected indented equations below 'repeat'"),
        ("repeat w[i]:\n  w[i] = w0", "line 7, column 10", "'i' is no index of this equation"),
        ("w[i] = m[j]", "line 7, column 8", r"a message is written m\[j -> i\]"),
        ("w[i] = w[i,t-99]", "line 7", "a number of rounds from 1 to 10"),
        ("secure w[i] = w0", "line 7, column 8", "only a message can be secure"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_and_what_was_expected(
    block: str, place: str, complaint: str
) -> None:
    with pytest.raises(LeakauditError, match=complaint) as caught:
        read(made(block + SEND))
    said = str(caught.value)
    assert said.startswith(f"{place}")
    assert "\n" not in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("block", "start", "complaint"),
    [
        ("v[i] = v[i] + w[i]", "w[i] = w0", "line 7, column 8.*'v' of node 0 has no value yet in round 1"),
        ("w[i] = m[i -> i]", "w[i] = w0", "no message 'm' from node 0 to node 0 has been sent yet"),
        ("w[i] = w[i,t-2]", "w[i] = w0", "refers to a value from before the start"),
        ("a = 1 / (t - 2)\nw[i] = a * w[i]", "w[i] = w0", "division by zero in round 2"),
        ("w[i] = w[7]", "w[i] = w0", "node 7 does not exist"),
        ("w[i] = alpha^(1/2) * w[i]", "w[i] = w0", "expected a whole exponent"),
        ("w[i] = w[i]", "w[i] = 0", "the message of node 0 is 0 in round 1"),
        ("w[i] = w[i]\nm[i -> neighbours] = w[i]", "w[i] = w0", "declared twice"),
    ],
)  # fmt: skip
def test_an_error_on_a_graph_names_the_equation(block: str, start: str, complaint: str) -> None:
    kind = victim(made(block + SEND, start))
    with pytest.raises(LeakauditError, match=complaint) as caught:
        kind().relations(ring(4), 3, {})
    assert str(caught.value).startswith("line ")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected the keys name, round"),
        ("round = 3", "round: expected the equations of a round"),
        ('name = "x"\nround = "m[i -> neighbours] = w0"\nbeta = 1', "unknown key 'beta'"),
        ('name = "x y"\nround = "m[i -> neighbours] = w0"', "name: expected letters"),
        ('name = "x"\nround = "w[i] = w0"', "expected at least one message"),
        ('name = "x"\ngraph = "star"\nround = "m[i -> neighbours] = w0"', "graph: expected any or server"),
        ('name = "x"\nround = "m[i -> neighbours] = w0"\n[constants]\na = "b"', "constants.a: expected a finite number, got 'b'"),
        ('name = "x"\nround = "m[i -> neighbours] = w0"\n[constants]\na = nan', "expected a finite number"),
        ('name = "x"\nround = "m[i -> neighbours] = w0"\n[constants]\nt = 1', "'t' is a word of the notation"),
        ('name = "x"\nround = "m[i -> neighbours] = w0"\n[matrices]\nW = "metropols"', "did you mean 'metropolis'"),
        ('name = "x"\nround = "m[i -> neighbours] = w0"\n[matrices]\nW = [[1, 0]]', "not square"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_named(text: str, complaint: str) -> None:
    with pytest.raises(LeakauditError, match=complaint):
        read(text)


def test_matrices_are_rules_or_rows() -> None:
    block = (
        "w[i] = sum(j in closed_neighbours: W[i,j] * w[j]) - grad(w[i])\nm[i -> neighbours] = w[i]"
    )
    line = Graph(3, ((0, 1), (1, 2)))
    rows = '[["1/2", 0.5, 0], [0.25, 0.5, 0.25], [0, "1/2", "1/2"]]'
    kind = victim(made(block).replace('"metropolis"', rows))
    (second,) = [r for r in kind().relations(line, 2, {}).relations if str(r.lhs) == "w[1,2]"]
    assert str(second.rhs) == "1/4 m[0>1,1] + 1/2 m[1>0&2,1] + 1/4 m[2>1,1] - g[1,2]"
    with pytest.raises(LeakauditError, match="W: the matrix has 3 rows, but the graph has 4 nodes"):
        kind().relations(ring(4), 1, {})


def test_opaque_steps_boards_rounding_and_numbers_of_nodes() -> None:
    block = (
        "c[i] = opaque(w[i], grad(w[i]))\n"
        "s[0] = c[0]\n"
        "m[i -> neighbours] = c[i] / degree(i) / count(nodes) + rounding(0.1)\n"
        "b[i -> all] = w[i]\n"
        "w[i] = m[i -> i] + b[0 -> i]"
    )
    p = victim(made(block))().relations(ring(4), 2, {})
    assert len(p.opaques) == 8
    messages = [v for v in p.vectors if v.kind == "message"]
    assert {v.name: v.dst is None for v in messages} == {"m": False, "b": True}
    assert {round(v.std, 9) for v in messages if v.name == "m"} == {round(0.1 / 12**0.5, 9)}


def test_the_first_round_may_differ() -> None:
    head = 'first = """\nw[i] = w[i] - alpha * grad(w[i])\nm[i -> neighbours] = w[i]\n"""'
    block = "w[i] = 2 * w[i] - w[i,t-2] - alpha * (grad(w[i]))" + SEND
    p = victim(made(block, head=head))().relations(ring(3), 3, {})
    assert [v.round for v in p.vectors if v.kind == "message" and v.owner == 0] == [1, 2, 3]


# --- malicious files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        "w[i] = " + "(" * 5000 + "w0" + ")" * 5000,
        "w[i] = " + "-" * 390 + "w0",
        "w[i] = " + "w0 + " * 100_000 + "w0",
        "w[i] = 10^10^10^10 * w[i]",
        "w[i] = 9^1000^1000 * w[i]",
        "w[i] = 1e999999999 * w[i]",
        "w[i] = " + "9" * 5000 + " * w[i]",
        "a = alpha^1000\nb = a^1000\nc = b^1000\nw[i] = c * w[i]",
        "repeat 1000:\n  repeat 1000:\n    repeat 1000:\n      w[i] = 2 * w[i]",
        "repeat 999999999:\n  w[i] = 2 * w[i]",
        "w[i] = sum(j in nodes: sum(k in nodes: sum(l in nodes: sum(n in nodes: w[n]))))",
        "w[i] = __import__('os').system('true')",
        "w[i] = w.__class__",
        "\n".join(f"{'  ' * k}repeat 2:" for k in range(200)) + "\n" + "  " * 200 + "w[i] = w0",
    ],
)
def test_malicious_equations_end_in_one_line_and_bounded_time(block: str) -> None:
    began = time.monotonic()
    with pytest.raises(LeakauditError) as caught:
        victim(made(block + SEND))().relations(ring(4), 5, {})
    assert time.monotonic() - began < 60
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("equation", "limit"),
    [
        (lambda n: "w[i] = " + "(" * n + "w0" + ")" * n, DEEPEST - 1),  # one level is the equation
        (lambda n: "w[i] = " + "-" * n + "w0", DEEPEST - 1),
        (lambda n: f"w[i] = 1e-{n} * w[i]", LARGEST_POWER),
        (lambda n: f"w[i] = 0.{'1' * (n - 2)} * w[i]", LARGEST_NUMBER),
        (lambda n: f"repeat {n}:\n  w[i] = w0", MOST),
        (lambda n: f"w[i] = 1^{n} * w[i]", MOST),
    ],
    ids=["parentheses", "signs", "power of ten", "digits", "repetitions", "exponent"],
)
def test_equations_may_reach_their_limits(equation: Callable[[int], str], limit: int) -> None:
    victim(made(equation(limit) + SEND))().relations(ring(3), 1, {})
    with pytest.raises(LeakauditError, match=r"expected .*(at most|up to) "):
        victim(made(equation(limit + 1) + SEND))().relations(ring(3), 1, {})


def test_a_file_may_have_as_many_characters_as_the_limit() -> None:
    text = made("w[i] = w0" + SEND) + "\n#"
    read(text.ljust(file.LARGEST, "x"))
    with pytest.raises(LeakauditError, match="at most 100000 characters, got 100001"):
        read(text.ljust(file.LARGEST + 1, "x"))


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "[" * 50_000, 'name = "\\u0000"\nround = ""', "\x00"]
)
def test_malicious_files_are_rejected(text: str) -> None:
    with pytest.raises(LeakauditError) as caught:
        read(text)
    assert len(str(caught.value)) < 400


def test_files_of_the_repository_can_be_read() -> None:
    names = {
        load(path).definition.name for path in [*FILES.glob("*.toml"), *EXAMPLES.glob("*.toml")]
    }
    assert len(names) >= 8
