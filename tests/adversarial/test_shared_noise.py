"""Draws of noise that are not independent, or not of the declared size somewhere: found in whatever way they are shared, and no others.

The noise is drawn here with numpy; the honest cases have random shapes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from leakaudit.views.conformance import draws
from leakaudit.views.conformance.draws import Draws
from leakaudit.views.conformance.substitute import NormalisedNoise

Floats = NDArray[np.float64]
SIGNAL, WRONG = 0.4, 0.005  # norm of the gradients, and part of it by which honest ones differ


@dataclass(frozen=True)
class Shape:
    """How much noise there is; the last part of a message is a layer of its own."""

    runs: int = 6
    nodes: int = 4
    rounds: int = 8
    width: int = 130
    last: int = 10

    @property
    def cube(self) -> tuple[int, int, int, int]:
        return self.runs, self.nodes, self.rounds, self.width


def drawn(
    shape: Shape, noise: Floats, random: np.random.Generator, again: Floats | None = None
) -> Draws:
    """Give noise (runs, nodes, rounds, width) to the tests, with gradients that are not quite the truth's."""
    layers = {
        "weight": slice(0, shape.width - shape.last),
        "bias": slice(shape.width - shape.last, shape.width),
    }
    found = Draws()
    for k, run in enumerate([*noise, *([] if again is None else [again])]):
        signal = random.normal(size=run.shape)
        signal *= SIGNAL / np.linalg.norm(signal, axis=2, keepdims=True)
        of_nodes = [
            _noise(node, run[node] + WRONG * signal[node], signal[node])
            for node in range(shape.nodes)
        ]
        rounding = dict.fromkeys(range(shape.nodes), 1e-7)
        found.add(of_nodes, layers, rounding, min(k, shape.runs - 1), int(k == shape.runs))
    return found


def _noise(node: int, rest: Floats, signal: Floats) -> NormalisedNoise:
    rounds = tuple(range(1, len(rest) + 1))
    labels = tuple(f"x[{node},{t}]" for t in rounds)
    return NormalisedNoise(
        node=node,
        labels=labels,
        rounds=rounds,
        rest=rest,
        signal=signal,
        better=signal,
        gaussian=True,
        std=np.ones(len(rest)),
        rounded=np.full(len(rest), 1e-7),
    )


def told(found: Draws) -> list[tuple[str, str]]:
    return [(one.about, one.says) for one in (*found.shared(), *found.wrong())]


@pytest.fixture
def random(fresh_seed: int) -> np.random.Generator:
    return np.random.default_rng(fresh_seed)


def test_independent_noise_raises_no_alarm(
    random: np.random.Generator, fresh_cases: Callable[[int], int]
) -> None:
    for _ in range(fresh_cases(40)):
        runs, nodes, rounds = (int(k) for k in random.integers(1, 8, 3))
        width = int(random.integers(2, 300))
        shape = Shape(runs, nodes, rounds, width, last=int(random.integers(1, width)))
        noise = random.normal(size=shape.cube)
        assert not told(drawn(shape, noise, random, again=noise[-1]))


