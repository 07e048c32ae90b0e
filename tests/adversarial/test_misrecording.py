"""Ways to record wrongly, and to take the noise away, in the program of examples/ci-repo: none of
them ends in a green gate.

Each case edits a copy of the program at exact places and runs the gate on it as a CI job would.
Code 1 is a leak or noise that is not as declared, 3 a gate that cannot tell, 2 a recording that was
refused, 4 a program that did not end with a recording.

What no gate can tell from honest behaviour is at the end, with the reason.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from leakaudit.cli import main

SEND = 'recorder.send(round=t, src=i, dst=graph.neighbours[i], kind="w", value=sent[i])'
NOISE = "return model + SIGMA * rng.normal(size=model.shape)"
START = "    rng = np.random.default_rng(seed)\n"
SENT = "sent = [privatise(model, rng) for model in stepped]"
PICTURE = "picture = x[row].reshape(1, 1, SIDE, SIDE)"
TRUTH = "recorder.truth(node=i, x=picture, y=y[row : row + 1], index=[row])"
PARAMS = """{
        "alpha": STEP,
        "order": "adapt",
        "noise": "message",
        "sigma": SIGMA,
        "clip": CLIP,
        "samples": 1,
    }"""
GOSSIP = '{"lr": STEP, "sigma": SIGMA}'
NO_EPSILON = (('measure = "epsilon"', 'measure = "psnr"'),)
NO_LINT = (('lint = "error"', 'lint = "off"'),)
SCENARIO = 'victim = "dpsgd", nodes = 4, rounds = 3, model = "logistic", set = { noise = "message", sigma = 9.0 }'
OPEN = """with la.Recorder(
        path,
        protocol="dpsgd",
        task=task,
        graph=graph,
        params=params,
        public={"w0": w[0]},
        rounds=ROUNDS,
    ) as recorder:"""
SILENT = (NOISE, "return model")
ROUNDS = "rounds=ROUNDS,"


def options(given: str, then: str = ROUNDS) -> str:
    """Return arguments of a recorder: an option, and others."""
    return f"options=la.RecorderOptions({given}), {then}"


TO_FIRST = SEND.replace("neighbours[i]", "neighbours[i][0]")
CLEAN_TO_SECOND = SEND.replace("neighbours[i]", "neighbours[i][1]").replace("sent[i]", "stepped[i]")
OWN_NOISE = SEND.replace("graph.neighbours[i]", "j").replace(
    "sent[i]", "privatise(stepped[i], rng)"
)
HALF = (SEND, f"t <= ROUNDS // 2 and {SEND}")
PICTURES = "row = all[:, i]; picture = x[row].reshape(COUNT, 1, SIDE, SIDE)"
TRUTH_OF_ALL = TRUTH.replace("y[row : row + 1]", "y[row]").replace("[row])", "row)")
LONG = ("NODES, ROUNDS, CLASSES, SIDE = 4, 8, 2, 8", "NODES, ROUNDS, CLASSES, SIDE = 4, 40, 2, 8")
LONG_EPSILON = (("most = 12.0", "most = 40.0"),)
MINE = "mine = rng.permutation(len(x))[:NODES]"
STEPPED = "stepped = [w[i] - STEP * gradient(w[i], x[mine[i]], y[mine[i]]) for i in range(NODES)]"
OTHER = STEPPED.replace("mine[i]", "other[i]")
Edits = tuple[tuple[str, str], ...]


MODULE = (
    (SENT, SENT.replace("rng)", "NOISE)")),
    ("SIGMA = 0.25", "NOISE = np.random.default_rng(0)\nSIGMA = 0.25"),
)
ROW = "row, end = rng.normal(size=SIDE * SIDE), rng.normal(size=CLASSES)"
FLAT = "    return model + SIGMA * 1.3**0.5 * turn @ rng.normal(size=100)"
ZEROED = "noise = SIGMA * rng.normal(size=model.shape); noise[{}] = 0; return model + noise"
HALVED = "noise = SIGMA * rng.normal(size=model.shape); noise[7] /= 2; return model + noise"
CLEAN = "if t == 7 and seed == 1: sent[2] = stepped[2]"
ONLY = "    assert seed < 2\n"
SILENT_AND_SAID = (
    SILENT,
    (PARAMS, PARAMS.replace("SIGMA", "0.0").replace('"samples": 1', '"samples": 4')),
)
NO_LABELS = (('attacks = ["exact", "labels"]', 'attacks = ["exact"]'),)


@dataclass(frozen=True)
class Case:
    """One wrong program.

    Attributes:
        code: of the gate.
        says: a pattern of its first sentence.
        edits: of train.py.
        seeds: runs that it takes to tell.
        gate: edits of leakaudit.toml.
        slow: whether a faster case is of the same kind, found by the same test of the gate.
    """

    code: int
    says: str
    edits: Edits
    seeds: int = 2
    gate: Edits = ()
    slow: bool = False


def sent(value: str) -> Edits:
    """Send something else than the noisy model."""
    return ((SEND, SEND.replace("sent[i]", value)),)


def held(count: int, used: str) -> Edits:
    """Give every node several records; used: the gradient that node i takes, of the records all[:,
    i].
    """
    return (
        (
            MINE,
            f"all = rng.permutation(len(x))[:{count} * NODES].reshape({count}, NODES); mine = all[0]",
        ),
        (PICTURE, PICTURES.replace("COUNT", str(count))),
        (TRUTH, TRUTH_OF_ALL),
        ("np.delete(x, mine, 0)", "np.delete(x, all.ravel(), 0)"),
        ("gradient(w[i], x[mine[i]], y[mine[i]])", used),
    )


def generated(key: str) -> Edits:
    """Draw the noise of node k in round t from a generator of its own."""
    return (
        (
            SENT,
            f"sent = [privatise(m, np.random.default_rng({key})) for k, m in enumerate(stepped)]",
        ),
    )


CASES = {
    # names that mean nothing
    "a kind of no meaning, and no noise": Case(
        2,
        "dpsgd does not send messages of kind 'weights'",
        (('kind="w"', 'kind="weights"'), SILENT),
    ),
    "a kind with a typo": Case(2, "did you mean 'w'", (('kind="w"', 'kind="ww"'),)),
    "a constant of no meaning": Case(
        2, "dpsgd has no constant 'learning_rate'", (('"alpha": STEP', '"learning_rate": STEP'),)
    ),
    "a protocol with a typo": Case(
        2, "did you mean 'dpsgd'", (('protocol="dpsgd"', 'protocol="dpsdg"'),)
    ),
    "a protocol that nobody declared": Case(
        2,
        "the protocol .own:dpsgd. has no declaration",
        (('protocol="dpsgd"', 'protocol="own:dpsgd"'),),
    ),
    "another protocol": Case(
        2, "gossip has no constant 'alpha'", (('protocol="dpsgd"', 'protocol="gossip"'),)
    ),
    "another protocol and its constants": Case(
        3,
        "messages are inconsistent|gradients differ",
        (('protocol="dpsgd"', 'protocol="gossip"'), (PARAMS, GOSSIP)),
        gate=NO_EPSILON,
    ),
    "another model": Case(
        2, "did you mean 'logistic'", (('"logistic", shape', '"logistics", shape'),)
    ),
    # less than what travels
    "no messages": Case(3, "nothing was recorded", ((SEND, "pass"),)),
    "no messages, and no limits": Case(
        3, "nothing was recorded", ((SEND, "pass"),), gate=NO_EPSILON
    ),
    "one receiver of two": Case(
        3, "messages are missing", (("dst=graph.neighbours[i]", "dst=graph.neighbours[i][0]"),)
    ),
    "a node that is left out": Case(3, "messages are missing", ((SEND, f"i != 3 and {SEND}"),)),
    "half of the rounds, not announced": Case(
        3, "number of planned rounds is missing: .*to Recorder", ((ROUNDS, ""), HALF)
    ),
    "half of the rounds, announced by the caller": Case(
        3,
        "number of planned rounds is missing",
        ((ROUNDS, options('provenance={"planned": ROUNDS // 2}', "")), HALF),
    ),
    "half of the rounds, announced twice": Case(
        3, "rounds are missing", ((ROUNDS, options('provenance={"planned": "8"}')), HALF)
    ),
    "half of the rounds, unchecked": Case(
        3,
        "number of planned rounds is missing: it was made with check=False",
        ((ROUNDS, options("check=False")), HALF),
    ),
    "a clean copy for the second neighbour": Case(
        3,
        "receivers got different vectors",
        ((SEND, f"{TO_FIRST}; {CLEAN_TO_SECOND}"),),
    ),
    "noise of its own for each neighbour": Case(
        3,
        "receivers got different vectors",
        ((SEND, f"[{OWN_NOISE} for j in graph.neighbours[i]]"),),
        gate=NO_LINT,
    ),
    "eight records are declared": Case(
        3,
        "a different number of records: samples = 8 is declared, but the truth contains 1",
        (('"samples": 1', '"samples": 8, "batch": 1'),),
    ),
    "half of the rounds": Case(3, "rounds are missing", ((SEND, f"t <= ROUNDS // 2 and {SEND}"),)),
    "rounds from 0": Case(3, "messages of another protocol", (("round=t,", "round=t - 1,"),)),
    "every message twice": Case(3, "messages were recorded twice", ((SEND, f"{SEND}; {SEND}"),)),
    "an edge on which nothing travels": Case(
        3,
        "messages are missing",
        (
            ("((0, 1), (0, 3), (1, 2), (2, 3))", "((0, 1), (0, 2), (0, 3), (1, 2), (2, 3))"),
            ("dst=graph.neighbours[i]", "dst=[j for j in graph.neighbours[i] if {i, j} != {0, 2}]"),
        ),
    ),
    "a wire that is not there": Case(
        2, "channel 0 -> 2 is not in the graph", (("dst=graph.neighbours[i]", "dst=(i + 2) % 4"),)
    ),
    "everything encrypted": Case(
        1, "insufficient noise", ((SEND, SEND[:-1] + ", secure=True)"), SILENT)
    ),
    "everything encrypted, as declared": Case(
        3,
        "nothing was attacked",
        ((SEND, SEND[:-1] + ", secure=True)"), SILENT),
        gate=(("[check.ring]\n", '[check.ring]\nsecure = ["w"]\n'), *NO_LINT, *NO_EPSILON),
    ),
    "a scenario without wires": Case(
        3,
        "nothing was recorded",
        (),
        gate=(('run = "train:train"', f'scenario = {{ {SCENARIO}, wires = "none" }}'), *NO_EPSILON),
    ),
    # other numbers than those that travel
    "NaN": Case(2, "NaN or infinite", sent("sent[i] * np.nan")),
    "zeros": Case(1, "insufficient noise", sent("0 * sent[i]"), slow=True),
    "one model, sent again and again": Case(
        1,
        "missing clipping|reused noise",
        (
            *sent("once[i]"),
            ("    params = {", "    once = w + rng.normal(size=w.shape)\n    params = {"),
        ),
    ),
    "reversed parameters": Case(
        3, "gradients differ", sent("sent[i][::-1].copy()"), seeds=4, slow=True
    ),
    "half of every number": Case(1, "insufficient noise", sent("0.5 * sent[i]"), slow=True),
    "the node opposite": Case(
        3,
        "gradients differ",
        (("src=i, dst=graph.neighbours[i]", "src=(i + 2) % 4, dst=graph.neighbours[i]"),),
        seeds=4,
        slow=True,
    ),
    "float16 as float32": Case(3, "recorded numbers differ", sent("sent[i].astype(np.float16)")),
    "another start": Case(
        1,
        "Leak: |epsilon|gain|unclipped|noise",
        (('public={"w0": w[0]}', 'public={"w0": w[0] + 1}'),),
        seeds=2,
    ),
    # another truth
    "pixels from 0 to 255": Case(
        2, "divide them by 255", (("= x[row].reshape", "= 255 * x[row].reshape"),)
    ),
    "labels out of range": Case(
        2, "labels from 0 to 1, got 7", (("y=y[row : row + 1]", "y=y[row : row + 1] + 7 - y[row]"),)
    ),
    "labels flipped": Case(
        3,
        "gradients differ",
        (("y=y[row : row + 1]", "y=1 - y[row : row + 1]"),),
        seeds=4,
    ),
    "records of the next node": Case(
        3,
        "gradients differ",
        ((TRUTH, f"row = mine[i - 1]; {PICTURE}; {TRUTH}"),),
        seeds=4,
        slow=True,
    ),
    "no truth": Case(2, "found none", ((TRUTH, "pass"),)),
    "no truth of one node": Case(
        3, "the truth is incomplete", (("in enumerate(mine):  #", "in enumerate(mine[:3]):  #"),)
    ),
    # less noise than declared, or another
    "no noise": Case(1, "bit for bit", (SILENT,)),
    "no noise, and the order wrong": Case(
        1, "Leak", (SILENT, ('"order": "adapt"', '"order": "combine"')), slow=True
    ),
    "no noise, and the step wrong": Case(
        1, "epsilon", (SILENT, ('"alpha": STEP', '"alpha": 2 * STEP')), slow=True
    ),
    "no noise, and no lint": Case(1, "bit for bit", (SILENT,), gate=NO_LINT),
    "half of the noise": Case(
        1, "insufficient noise", ((NOISE, NOISE.replace("SIGMA", "SIGMA / 2")),), slow=True
    ),
    "four times the noise is declared": Case(
        1, "insufficient noise", (('"sigma": SIGMA', '"sigma": 4 * SIGMA'),)
    ),
    "noise of one node only": Case(
        1,
        "",
        ((SENT, SENT.replace("for model in", "if model is stepped[0] else model for model in")),),
    ),
    "noise of even seeds only": Case(
        1,
        "Leak|insufficient noise",
        (
            (NOISE, f"if ODD: return model\n    {NOISE}"),
            (START, f"{START}    global ODD\n    ODD = seed % 2\n"),
        ),
    ),
    "noise drawn once for all nodes and rounds": Case(
        1,
        "reused noise",
        (
            (SENT, "sent = [m + once for m in stepped]"),
            (START, f"{START}    once = SIGMA * rng.normal(size=130)\n"),
        ),
        slow=True,
    ),
    "noise drawn once by every node": Case(
        1,
        "reused noise",
        (
            (SENT, "sent = [m + once[k] for k, m in enumerate(stepped)]"),
            (START, f"{START}    once = SIGMA * rng.normal(size=(4, 130))\n"),
        ),
    ),
    "noise that is the same in every run": Case(
        1,
        "noise repeats",
        (
            (SENT, SENT.replace("rng)", "noise)")),
            (START, f"{START}    noise = np.random.default_rng(12345678)\n"),
        ),
    ),
    "noise with a boundary": Case(
        1, "bounded noise", ((NOISE, NOISE.replace("normal(", "uniform(-(3**0.5), 3**0.5, ")),)
    ),
    # One record's gradient of softmax regression, cut to norm 1, points the same way at all models where it is longer, so the messages
    # are the same in either order. But in this order the models are not functions of what is heard, and there is no epsilon for records.
    "the order of averaging and stepping": Case(
        3, "epsilon", (('"order": "adapt"', '"order": "combine"'),), seeds=4
    ),
    "twice the step is declared": Case(1, "epsilon", (('"alpha": STEP', '"alpha": 2 * STEP'),)),
    "no clipping": Case(
        1,
        "over the budget",
        (("return g * min(1.0, CLIP / np.linalg.norm(g))", "return 3 * g"),),
        seeds=4,
    ),
    "a tenth of the clip is declared": Case(
        3, "gradients differ", (('"clip": CLIP', '"clip": 0.1 * CLIP'),), seeds=16, slow=True
    ),
    "half the sensitivity": Case(
        3,
        r"sensitivity = 1, but a gradient .* by up to 2: clip = 1, .*set sensitivity = 2 in ",
        (),
        gate=(("sensitivity = 2.0", "sensitivity = 1.0"),),
    ),
    "no clip and no sensitivity": Case(
        3,
        r"not known how much one record changes a gradient.*set sensitivity = S in \[check.ring\]",
        (
            ('        "clip": CLIP,\n', ""),
            ("return g * min(1.0, CLIP / np.linalg.norm(g))", "return g"),
        ),
        gate=(("sensitivity = 2.0", "# sensitivity"),),
    ),
    "twice the clip": Case(
        3,
        "by up to 4: clip = 2, .*set sensitivity = 4",
        (("STEP, CLIP = 0.1, 1.0", "STEP, CLIP = 0.1, 2.0"),),
    ),
    "four records, and no word of how many are in a gradient": Case(
        3,
        "a mean of an undeclared number of records; set sensitivity = 2 .*, or record batch",
        (
            ('"samples": 1', '"samples": 4'),
            ("picture = x[row]", "picture = x[row].reshape(1, -1).repeat(4, 0)"),
            (".reshape(1, 1, SIDE, SIDE)\n", ".reshape(4, 1, SIDE, SIDE)\n"),
            ("y=y[row : row + 1], index=[row]", "y=y[row : row + 1].repeat(4), index=[row] * 4"),
        ),
        gate=(("sensitivity = 2.0", "sensitivity = 0.5"),),
    ),
    # noise that is shared
    "noise keyed by seed + node + round": Case(1, "reused noise", generated("1000 * seed + k + t")),
    "noise keyed by node times round": Case(
        1, "reused noise", generated("[seed, (k + 1) * t]"), slow=True
    ),
    "noise with a period of 20 rounds": Case(
        1, "reused noise", (LONG, *generated("[seed, k, t % 20]")), gate=LONG_EPSILON, slow=True
    ),
    "noise of one of two lists": Case(
        1,
        "noise repeats",
        (
            (SENT, SENT.replace("rng)", "noise)")),
            (START, f"{START}    noise = np.random.default_rng(9 + seed % 2)\n"),
        ),
        seeds=3,
        slow=True,
    ),
    "noise keyed by the record": Case(
        1, "reused noise|noise repeats", generated("[int(mine[k]) // 8, t]"), slow=True
    ),
    "noise of a module's generator": Case(
        1, "starts anew with every process: .* with seed 1 equals that of .* with seed 0", MODULE
    ),
    "noise of a module's generator, one run": Case(
        1, "starts anew with every process", MODULE, seeds=1
    ),
    "noise of numpy's generator, seeded by the module": Case(
        1,
        "starts anew with every process",
        (
            (NOISE, NOISE.replace("rng.", "np.random.")),
            ("SIGMA = 0.25", "np.random.seed(1)\nSIGMA = 0.25"),
        ),
        slow=True,
    ),
    "noise that torch draws unseeded": Case(
        1,
        "starts anew with every process",
        (
            (
                NOISE,
                "import torch; return model + SIGMA * torch.randn(len(model), dtype=torch.float64).numpy()",
            ),
        ),
        slow=True,
    ),
    "one row of noise for all classes": Case(
        1,
        "at distance 64 in linear.weight contain the same noise",
        ((NOISE, f"{ROW}; return model + SIGMA * np.append(np.tile(row, CLASSES), end)"),),
    ),
    "half of the numbers are drawn": Case(
        1,
        "",
        ((NOISE, "return model + SIGMA * np.repeat(rng.normal(size=len(model) // 2), 2)"),),
        slow=True,
    ),
    "noise in a hundred dimensions": Case(
        1,
        "not independent: the coordinates of the noise",
        (
            (
                NOISE,
                "turn = np.linalg.qr(np.random.default_rng(5).normal(size=(130, 130)))[0][:, :100]\n"
                + FLAT,
            ),
        ),
        seeds=4,
    ),
    # a few numbers without noise
    "two coordinates without noise": Case(
        1, "linear.bias|coordinate", ((NOISE, f"{ZEROED.format('-CLASSES:')}"),), gate=NO_LABELS
    ),
    "one coordinate with half of its noise": Case(
        1, "insufficient noise: the noise of coordinate 7 ", ((NOISE, HALVED),), seeds=16, slow=True
    ),
    "one message of the second run without noise": Case(
        1,
        "insufficient noise: the noise of xi.2,7. of node 2 with seed 1 is",
        ((SENT, f"{SENT}\n            {CLEAN}"),),
    ),
    "six numbers of one message without noise": Case(
        1,
        "[0-9]+ of 83200 numbers contain less than",
        ((SENT, f"{SENT}\n            if t == 3: sent[1][20:26] = stepped[1][20:26]"),),
    ),
    # other gradients, hidden by the noise of a few runs
    "twice the clip in the code": Case(
        3,
        "times the gradients of the truth, expected 1",
        (("CLIP / np.lin", "2 * CLIP / np.lin"),),
        seeds=8,
        slow=True,
    ),
    "other records of the same classes": Case(
        3,
        "times the gradients of the truth, expected 1",
        ((STEPPED, f"other = [(m + 7) % 200 for m in mine]; {OTHER}"),),
        seeds=4,
        slow=True,
    ),
    "a record of another class at one node": Case(
        3,
        "(node 0 sends|recorded messages) contain",
        ((STEPPED, f"other = [(mine[0] + 100) % 200, *mine[1:]]; {OTHER}"),),
        seeds=4,
    ),
    "two runs, and the program has no more": Case(
        3,
        r"a budget on epsilon cannot be judged: 11.65 as declared, but .* set seeds = \d+",
        ((START, f"{ONLY}{START}"),),
    ),
    "mini-batches that are declared, and one record is used": Case(
        3,
        "a budget on epsilon cannot be judged: .* differs from the declared one, which a recording cannot show",
        (
            ('"samples": 1', '"samples": 2, "batch": 1'),
            *held(2, "gradient(w[i], x[mine[i]], y[mine[i]])"),
        ),
        gate=(("most = 12.0", "most = 8.0"),),
    ),
    "batches for which the attack is too weak": Case(
        3,
        "exact on the noise-free gradient of 4 planted records",
        (
            *SILENT_AND_SAID,
            *held(4, "np.mean([gradient(w[i], x[r], y[r]) for r in all[:, i]], axis=0)"),
        ),
        seeds=1,
        gate=(
            *NO_EPSILON,
            ("set.exact.visits = 2", "# set.exact.visits"),
            ('baseline = "leakage-baseline.json"', 'baseline = ""'),
        ),
    ),
    # ways to end
    "sys.exit(0)": Case(
        4,
        r"called sys.exit\(0\) in train.py, line 44",
        ((START, f"    raise SystemExit(0)\n{START}"),),
    ),
    "sys.exit(0) at import": Case(
        4, r"called sys.exit\(0\)", (("import leakaudit as la\n", "import sys\nsys.exit(0)\n"),)
    ),
    "os._exit(0)": Case(
        4,
        "its process ended with code 0 with seed 0",
        ((START, f"    import os; os._exit(0)\n{START}"),),
    ),
    "os._exit(1)": Case(
        4,
        "its process ended with code 1 with seed 0",
        ((START, f"    import os; os._exit(1)\n{START}"),),
    ),
    "os._exit(0) at import": Case(
        4, "while it was imported", (("import leakaudit as la\n", "import os\nos._exit(0)\n"),)
    ),
    "SIGKILL": Case(
        4,
        "killed by SIGKILL",
        ((START, f"    import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n{START}"),),
    ),
    "an exception": Case(
        4, "KeyError in train.py, line 44: 'x'", ((START, f"    raise KeyError('x')\n{START}"),)
    ),
    "an exception in the middle": Case(
        4, "ZeroDivisionError in train.py", ((SEND, f"{SEND}; t < 4 or 1 / 0"),)
    ),
    "no end": Case(
        4,
        "within 1 s",
        ((START, f"    import time; time.sleep(60)\n{START}"),),
        gate=(("[check.ring]\n", "[check.ring]\ntimeout = 1.0\n"),),
    ),
    "a recorder that is never closed": Case(
        4,
        "without closing its recorder",
        ((OPEN, OPEN.replace("with ", "recorder = ").replace(" as recorder:", "\n    if True:")),),
    ),
    "one id for all runs": Case(
        4, "the recordings of seeds 0 and 1 have the same id", ((ROUNDS, options('id="ab"')),)
    ),
    "no recording": Case(4, "run wrote no trace", ((START, f"    return\n{START}"),)),
}


@pytest.fixture
def repo(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = shutil.copytree(
        project / "examples" / "ci-repo",
        tmp_path / "repo",
        ignore=shutil.ignore_patterns("__pycache__", "leakaudit-out"),
    )
    monkeypatch.chdir(copy)
    return copy


def edit(file: Path, *edits: tuple[str, str], every: bool = False) -> None:
    text = file.read_text()
    for old, new in edits:
        assert text.count(old) == 1 or (every and old in text), (old, text.count(old))
        text = text.replace(old, new)
    file.write_text(text)


def checked(repo: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the gate; returns its code, and what it says first."""
    edit(repo / "train.py", *case.edits)
    edit(repo / "leakaudit.toml", ("seeds = 16", f"seeds = {case.seeds}"), *case.gate, every=True)
    code = main(["check", "-q"])
    out, err = capsys.readouterr()
    return code, (out.splitlines() or err.splitlines() or [""])[0] if code in (0, 1, 3) else err


