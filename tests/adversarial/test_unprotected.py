"""Ways to take the protection away from a program while it still declares all of it: none passes
the gate.

Each way changes examples/ci-repo/train.py. What leaks is in the comments; all of it was tried by
attacks that know the way (the protection is gone, not only unusual).
"""

from __future__ import annotations

import shutil
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.gate import files, judge, linted, rules
from leakaudit.judging.gate.fidelity import Fidelity
from leakaudit.judging.gate.rule import UNSOUND
from leakaudit.judging.gate.runs import Runner, SeedResults
from leakaudit.reporting.results.model import RuleStatus
from leakaudit.tasks.task import Task

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ci-repo"

NOISE = "return model + SIGMA * rng.normal(size=model.shape)"
START = "    rng = np.random.default_rng(seed)\n"
SENT = "sent = [privatise(model, rng) for model in stepped]"
FILE = "def privatise"
E = "rng.normal(size=model.shape)"
Edit = tuple[str, str]


@dataclass(frozen=True)
class Way:
    """Edits of the program, and with how many seeds they show without attacks."""

    edits: tuple[Edit, ...]
    seeds: int = 2
    process: bool = False  # only a second process shows it


def noise(expression: str, seeds: int = 2) -> Way:
    """Draw other noise, in units of the declared one."""
    return Way(((NOISE, f"return model + SIGMA * ({expression})"),), seeds)


def sent(statement: str, seeds: int = 2, *more: Edit) -> Way:
    """Send something else in every round, given all models that should be sent with noise."""
    return Way(((SENT, statement), *more), seeds)


KEPT = (START, START + "    base = SIGMA * rng.normal(size=(4, 130))\n")
EVERY_SECOND = (
    "base = SIGMA * rng.normal(size=(4, 130)) if t % 2 else {}; "
    "sent = [m + e for m, e in zip(stepped, base)]"
)
OFF = (
    "e = SIGMA * rng.normal(size=(4, 130)); g = {}; "
    "sent = [m + a - (a @ b) / max(b @ b, 1e-99) * b for m, a, b in zip(stepped, e, g)]"
)
HIDE = """def hide(v, x):
    b = v.astype(np.float32).view(np.uint32).copy()
    pixels = np.round(x * 255).astype(np.uint32){how}
    b[{at}] = (b[{at}] & ~np.uint32(255 << {shift})) | (pixels << {shift})
    return b.view(np.float32).astype(float)


def privatise"""
HIDE_PAIRS = """def hide(v, x, half):
    b = v.astype(np.float32).view(np.uint32).copy()
    bits = np.unpackbits(np.round(x * 255).astype(np.uint8)).reshape(2, 128, 2).astype(np.uint32)
    b[:128] = (b[:128] & ~np.uint32(3)) | (2 * bits[half, :, 0] + bits[half, :, 1])
    return b.view(np.float32).astype(float)


def privatise"""
SMUGGLED = f"{SENT}\n            sent = [hide(v, x[mine[k]]) for k, v in enumerate(sent)]"


def hidden(at: str = ":64", shift: int = 0, how: str = "", seeds: int = 2) -> Way:
    """Put the pixels into some bits of some numbers of every message."""
    return sent(SMUGGLED, seeds, (FILE, HIDE.format(at=at, shift=shift, how=how)))


