"""What a trace does not say is never priced as if it were small: its clip, its sensitivity, and the round in which it was killed."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, dict-item"

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.protocols import recording
from leakaudit.protocols.declared import clipped, played
from leakaudit.protocols.scenario import Scenario
from leakaudit.traces import gaps, trace_file
from leakaudit.traces.recorder import Recorder
from leakaudit.views.accounting.view_bound import view_bounds

ALPHA, SIGMA = 0.1, 0.5
SPEC = la.TaskSpec("logistic", shape=(6,), classes=2)
PARAMS = {
    **registry.values(registry.get("victims", "dpsgd")()),
    **{"alpha": ALPHA, "sigma": SIGMA, "order": "adapt"},
}
RING = la.Graph(3, ((0, 1), (0, 2), (1, 2)))


class Killed(Exception):
    """Ends a run in its middle."""


def loop(recorder: la.Recorder, rounds: int, stop: int, ends: bool) -> list[set[int]]:
    """Send the models of D-PSGD one message at a time, and die before message `stop`.

    ends: whether the loop says when a round is over. The values do not matter: only which messages were sent.

    Returns:
        For each node the rounds in which it sent anything.
    """
    size, random = la.Task.build(SPEC).layout.size, torch.Generator().manual_seed(stop)
    sent: list[set[int]] = [set() for _ in range(RING.nodes)]
    count = 0
    for t in range(1, rounds + 1):
        for i in range(RING.nodes):
            value = torch.randn(size, generator=random)
            for j in RING.neighbours[i]:
                if count == stop:
                    return sent
                recorder.send(t, i, j, "w", value)
                sent[i].add(t)
                count += 1
        if ends:
            recorder.end_round(t)
    return sent


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("how", ["exception", "kill"])
def test_a_run_killed_at_any_message_is_priced_for_all_that_it_sent(
    tmp_path: Path, how: str, ends: bool, announced: bool
) -> None:
    """A killed run without rounds= was priced one round short: each message of a node costs (alpha / sigma)^2 of mu^2."""
    rounds, messages = 3, 3 * 2 * len(RING.edges)
    for stop in range(1, messages):
        path = tmp_path / f"{stop}.pt"
        about = {"rounds": rounds} if announced else {}
        recorder = la.Recorder(
            la.Storage(path, hash=False),
            protocol="dpsgd",
            task=SPEC,
            graph=RING,
            params=PARAMS,
            **about,
        )
        if how == "kill":
            sent = loop(recorder, rounds, stop, ends)
            trace = trace_file.load(path)
        else:
            try:
                with recorder:
                    sent = loop(recorder, rounds, stop, ends)
                    raise Killed
            except Killed:
                trace = recorder.trace
        assert not trace.complete
        protocol = played(trace)
        assert protocol.rounds >= max(map(max, filter(None, sent)))
        for node, found in enumerate(view_bounds(protocol, la.Adversary(), range(RING.nodes))):
            paid = math.sqrt(len(sent[node])) * ALPHA / SIGMA
            assert found.mu is not None
            assert found.mu >= paid * (1 - 1e-9), (stop, node)


def test_the_round_that_was_begun_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = la.Recorder(
        la.Storage(tmp_path / "cut.pt", hash=False),
        protocol="dpsgd",
        task=SPEC,
        graph=RING,
        params=PARAMS,
    )
    loop(recorder, 3, 11, True)
    assert main(["bound", str(tmp_path / "cut.pt"), "--node", "0", "-q"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rounds: 2, the last one incomplete" in said


VICTIMS: dict[str, dict[str, object]] = {
    **{
        "dpsgd": {"sigma": 0.5},
        "dpnorm": {"sigma": 0.1},
        "recal": {"sigma": 0.5},
        "rwadmm": {},
        "tracking": {"noise": "message"},
    },
    **{"muffliato": {"sigma": 0.5}, "nids": {}, "fedavg": {}, "fedsgd": {}, "extra": {}},
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_victim_killed_after_any_round_is_priced_for_the_next_one(
    victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what `record` writes, which plans no rounds; a schedule shows that there was no round after its last."""
    rounds = 3
    known = registered(victim, VICTIMS[victim])
    scenario = Scenario(
        victim,
        nodes=4,
        graph="ring",
        rounds=rounds,
        data="gaussians",
        samples=2,
        model="logistic",
        set=known,
    )
    end = Recorder.end_round
    for last in range(rounds + 1):

        def killed(self: Recorder, round: int, last: int = last) -> None:
            if round == last + 1:
                raise Killed
            end(self, round)
            if round == rounds:
                raise Killed

        monkeypatch.setattr(Recorder, "end_round", killed)
        held: list[Recorder] = []
        monkeypatch.setattr(recording, "opened", keep(recording.opened, held))
        with pytest.raises(Killed):
            recording.record(recording.plan(scenario), None)
        monkeypatch.undo()
        trace = held[0].trace
        assert (trace.rounds, trace.complete) == (last, False)
        protocol = played(trace)
        assert protocol.rounds in ((last + 1,) if last < rounds else (rounds, rounds + 1))
        assert protocol.begun == (protocol.rounds > last)
        next(iter(view_bounds(protocol, la.Adversary(), [0])))
        assert protocol.whole.round == protocol.rounds
        assert gaps.lost(trace) == ""