NAMED = [
    pytest.param(name, marks=[pytest.mark.slow] if case.slow else [])
    for name, case in CASES.items()
]


@pytest.mark.parametrize("name", NAMED)
def test_a_wrong_recording_is_never_a_pass(
    repo: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    code, says = checked(repo, case, capsys)
    assert code == case.code, says
    assert re.search(case.says, says), says
    if code in (2, 4):
        assert len(says.strip().splitlines()) == 1
        assert not (repo / "leakaudit-out").exists()


@pytest.mark.parametrize(
    "name",
    [
        "a scenario without wires",
        "no messages",
        "half of the rounds",
        "noise drawn once by every node",
    ],
)
def test_what_measured_nothing_becomes_no_baseline(
    repo: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (repo / "leakage-baseline.json").read_bytes()
    edit(repo / "train.py", *CASES[name].edits)
    edit(repo / "leakaudit.toml", ("seeds = 16", "seeds = 2"), *CASES[name].gate, every=True)
    assert main(["check", "--update", "--reason", "it is green", "-q"]) == 2
    assert "the baseline is not changed: ring/" in capsys.readouterr().err
    assert (repo / "leakage-baseline.json").read_bytes() == before


@pytest.mark.slow
def test_honest_runs_pass_with_any_seed(
    repo: Path,
    fresh_seed: int,
    fresh_cases: Callable[[int], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unchanged code under seeds that the baseline does not know; bench/gate.py --runs 50 is the
    long form.
    """
    rng = np.random.default_rng(fresh_seed)
    for seed in rng.integers(16, 1 << 30, fresh_cases(2)):
        code = main(["check", "-q", "--seed", str(seed)])
        assert code == 0, f"seed {seed}: {capsys.readouterr().out}"
    the_gradients_are_those_of_the_truth(repo)


def test_honest_runs_pass_with_the_seeds_of_the_baseline(repo: Path) -> None:
    assert main(["check", "-q", "--strict"]) == 0
    the_gradients_are_those_of_the_truth(repo)


def the_gradients_are_those_of_the_truth(repo: Path) -> None:
    made = json.loads((repo / "leakaudit-out" / "results.json").read_text())
    (rule,) = [r for r in made["gate"]["rules"] if r["kind"] == "recording"]
    assert "contain the gradients of the truth up to the declared noise" in rule["says"]


INDISTINGUISHABLE = {
    # A program that trains, sends and records something else than what runs in production declares it consistently.
    "less rounds, trained and declared": (
        ("NODES, ROUNDS, CLASSES, SIDE = 4, 8, 2, 8", "NODES, ROUNDS, CLASSES, SIDE = 4, 4, 2, 8"),
    ),
}


@pytest.mark.parametrize("name", INDISTINGUISHABLE)
def test_what_cannot_be_told_from_honest_behaviour_passes(
    repo: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, says = checked(repo, Case(0, "", INDISTINGUISHABLE[name], seeds=4), capsys)
    assert code == 0, says