WAYS: dict[str, Way] = {
    # Too little noise, somewhere.
    "no noise": noise("0"),
    "half of it": noise(f".5 * {E}"),
    "93 %": noise(f".93 * {E}", 4),
    "97 %": noise(f".97 * {E}", 16),
    "times the step": noise(f"STEP * {E}"),
    "half of the rounds": sent("sent = [privatise(m, rng) if t <= 4 else m for m in stepped]"),
    "7 of 8 rounds": sent("sent = [privatise(m, rng) if t <= 7 else m for m in stepped]"),
    "3 of 4 nodes": sent("sent = [privatise(m, rng) if k else m for k, m in enumerate(stepped)]"),
    "one class only": noise(f"np.where(np.arange(130) < 64, 0, {E})"),
    "not in one coordinate": noise(f"np.where(np.arange(130) == 77, 0, {E})"),
    "clipped afterwards": sent(
        "sent = [w[k] + (lambda s: s * min(1, STEP * CLIP / np.linalg.norm(s)))"
        "(m - w[k] + SIGMA * rng.normal(size=130)) for k, m in enumerate(stepped)]"
    ),
    # Gradients that are longer than what the noise hides.
    "clipped at 1.5": Way((("min(1.0, CLIP /", "min(1.0, 1.5 * CLIP /"),), 64),
    "three times the gradients of one node": sent(
        "stepped[2] = w[2] - STEP * 3 * gradient(w[2], x[mine[2]], y[mine[2]]); "
        "sent = [privatise(m, rng) for m in stepped]",
        16,
    ),
    "not clipped": Way(((" * min(1.0, CLIP / np.linalg.norm(g))", ""),)),
    # Noise of another distribution: its values identify the gradient.
    "on a lattice of sigma / 2.5": noise(f"np.round({E} * 2.5) / 2.5"),
    "on a lattice of sigma / 8": noise(f"np.round({E} * 8) / 8"),
    "on a lattice of sigma / 64": noise(f"np.round({E} * 64) / 64"),
    "on a lattice with an offset per message": noise(
        f"np.round({E} * 64) / 64 + rng.random() / 64"
    ),
    "drawn in bfloat16": noise(
        f"__import__('torch').tensor({E}).bfloat16().double().numpy()"
    ),
    "drawn in float16": noise(f"{E}.astype(np.float16).astype(float)"),
    "signs": noise("rng.choice([-1., 1.], size=model.shape)"),
    "uniform": noise("3 ** .5 * rng.uniform(-1, 1, size=model.shape)"),
    "Laplace": noise("2 ** -.5 * rng.laplace(size=model.shape)"),
    "of an exact norm": noise(f"(lambda e: e * np.sqrt(e.size) / np.linalg.norm(e))({E})"),
    "with an exact mean": noise(f"(lambda e: (e - e.mean()) * (130 / 129) ** .5)({E})"),
    # One draw in several messages.
    "rolled": sent("sent = [m + np.roll(e, 7 * t) for m, e in zip(stepped, base)]", 2, KEPT),
    "rolled over the nodes": sent(
        "base = SIGMA * rng.normal(size=130); "
        "sent = [m + np.roll(base, 11 * k) for k, m in enumerate(stepped)]"
    ),
    "of two rounds": sent(EVERY_SECOND.format("base")),
    "negated": sent(EVERY_SECOND.format("-base")),
    "reversed": sent(EVERY_SECOND.format("base[:, ::-1]")),
    "with public signs": sent(
        EVERY_SECOND.format("base * np.random.default_rng(t).choice([-1., 1.], size=(4, 130))")
    ),
    "shuffled": sent(
        "sent = [m + np.random.default_rng([t, k]).permutation(base[k]) "
        "for k, m in enumerate(stepped)]",
        2,
        KEPT,
    ),
    "shuffled, with public signs": sent(
        EVERY_SECOND.format(
            "(base * np.random.default_rng(t).choice([-1., 1.], size=(4, 130)))"
            "[:, np.random.default_rng(t).permutation(130)]"
        )
    ),
    "rotated": sent(
        EVERY_SECOND.format(
            "base @ np.linalg.qr(np.random.default_rng(t).normal(size=(130, 130)))[0]"
        )
    ),
    "sums to zero over the nodes": sent(
        "e = SIGMA * rng.normal(size=(4, 130)); "
        "sent = [m + a for m, a in zip(stepped, (e - e.mean(0)) * (4 / 3) ** .5)]"
    ),
    # Noise that others can draw again.
    "from a table of 4096": Way(
        (
            ("SIGMA = 0.25", "TABLE = np.random.default_rng(0).normal(size=4096)\nSIGMA = 0.25"),
            (NOISE, "a = rng.integers(4096 - 130); return model + SIGMA * TABLE[a:a + 130]"),
        )
    ),
    "from a table of a million": Way(
        (
            ("SIGMA = 0.25", "TABLE = np.random.default_rng(0).normal(size=10**6)\nSIGMA = 0.25"),
            (NOISE, "a = rng.integers(10**6 - 130); return model + SIGMA * TABLE[a:a + 130]"),
        ),
        16,
    ),
    "seeded by 9 bits": noise(
        "np.random.default_rng(rng.integers(2**9)).normal(size=model.shape)"
    ),
    "seeded by the message": noise(
        "np.random.default_rng(__import__('zlib').crc32(np.round(model, 1).tobytes()))"
        ".normal(size=model.shape)"
    ),
    "seeded by the round": sent(
        "sent = [m + SIGMA * np.random.default_rng([t, k]).normal(size=130) "
        "for k, m in enumerate(stepped)]"
    ),
    "of a generator that starts with the process": Way(
        (
            ("SIGMA = 0.25", "OWN = np.random.default_rng(0)\nSIGMA = 0.25"),
            (NOISE, NOISE.replace("rng", "OWN")),
        ),
        process=True,
    ),
    # Noise that leaves out the direction of the gradient, which then travels without noise.
    "off the step": sent(OFF.format("[m - w[k] for k, m in enumerate(stepped)]")),
    "off the step in one of eight rounds": sent(
        OFF.format("[(t == 8) * (m - w[k]) for k, m in enumerate(stepped)]"), 4
    ),
    "off the mean of all steps": sent(
        OFF.format("[np.mean([m - w[k] for k, m in enumerate(stepped)], 0)] * 4")
    ),
    # The record itself, beside the noise.
    "pixels in the last bits": hidden(),
    "pixels in the middle bits": hidden(shift=8),
    "pixels in the last two bits, a half in every round": sent(
        f"{SENT}\n            sent = [hide(v, x[mine[k]], t % 2) for k, v in enumerate(sent)]",
        16,
        (FILE, HIDE_PAIRS),
    ),
    "pixels in the last bits, at random places": hidden(
        "np.random.default_rng(int(abs(v[0]) * 1e9)).permutation(130)[:64]", seeds=4
    ),
    "pixels in the last bits, inverted in every second round": hidden(
        how=" ^ np.uint32(255 * (v[100] > 0))"
    ),
    "pixels in an undeclared public vector": Way(
        (('public={"w0": w[0]},', 'public={"w0": w[0], "hint": x[mine].ravel()},'),)
    ),
    "pixels in the provenance": Way(
        (
            (
                "rounds=ROUNDS,",
                "rounds=ROUNDS, options=la.RecorderOptions("
                'provenance={"note": np.round(x[mine] * 255).tolist()}),',
            ),
        )
    ),
    "pixels in the provenance, as letters": Way(
        (
            (
                "rounds=ROUNDS,",
                'rounds=ROUNDS, options=la.RecorderOptions(provenance={"note": '
                '"".join(chr(97 + int(v * 25)) for v in x[mine].ravel())}),',
            ),
        )
    ),
    "noise without tails": Way(
        ((NOISE, NOISE.replace(E, f"np.clip({E}, -2.8, 2.8)")),)
    ),
    "pixels in the name of the data": Way(
        (('data="lfw_subset, 8x8"', 'data=" ".join(str(int(v)) for v in (x[mine[0]] * 255))'),)
    ),
    "pixels in the id": Way(
        (
            (
                "rounds=ROUNDS,",
                "rounds=ROUNDS, options=la.RecorderOptions("
                "id=(np.round(x[mine] * 255)).astype(np.uint8).tobytes().hex()),",
            ),
        )
    ),
}  # fmt: skip


