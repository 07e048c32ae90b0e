"""Mislabelled, incomplete and hostile recordings: none of them ends in a pass, or in "nothing
leaked", on any way through the program.

Each case spoils an honest recording in one line. It is recorded with a `Recorder`, which refuses
what it can see (and once more without its checks, as a stranger's file would be), written in the
wire format and imported with its description, attacked with and without its truth, explained,
priced, linted and given to a gate. A way ends with code 2 and one line, or with code 3 (and the
lint with 1) and the difference named. Without the truth some recordings cannot be told from honest
ones; an attack then ends with code 3, too, and says that nothing was compared.

docs/refusals.md lists these cases; a test compares it with this table.
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="attr-defined, operator, union-attr"

from __future__ import annotations

import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from recordings import Run, dpsgd, fedsgd
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.results import record_file

INCONCLUSIVE = 3


# --- what is wrong ------------------------------------------------------------------------------


def constants(**changed: str | float) -> Callable[[Run], None]:
    """Declare other constants."""
    return lambda run: run.params.update(changed)


def renamed_constant(run: Run) -> None:
    run.params["learning_rate"] = run.params.pop("alpha")


def protocol(name: str) -> Callable[[Run], None]:
    """Declare another protocol."""

    def spoil(run: Run) -> None:
        run.protocol = name

    return spoil


def without_its_constants(run: Run) -> None:
    run.protocol = "nids"
    run.params = {}


def kinds(**renamed: str) -> Callable[[Run], None]:
    """Record messages under other kinds."""

    def spoil(run: Run) -> None:
        for m in run.messages:
            m.kind = renamed.get(m.kind, m.kind)

    return spoil


def first_to_the_node_opposite(run: Run) -> None:
    run.messages[0].dst = 2


def number(value: float) -> Callable[[Run], None]:
    """Record a number that is none, in one message."""

    def spoil(run: Run) -> None:
        m = run.messages[5]
        m.value = m.value.clone()
        m.value[3] = value

    return spoil


def diverged(run: Run) -> None:
    """Record what a node sends whose training diverges in round 3."""
    for m in run.messages:
        if m.src == 0 and m.round > 2:
            m.value = m.value * float("nan")


def values(change: Callable[[Tensor], Tensor], kind: str = "w") -> Callable[[Run], None]:
    """Record something else than what was sent."""

    def spoil(run: Run) -> None:
        for m in run.messages:
            if m.kind == kind:
                m.value = change(m.value)

    return spoil


def stepping_backwards(run: Run) -> None:
    values(lambda value: 2 * run.w0 - value)(run)


def permuted(run: Run) -> None:
    order = torch.randperm(len(run.w0), generator=Generator().manual_seed(3))
    values(lambda value: value[order])(run)


def of_another_model(run: Run) -> None:
    random = Generator().manual_seed(3)
    drawn: dict[tuple[int, int], Tensor] = {}
    for m in run.messages:
        key = (m.round, m.src)
        if key not in drawn:
            drawn[key] = torch.randn(len(m.value), generator=random)
        m.value = drawn[key]


def sent(run: Run) -> dict[tuple[int, int], Tensor]:
    """The models that were sent, by round and node; all start at w0."""
    found = {(m.round, m.src): m.value for m in run.messages}
    for node in run.holders:
        found[0, node] = run.w0
    return found


def gradients_as_weights(run: Run) -> None:
    was = sent(run)
    neighbours = la.Graph(run.nodes, run.edges).neighbours
    for m in run.messages:
        near = (m.src, *neighbours[m.src])
        mixed = torch.stack([was[m.round - 1, j] for j in near]).mean(0)
        m.value = (mixed - was[m.round, m.src]) / 0.1


def deltas_as_weights(run: Run) -> None:
    was = sent(run)
    for m in run.messages:
        m.value = was[m.round, m.src] - was[m.round - 1, m.src]


def weights_as_gradients(run: Run) -> None:
    models = {m.round: m.value for m in run.messages if m.kind == "w"}
    for m in run.messages:
        if m.kind == "g":
            m.value = models[m.round] - 0.1 * m.value


def sums_as_gradients(run: Run) -> None:
    sums: dict[int, Tensor] = {}
    for m in run.messages:
        if m.kind == "g":
            sums[m.round] = sums.get(m.round, torch.zeros(())) + m.value
    for m in run.messages:
        if m.kind == "g":
            m.value = sums[m.round]


def one_more_edge(run: Run) -> None:
    run.edges = ((0, 1), (0, 2), (0, 3), (1, 2), (2, 3))


def on_nodes(*places: int) -> Callable[[Run], None]:
    """Record node i as node places[i]."""

    def spoil(run: Run) -> None:
        for m in run.messages:
            m.src = places[m.src]
            m.dst = places[m.dst]

    return spoil


def earlier(run: Run) -> None:
    for m in run.messages:
        m.round -= 1


def without_round(lost: int) -> Callable[[Run], None]:
    """Leave out the messages of a round."""

    def spoil(run: Run) -> None:
        run.messages = [m for m in run.messages if m.round != lost]

    return spoil


def without_models(run: Run) -> None:
    """Leave out what a plain all_reduce does not send: the models of its ranks."""
    run.messages = [m for m in run.messages if m.kind != "w"]


def twice(run: Run) -> None:
    run.messages = [m for m in run.messages for _ in range(2)]


def nothing(run: Run) -> None:
    run.messages = []


def other_to_one_receiver(run: Run) -> None:
    run.messages[10].value = run.messages[10].value + 0.5


def encrypted(run: Run) -> None:
    for m in run.messages:
        m.secure = True


def another_start(run: Run) -> None:
    run.w0 = run.w0 + 0.1


def truth_of_the_next_node(run: Run) -> None:
    run.x = run.x.roll(1, 0)
    run.y = run.y.roll(1, 0)


def other_labels(run: Run) -> None:
    run.y = (run.y + 1) % 3


def labels_out_of_range(run: Run) -> None:
    run.y = run.y + 3


def pixels_to_255(run: Run) -> None:
    run.x = run.x * 255


def truth_of_one_record(run: Run) -> None:
    run.x = run.x[:, :1]
    run.y = run.y[:, :1]
    run.params["samples"] = 1


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One wrong recording.

    Attributes:
        spoil: What is wrong.
        says: A pattern of what all verbs say about it.
        refused: A pattern of the Recorder's refusal; empty if it cannot see it.
        blind: Whether it is noticed without the truth.
        imported: Exit code of its import in the wire format; 0 if the format cannot show it.
        base: The honest recording.
        refuted: Whether a lint refutes the declaration; what is missing or not a number does not.
    """

    spoil: Callable[[Run], None]
    says: str
    refused: str = ""
    blind: bool = False
    imported: int = INCONCLUSIVE
    base: Callable[[], Run] = dpsgd
    refuted: bool = True