def registered(victim: str, constants: dict[str, object]) -> dict[str, object]:
    """Leave out what a victim does not have."""
    from leakaudit.core import registry

    names = registry.parameters(registry.get("victims", victim))
    return {k: v for k, v in constants.items() if k in names}


def keep(opened: Callable[..., Recorder], held: list[Recorder]) -> Callable[..., Recorder]:
    """Return `opened`, which also shows the recorder that it made."""

    def made(*args: object) -> Recorder:
        held.append(opened(*args))
        return held[-1]

    return made


# --- sensitivity --------------------------------------------------------------------------------------------------------


def written(folder: Path, **params: object) -> Path:
    path = folder / "trace.pt"
    with la.Recorder(
        la.Storage(path, hash=False),
        protocol="dpsgd",
        task=SPEC,
        graph=RING,
        params={**PARAMS, **params},
        rounds=4,
    ) as recorder:
        loop(recorder, 4, 1000, True)
    return path


@pytest.mark.parametrize(
    ("params", "sensitivity"),
    [
        ({"clip": 2.0, "samples": 4}, 1.0),
        ({"clip": 0.5, "samples": 4}, 0.25),
        ({"clip": 2.0, "samples": 1}, 4.0),
        ({"clip": 3.0}, 6.0),  # the records of a node are not declared: one at least
        ({"clip": 2.0, "samples": 8, "batch": 2}, 2.0),
        ({"clip": 2.0, "samples": 5, "batch": 2}, 4.0),  # the last mini-batch has one record
        ({"clip": 2.0, "samples": 2, "batch": 8}, 2.0),
    ],
)
def test_a_declared_clip_is_priced(
    tmp_path: Path, params: dict[str, float], sensitivity: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sensitivity 1 was printed for every clip before.

    The messages are random numbers, and may be too large for gradients of this norm: code 3.
    """
    path = str(written(tmp_path, **params))
    assert main(["bound", path, "--as", "eavesdropper", "-f", "json", "-q"]) in (0, 3)
    for one in json.loads(capsys.readouterr().out):
        assert one["sensitivity"] == pytest.approx(sensitivity)
        assert one["sensitivity_from"].startswith(
            f"clip = {params['clip']:g}, one record replaced by another"
        )
        if not params.get("batch"):
            assert one["mu"] == pytest.approx(math.sqrt(4) * ALPHA * sensitivity / SIGMA)
    assert main(["bound", path, "--as", "eavesdropper", "-q"]) in (0, 3)
    assert f"sensitivity {sensitivity:g}: clip = {params['clip']:g}" in " ".join(
        capsys.readouterr().out.split()
    )
    words = ["bound", path, "--as", "eavesdropper", "--sensitivity", "7", "-f", "json", "-q"]
    assert main(words) in (0, 3)
    assert {
        (one["sensitivity"], one["sensitivity_from"]) for one in json.loads(capsys.readouterr().out)
    } == {(7.0, "as specified")}


def test_without_a_clip_there_is_no_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(written(tmp_path))
    assert main(["bound", path, "--as", "eavesdropper", "-f", "json", "-q"]) == 0
    for one in json.loads(capsys.readouterr().out):
        assert one["sensitivity"] is one["mu"] is one["epsilon"] is one["node_epsilon"] is None
        assert 0 < one["per_unit_of_sensitivity"]["node_mu"] < math.inf
        assert one["weakest"].startswith("sensitivity: unknown")
    assert main(["bound", path, "--as", "eavesdropper", "-q"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " S " in said
    assert "the sensitivity is unknown" in said


def test_no_sensitivity_is_stated_for_a_view_without_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is observed of `single`, so its mu is 0 whatever the sensitivity is."""
    path = str(tmp_path / "single.pt")
    assert main(["record", "single", "-o", path, "--nodes", "3", "--rounds", "1", "-q"]) == 0
    capsys.readouterr()
    assert main(["bound", path, "-f", "json", "-q"]) == 0
    for one in json.loads(capsys.readouterr().out):
        assert (one["mu"], one["sensitivity"]) == (0.0, None)
    assert main(["bound", path, "-q"]) == 0
    assert "sensitivity 1" not in capsys.readouterr().out
    assert main(["bound", path, "--sensitivity", "1", "-q"]) == 0
    assert "sensitivity 1: as specified" in capsys.readouterr().out


def test_a_claim_that_assumes_less_than_the_clip_allows_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table II assumes gradients of norm 1; a clip of 2 lets a record move them by twice as much."""
    lines = [
        'victim = "dpsgd"',
        "nodes = 4",
        'graph = "ring"',
        "rounds = 4",
        'data = "gaussians"',
        'model = "logistic"',
        "samples = 4",
    ]
    own = ["[set]", 'noise = "step"', 'order = "adapt"', "epsilon = 1.0", "horizon = 4"]
    for clip, words in (
        (1.0, "as the claim assumes"),
        (2.0, "as the claim assumes; the run allows 1, since clip = 2"),
    ):
        path = tmp_path / f"{clip:g}.toml"
        path.write_text("\n".join([*lines, *own, f"clip = {clip}"]))
        assert (
            main(["bound", str(path), "--as", "eavesdropper", "--node", "0", "-f", "json", "-q"])
            == 0
        )
        (one,) = json.loads(capsys.readouterr().out)
        assert one["sensitivity"] == pytest.approx(0.5)
        assert one["sensitivity_from"].startswith(words)
        assert ("allows" in one["sensitivity_from"]) == (clip > 1)


def test_no_record_moves_a_clipped_mean_by_more_and_some_reach_it(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """Mini-batches of random gradients, one of them replaced; opposite gradients beyond the clip reach the figure."""
    random = torch.Generator().manual_seed(fresh_seed)
    for case in range(fresh_cases(60)):
        samples, batch = 1 + case % 6, case % 4
        clip = float(torch.rand((), generator=random)) * 3 + 0.1
        allowed = clipped(clip, samples, batch).sensitivity
        worst = 0.0
        for part in torch.arange(samples).split(batch or samples):
            g = torch.randn(len(part), 5, generator=random) * 4
            opposite = g.clone()
            opposite[0] = -g[0] * 100
            g[0] *= 100
            means = [
                (r * (clip / r.norm(dim=1, keepdim=True)).clamp(max=1.0)).mean(0)
                for r in (g, opposite)
            ]
            worst = max(worst, float((means[0] - means[1]).norm()))
        assert worst == pytest.approx(allowed, rel=1e-5)