def changed(way: Way) -> str:
    """Return the program with the edits of a way."""
    text = (EXAMPLE / "train.py").read_text()
    for old, new in way.edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def recorder(text: str, folder: Path) -> Callable[[int], SeedResults]:
    """Return what runs a program with a seed and loads its recording."""
    module = types.ModuleType("train")
    exec(compile(text, "train.py", "exec"), vars(module))

    def record(seed: int) -> SeedResults:
        path = folder / f"{seed}.pt"
        module.train(seed, path)
        trace, truth = la.load(path), la.load_truth(folder / f"{seed}.truth.pt")
        return SeedResults(seed, trace, truth, Task.build(trace.task))

    return record


def judged(text: str, seeds: range, folder: Path) -> list[str]:
    """Return what the gate says of recordings of a program, without attacks and other processes."""
    record = recorder(text, folder)
    (check,) = files.configured(EXAMPLE).checks
    shown = Fidelity(check)
    found: list[str] = []
    for seed in seeds:
        made = record(seed)
        shown.look(made)
        if seed == seeds[0]:
            found += [rule.says for rule in linted.rules(check, made) if rule.status in UNSOUND]
    return found + [rule.says for rule in shown.rules() if rule.status in UNSOUND]


def gate(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """Run the whole gate of a program, as CI does."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("leakaudit-out", "*.pyc"))
    (folder / "train.py").write_text(text)
    monkeypatch.chdir(folder)
    return main(["check", "--strict", "-q", *options])


FAST = [name for name, way in WAYS.items() if way.seeds <= 4 and not way.process]


def test_there_are_forty_ways() -> None:
    assert len(WAYS) >= 40


@pytest.mark.parametrize("name", FAST)
def test_lost_protection_is_told(name: str, tmp_path: Path) -> None:
    way = WAYS[name]
    assert judged(changed(way), range(way.seeds), tmp_path)


def test_an_honest_program_is_not_suspected(tmp_path: Path, fresh_seed: int) -> None:
    first = fresh_seed % 2**31
    assert judged(changed(Way(())), range(first, first + 8), tmp_path) == []


class Slow:
    """A runner of an honest program whose further seeds take time, or fail."""

    def __init__(self, folder: Path, fails: bool = False) -> None:
        self.record = recorder(changed(Way(())), folder)
        self.fails = fails

    def __call__(self, seed: int) -> SeedResults:
        if self.fails:
            raise LeakauditError(f"seed {seed} is not supported")
        return self.record(seed)


@pytest.mark.parametrize(("fails", "seconds"), [(False, 0.0), (True, 600.0)])
def test_a_gate_that_cannot_tell_for_lack_of_recordings_does_not_pass(
    fails: bool, seconds: float, tmp_path: Path
) -> None:
    """Two recordings of the example leave half of its gradients possible; 64 would not."""
    (check,) = files.configured(EXAMPLE).checks
    shown = Fidelity(check)
    slow = Slow(tmp_path, fails)
    for seed in (1, 2):
        shown.look(slow.record(seed))
    judge._more(shown, cast(Runner, slow), range(1, 3), seconds)
    found = shown.rules()
    assert [rule.status for rule in found] == [RuleStatus.TOO_FEW_SEEDS]
    assert found[0].says.startswith("2 recordings cannot tell")
    assert rules.code(found, complete=True, strict=False) == 3
    slow.fails = False
    judge._more(shown, cast(Runner, slow), range(1, 3), 600.0)
    found = shown.rules()
    assert 2 < len(shown.seeds) <= 64
    assert rules.code(found, complete=True, strict=True) == 0, found


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_lost_protection_fails_the_gate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gate(changed(WAYS[name]), tmp_path / "repo", monkeypatch) in (1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_an_honest_gate_passes_with_any_seeds(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_seed: int
) -> None:
    first = (fresh_seed + 1000 * number) % 2**31
    assert gate(changed(Way(())), tmp_path / "repo", monkeypatch, "--seed", str(first)) == 0