def test_the_rate_of_false_alarms_is_the_level(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a level of 5 %, each of nine families finds something in 5 % of honest checks at most."""
    monkeypatch.setattr(draws, "LEVEL", 0.05)
    shape = Shape(runs=2, rounds=4, width=40, last=5)
    trials = 200
    alarms = sum(
        bool(told(drawn(shape, random.normal(size=shape.cube), random))) for _ in range(trials)
    )
    assert alarms < trials * (9 * 0.05 + 4 * 0.03)  # 4 standard deviations of the share
    assert alarms > 0


def earlier_of_another(z: Floats, random: np.random.Generator) -> Floats:
    z[:, 2, 1:] = z[:, 1, :-1]
    return z


def once(z: Floats, random: np.random.Generator) -> Floats:
    z[4, 3, 5] = -z[1, 0, 2]
    return z


def half_of_it(z: Floats, random: np.random.Generator) -> Floats:
    z[:, 1] = (z[:, 1] + z[:, 3]) / 2**0.5
    return z


def zero_sum(z: Floats, random: np.random.Generator) -> Floats:
    nodes = z.shape[1]
    out: Floats = (z - z.mean(1, keepdims=True)) * (nodes / (nodes - 1)) ** 0.5
    return out


def a_common_part(z: Floats, random: np.random.Generator) -> Floats:
    return np.asarray(0.9**0.5 * z + 0.1**0.5 * random.normal(size=(*z.shape[:1], 1, *z.shape[2:])))


def rows(z: Floats, random: np.random.Generator) -> Floats:
    z[..., 64:128] = z[..., :64]
    return z


def smooth(z: Floats, random: np.random.Generator) -> Floats:
    out: Floats = 0.95 * z + (1 - 0.95**2) ** 0.5 * np.roll(z, 1, axis=-1)
    return out


def mirrored(z: Floats, random: np.random.Generator) -> Floats:
    z[..., 70:130] = z[..., 59::-1]
    return z


def few_dimensions(z: Floats, random: np.random.Generator) -> Floats:
    turn, _ = np.linalg.qr(random.normal(size=(130, 130)))
    return (
        np.asarray((z @ turn[:, :110]) @ turn[:, :110].T * (130 / 110) ** 0.5)
        if z.shape[-1] == 130
        else z
    )


def a_quiet_coordinate(z: Floats, random: np.random.Generator) -> Floats:
    z[..., 77] *= 0.4
    return z


def a_coordinate_of_a_node(z: Floats, random: np.random.Generator) -> Floats:
    z[:, 2, :, 5] *= 0.01
    return z


def a_quiet_message(z: Floats, random: np.random.Generator) -> Floats:
    z[3, 2, 6] *= 0.5
    return z


def a_quiet_node(z: Floats, random: np.random.Generator) -> Floats:
    z[:, 0] *= 0.9
    return z


def a_layer_of_a_message(z: Floats, random: np.random.Generator) -> Floats:
    z[3, 2, 6, -10:] *= 0.05
    return z


def louder_and_quieter(z: Floats, random: np.random.Generator) -> Floats:
    z[:, :, ::2] *= 0.5
    z[:, :, 1::2] *= 1.75**0.5
    return z


TWICE, QUIET, ALONG, RUNS = {draws.TWICE}, {draws.QUIET}, {draws.ALONG}, {draws.RUNS}
CHANGES = [
    (earlier_of_another, TWICE),
    (once, RUNS),
    (half_of_it, TWICE),
    (zero_sum, TWICE),
    (a_common_part, TWICE),
    (rows, ALONG),
    (smooth, ALONG),
    (mirrored, ALONG),
    (few_dimensions, TWICE),
    (a_quiet_coordinate, QUIET),
    (a_coordinate_of_a_node, QUIET),
    (a_quiet_message, QUIET),
    (a_quiet_node, QUIET),
    (a_layer_of_a_message, QUIET),
    (louder_and_quieter, QUIET),
]


@pytest.mark.parametrize(
    ("change", "kinds"), CHANGES, ids=[change.__name__ for change, _ in CHANGES]
)
def test_noise_that_is_shared_or_missing_is_told(
    change: Callable[[Floats, np.random.Generator], Floats],
    kinds: set[str],
    random: np.random.Generator,
) -> None:
    shape = Shape(runs=12)
    noise = change(random.normal(size=shape.cube), random)
    assert {kind for kind, _ in told(drawn(shape, noise, random))} & kinds


def test_a_process_that_starts_anew_repeats_an_honest_seed_only(
    random: np.random.Generator,
) -> None:
    shape = Shape(runs=3)
    noise = random.normal(size=shape.cube)
    assert not told(drawn(shape, noise, random, again=noise[-1]))
    ((kind, says),) = told(drawn(shape, noise, random, again=noise[0]))
    assert kind == draws.PROCESS
    assert "with seed 2 equals that of" in says


def test_a_wide_message_is_searched_for_repetitions(random: np.random.Generator) -> None:
    shape = Shape(runs=1, nodes=2, rounds=2, width=200_000, last=10)
    noise = random.normal(size=shape.cube)
    assert not told(drawn(shape, noise, random))
    noise[..., :199_990] = np.tile(noise[..., :2000], 100)[..., :199_990]
    ((kind, says),) = told(drawn(shape, noise, random))
    assert kind == draws.ALONG
    assert "000 in weight" in says  # 2000, or a multiple of it


def test_noise_on_a_grid_is_no_alarm(random: np.random.Generator) -> None:
    """Messages in float16 put noise on a grid, where it is 0 and equal by chance."""
    shape = Shape()
    grid = 2.0**-9
    noise = np.round(random.normal(size=shape.cube) / grid) * grid
    layers = {"weight": slice(0, 128), "bias": slice(128, 130)}
    found = Draws()
    for k, run in enumerate(noise):
        of_nodes = [
            _noise(node, run[node], np.zeros_like(run[node])) for node in range(shape.nodes)
        ]
        found.add(of_nodes, layers, dict.fromkeys(range(shape.nodes), grid), k)
    assert not told(found)


def test_ctrl_c_leaves_draws_that_can_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the spectrum of a draw is computed."""
    random = np.random.default_rng(0)
    rfft = np.fft.rfft

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return rfft(*arguments)

    found = Draws()
    noise = _noise(0, random.normal(size=(4, 60)), np.zeros((4, 60)))
    monkeypatch.setattr(np.fft, "rfft", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found.add([noise], {}, {0: 1e-7}, 0)
    assert not told(found)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