def noisy() -> Run:
    """Clipped gradients and noise, as declared."""
    return dpsgd(sigma=0.2, clip=1.0)


def silently_noisy() -> Run:
    """Noise that is not declared."""
    return dpsgd(sigma=0.2, declared=False)


def eight() -> Run:
    """Gradients of eight records."""
    return dpsgd(samples=8)


def unchanged(run: Run) -> None:
    """Leave the recording as it is: the base itself is wrong."""


OTHER = "messages of another protocol"
LOST = "messages are missing"
GRADIENTS = "gradients differ from those of the truth"
INCONSISTENT = "messages are inconsistent"
UNDECLARED = "a protocol without a declaration"
NO_VICTIM = "there is no victim|has no declaration"

CASES = {
    # Names.
    "a protocol with a typo": Case(
        protocol("dpsdg"), NO_VICTIM, "did you mean 'dpsgd'", True, imported=2
    ),
    UNDECLARED: Case(protocol("own:loop"), NO_VICTIM, "", True, imported=0),
    "another protocol": Case(without_its_constants, OTHER, "does not send", True, imported=2),
    "a constant that the protocol does not have": Case(
        renamed_constant, "no constant 'learning_rate'", "no constant", True, imported=2
    ),
    "a kind that the protocol does not send": Case(
        kinds(w="weights"), OTHER, "does not send messages of kind 'weights'", True, imported=2
    ),
    "kinds exchanged": Case(kinds(w="g", g="w"), OTHER, "", True, imported=2, base=fedsgd),
    "a channel that is not in the graph": Case(
        first_to_the_node_opposite, OTHER, "channel 0 -> 2 is not in the graph", True
    ),
    # Numbers that no program can have meant.
    # To one receiver only, which refutes that all of them get the same vector.
    "NaN in a message": Case(number(float("nan")), "NaN", "NaN or infinite", True, imported=2),
    "infinity in a message": Case(number(float("inf")), "NaN", "NaN or infinite", True, imported=2),
    # A program whose training diverges may still send what it declares.
    "NaN in all messages of a node": Case(
        diverged, "NaN|non-finite", "NaN or infinite", True, imported=2, refuted=False
    ),
    "a negative step size": Case(
        constants(alpha=-0.1), "expected alpha > 0", "expected alpha > 0", True, imported=2
    ),
    "labels out of range": Case(
        labels_out_of_range, "labels from 0 to 2", "labels from 0 to 2", imported=2
    ),
    "pixels from 0 to 255": Case(pixels_to_255, "divide them by 255", "by 255", imported=2),
    # Messages that are not those of the run.
    "no message": Case(nothing, "nothing was recorded", "", True, imported=2, refuted=False),
    "the first round is missing": Case(without_round(1), LOST, "", True, refuted=False),
    "a round in the middle is missing": Case(without_round(3), LOST, "", True, refuted=False),
    # In the wire format, which does not announce rounds, this is an honest recording of five.
    "the last round is missing": Case(without_round(6), LOST, "", True, imported=0, refuted=False),
    "the models of a server are missing": Case(
        without_models, LOST, "", True, base=fedsgd, refuted=False
    ),
    "rounds from 0 instead of 1": Case(earlier, OTHER, "", True, imported=2),
    "every message twice": Case(twice, "recorded twice", "", True, imported=2),
    "other numbers for one receiver": Case(
        other_to_one_receiver, "receivers got different vectors", "", True
    ),
    "an edge on which nothing travels": Case(one_more_edge, LOST, "", True, refuted=False),
    "nodes of another graph": Case(on_nodes(0, 2, 1, 3), OTHER, "is not in the graph", True),
    "nodes exchanged": Case(on_nodes(1, 0, 3, 2), GRADIENTS),
    # The format has no place for encryption, so the import is honest.
    "everything marked as encrypted": Case(encrypted, "marked as encrypted", "", True, imported=0),
    # Messages that hold something else.
    "messages of another model of the same size": Case(of_another_model, GRADIENTS),
    "parameters in another order": Case(permuted, GRADIENTS),
    "gradients recorded as models": Case(gradients_as_weights, GRADIENTS),
    "updates recorded as models": Case(deltas_as_weights, GRADIENTS),
    "models recorded as gradients": Case(weights_as_gradients, INCONSISTENT, "", True, base=fedsgd),
    "sums recorded as single gradients": Case(
        sums_as_gradients, INCONSISTENT, "", True, base=fedsgd
    ),
    "float16 recorded as float32": Case(
        values(lambda value: value.half().float()), "float16 numbers", "", True
    ),
    "float16 recorded as float32, with noise": Case(
        values(lambda value: value.half().float()), "float16 numbers", "", True, base=noisy
    ),
    "models that move against the gradient": Case(stepping_backwards, GRADIENTS),
    "gradients with the wrong sign": Case(
        values(lambda value: -value, "g"), INCONSISTENT, "", True, imported=2, base=fedsgd
    ),
    # Constants.
    "half of the step size": Case(constants(alpha=0.05), GRADIENTS, imported=2),
    "half of the server's step size": Case(
        constants(lr=0.05), INCONSISTENT, "", True, imported=0, base=fedsgd
    ),
    "another start": Case(another_start, GRADIENTS),
    "noise declared, but not present": Case(
        constants(noise="message", sigma=0.2), "insufficient noise", "", True
    ),
    "noise present, but not declared": Case(unchanged, GRADIENTS, base=silently_noisy),
    "twice the noise declared": Case(
        constants(sigma=0.4), "insufficient noise", "", True, base=noisy
    ),
    "half of the noise declared": Case(
        constants(sigma=0.1), "more than the declared noise", base=noisy
    ),
    # The truth.
    "truth of the next node": Case(truth_of_the_next_node, GRADIENTS),
    "labels of the truth exchanged": Case(other_labels, GRADIENTS),
    "one record declared, eight in the truth": Case(
        constants(samples=1),
        "samples = 1 is declared",
        "at most samples = 1",
        imported=2,
        base=eight,
    ),
    "one record in the truth, gradients of eight": Case(truth_of_one_record, GRADIENTS, base=eight),
}
IMPOSSIBLE: tuple[str, ...] = ()  # cases of which no file can be made
HONEST: dict[str, Callable[[], Run]] = {
    "models without noise": dpsgd,
    "models with noise": noisy,
    "gradients through a server": fedsgd,
    "gradients of eight records": eight,
    "gradients of two records through a server": lambda: fedsgd(samples=2),
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Call = Callable[..., Ended]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def called(*words: object) -> Ended:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ended(code, " ".join(out.split()), err)

    return called


def spoilt(name: str) -> Run:
    case = CASES[name]
    run = case.base()
    case.spoil(run)
    return run


def is_refusal(ended: Ended, says: str) -> bool:
    """Whether a command ended with code 2 and one line; it must say why."""
    if ended.code != 2:
        return False
    assert len(ended.err.strip().splitlines()) == 1
    assert re.search(says, ended.err), ended.err
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_recorder_refuses_what_it_can_see(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if not case.refused:
        spoilt(name).record(tmp_path / "t.pt")
        return
    with pytest.raises(LeakauditError, match=case.refused) as refused:
        spoilt(name).record(tmp_path / "t.pt")
    assert "\n" not in str(refused.value)


# Cases of each kind that run in the quick suite; the others differ from them only in what is wrong.
QUICK = (
    "a protocol with a typo",
    "a kind that the protocol does not send",
    "NaN in a message",
    "labels out of range",
    "a round in the middle is missing",
    "everything marked as encrypted",
    "gradients recorded as models",
    "sums recorded as single gradients",
    "noise declared, but not present",
    "truth of the next node",
)
NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_an_import_says_what_contradicts_the_description(
    name: str, tmp_path: Path, call: Call
) -> None:
    case = CASES[name]
    described = spoilt(name).wire(tmp_path / "m")
    path = tmp_path / "i.pt"
    truth = tmp_path / "m" / "truth.npz"
    ended = call(
        "trace", "import", tmp_path / "m", "--describe", described, "--truth", truth, "-o", path
    )
    assert ended.code == case.imported, ended
    if ended.code == 2:
        assert len(ended.err.strip().splitlines()) == 1
        assert ended.err.startswith("leakaudit trace import: ")
        assert not path.exists()
    if ended.code == INCONCLUSIVE:
        assert "not as described: " in ended.err
    if name == UNDECLARED:
        assert "own:loop is not declared; next: leakaudit trace equations" in ended.err


@pytest.mark.parametrize("name", NAMES)
def test_no_verb_passes_it(name: str, tmp_path: Path, call: Call) -> None:
    case = CASES[name]
    path = tmp_path / "t.pt"
    if name in IMPOSSIBLE:
        with pytest.raises(LeakauditError, match=case.says):
            spoilt(name).record(path, check=False)
        return
    spoilt(name).record(path, check=False)
    attacks = ("--attack", "labels", "-q")

    # With the truth: attack, bound and lint.
    ended = call("attack", path, "-o", tmp_path / "with", *attacks)
    if not is_refusal(ended, case.says):
        assert ended.code == INCONCLUSIVE, ended
        the_reports_say_it(tmp_path / "with", case, call)
    ended = call("bound", path, "--node", 0, "--as", "eavesdropper", "-q")
    if not is_refusal(ended, case.says) and "encrypted" not in name:
        assert ended.code == INCONCLUSIVE, ended
        assert re.search(f"INCONCLUSIVE: .*({case.says})", ended.out), ended
    ended = call("trace", "lint", path, "--truth", tmp_path / "t.truth.pt", "--strict", "-q")
    if not is_refusal(ended, case.says) and "encrypted" not in name:
        refuted = case.refuted and "own:" not in str(la.load(path).protocol)
        assert ended.code == (1 if refuted else INCONCLUSIVE), ended
        assert refuted or "REFUTED" not in ended.out

    # Without it.
    (tmp_path / "t.truth.pt").unlink(missing_ok=True)
    ended = call("attack", path, "-o", tmp_path / "without", *attacks)
    if not is_refusal(ended, case.says):
        assert ended.code == INCONCLUSIVE, ended
        if not case.blind:
            record = record_file.read(tmp_path / "without" / "results.json")
            assert record_file.NOT_COMPARED in record["unverified"]
            assert record_file.NOT_COMPARED in ended.out
    ended = call("explain", path, "-q")
    if not is_refusal(ended, case.says):
        assert ended.code == (INCONCLUSIVE if case.blind else 0), ended


def the_reports_say_it(folder: Path, case: Case, call: Call) -> None:
    """Every report of a result says why it is inconclusive."""
    record = record_file.read(folder / "results.json")
    assert any(re.search(case.says, str(reason)) for reason in record["unclear"])
    for format in ("text", "markdown", "html"):
        page = call("report", folder, "-f", format, "-q").out.replace("\\", "")
        assert "INCONCLUSIVE" in page, format
    understood = [one.get("understood", True) for one in record["undetermined"]]
    shown = call("report", folder, "-f", "markdown", "-q").out
    assert ("## Not understood" in shown) == (not all(understood))
    assert ("## Not determined" in shown) == any(understood)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_recording_passes(name: str, tmp_path: Path, call: Call) -> None:
    run = HONEST[name]()
    path = tmp_path / "t.pt"
    run.record(path)
    for truth, code in (("auto", 0), ("none", INCONCLUSIVE)):
        out = tmp_path / truth
        ended = call("attack", path, "-o", out, "--attack", "labels", "--truth", truth, "-q")
        assert ended.code == code, ended
        record = record_file.read(out / "results.json")
        assert "unclear" not in record
        assert ("unverified" in record) == (code == INCONCLUSIVE)
    assert call("explain", path, "-q").code == 0
    assert call("bound", path, "--node", 0, "-q").code == 0
    truth_file = tmp_path / "t.truth.pt"
    assert call("trace", "lint", path, "--truth", truth_file, "--strict", "-q").code == 0
    described = run.wire(tmp_path / "m")
    made = call("trace", "import", tmp_path / "m", "--describe", described, "-o", tmp_path / "i.pt")
    assert made.code == 0
    assert "not as described" not in made.err


# --- the gate -----------------------------------------------------------------------------------

GATE = """
[gate]
seeds = 1
baseline = ""

[check.own]
run = "train:train"
attacks = ["labels"]
sensitivity = 2.0

[[budget]]
measure = "psnr"
most = 1000.0
"""
PROGRAM = """
import sys

sys.path[:0] = {folders}
import test_twenty_recordings as cases


def train(seed, path):
    cases.spoilt({name!r}).record(path)
"""
WITH_GATE = (
    "a kind that the protocol does not send",
    "a round in the middle is missing",
    "gradients recorded as models",
    "updates recorded as models",
    "sums recorded as single gradients",
    "noise declared, but not present",
    "noise present, but not declared",
    "half of the step size",
    "truth of the next node",
    "one record in the truth, gradients of eight",
)  # tests/adversarial/test_misrecording.py has many more


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_GATE)
def test_no_gate_passes_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    case = CASES[name]
    here = Path(__file__).parent
    folders = [str(here), str(here.parent)]
    (tmp_path / "train.py").write_text(PROGRAM.format(folders=folders, name=name))
    (tmp_path / "leakaudit.toml").write_text(GATE)
    monkeypatch.chdir(tmp_path)
    ended = call("check", "-q")
    if case.refused:
        assert is_refusal(ended, case.refused), ended
        return
    # Code 1 is too little noise.
    assert ended.code == (1 if "not present" in name else INCONCLUSIVE), ended
    assert re.search(f"{case.says}|bit for bit", ended.out), ended


# --- the page -----------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "refusals.md"
START = "<!-- table: written by python tests/adversarial/test_twenty_recordings.py -->\n"
END = "<!-- end -->"
IMPORTED = {0: "honest here", 2: "refused", INCONCLUSIVE: "inconclusive"}
# The import proves the server's step itself, says so, and derives nothing from the declared one.
CORRECTED = ("half of the server's step size",)


def table() -> str:
    """The cases as a table of the documentation."""
    lines = [
        "| recording | Recorder | import | with truth | without truth |",
        "|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        recorder = "refused" if case.refused else "-"
        seen = "inconclusive"
        if case.says in (NO_VICTIM, "expected alpha > 0"):
            seen = "refused"
        blind = seen if case.blind else "not compared"
        imported = "corrected" if name in CORRECTED else IMPORTED[case.imported]
        if name == UNDECLARED:
            imported = "not declared"
        lines.append(f"| {name} | {recorder} | {imported} | {seen} | {blind} |")
    for name in FILES:
        blind = "not compared" if name == "the truth of another run" else "refused"
        lines.append(f"| {name} | - | - | refused | {blind} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Put the current table into the page."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{table()}\n{END}{after}"


def test_the_page_lists_these_cases() -> None:
    page = PAGE.read_text()
    assert page == with_table(page)
    assert len(CASES) + len(FILES) >= 20


# --- files --------------------------------------------------------------------------------------


def truncated(path: Path) -> None:
    """Cut the file in its middle, as a full disk does."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def tampered(path: Path) -> None:
    """Change the exponent of one number of a message."""
    content = bytearray(path.read_bytes())
    message = dpsgd().messages[10].value.numpy().tobytes()
    content[content.index(message) + 3] ^= 64
    path.write_bytes(content)


def with_index(path: Path, index: bytes) -> None:
    """Replace the index of the archive."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", index)
        archive.writestr("archive/version", "3\n")


def executable(path: Path) -> None:
    """Call os.system when the file is read by an unsafe reader."""
    with_index(path, b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00touch OWNED\x85R.")


def bomb(path: Path) -> None:
    """Pack gigabytes of zeros into a small file."""
    zeros = bytes(64 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for k in range(3):
            archive.writestr(f"archive/data/{k}", zeros)
        archive.writestr("archive/data.pkl", zeros)


def names_that_are_paths(path: Path) -> None:
    """Name a member of the archive after a file outside it."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../escaped", b"numbers")


def huge_text(path: Path) -> None:
    """Announce a text of 2 GiB."""
    with_index(path, b"\x80\x02X" + struct.pack("<I", 2**31 - 1) + b"abc.")


def truth_of_another_run(path: Path) -> None:
    """Put the truth of another recording beside the trace."""
    other = path.with_name("other.pt")
    dpsgd(seed=1).record(other)
    shutil.move(other.with_name("other.truth.pt"), path.with_name("t.truth.pt"))
    path.with_name("t.truth.pt.sha256").unlink(missing_ok=True)


FILES: dict[str, Callable[[Path], None]] = {
    "a truncated file": truncated,
    "a changed number": tampered,
    "a pickle that executes code": executable,
    "a zip bomb": bomb,
    "names in the archive that are paths": names_that_are_paths,
    "a text of 2 GiB in the index": huge_text,
    "the truth of another run": truth_of_another_run,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("hashed", [True, False])
def test_a_hostile_file_is_refused_by_every_verb(
    name: str, hashed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "t.pt"
    dpsgd().record(path)
    FILES[name](path)
    if not hashed:
        path.with_name("t.pt.sha256").unlink()
    verbs = {
        "attack": ("attack", path, "-o", tmp_path / "out", "--attack", "labels", "-q"),
        "lint": ("trace", "lint", path, "--truth", tmp_path / "t.truth.pt", "--strict", "-q"),
        "bound": ("bound", path, "--node", 0, "--as", "eavesdropper", "-q"),
        "explain": ("explain", path, "-q"),
    }
    for verb, words in verbs.items():
        if name == "the truth of another run" and verb == "explain":
            continue  # reads no truth
        ended = call(*words)
        # Without its sha256, a changed number is one that the program may have sent.
        allowed = (1, INCONCLUSIVE) if name == "a changed number" and not hashed else (2,)
        assert ended.code in allowed, (verb, ended)
        if ended.code == 2:
            assert len(ended.err.strip().splitlines()) == 1
    assert not (tmp_path / "OWNED").exists()
    assert not (tmp_path.parent.parent / "escaped").exists()


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
