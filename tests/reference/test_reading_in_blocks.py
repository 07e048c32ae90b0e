"""A large trace is read in blocks of columns, with the results of reading it at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leakaudit as la
from leakaudit.core import adversary, mapping
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols.declared import protocol_of
from leakaudit.theory.relations.declare import outline
from leakaudit.traces import trace_file
from leakaudit.views import messages
from leakaudit.views.conformance import conformance, equations
from leakaudit.views.extraction import hearing

SCENARIO = la.Scenario(
    victim="pdmm", nodes=5, graph="ring", rounds=6, data="gaussians", model="logistic"
)


def recorded(tmp_path: Path) -> la.Trace:
    """Return a small trace, mapped from a file."""
    la.record(SCENARIO, tmp_path / "trace.pt")
    return la.load(tmp_path / "trace.pt")


@pytest.mark.parametrize("victim", ["pdmm", "dpsgd", "dpnorm", "fedavg"])
def test_leaks_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    trace, _ = la.record(replace(SCENARIO, victim=victim))
    at_once = la.leaks(trace)
    explained = la.explain(trace, "eavesdropper")
    module = sys.modules[
        "leakaudit.theory.relations.estimate"
    ]  # the package has a function of this name
    monkeypatch.setattr(module, "BLOCK", 7)
    monkeypatch.setattr(adversary, "CHUNK", 5)
    in_blocks = la.leaks(trace)
    assert len(in_blocks) == len(at_once) > 0
    for one, other in zip(at_once, in_blocks, strict=True):
        assert torch.equal(one.value, other.value)
        assert torch.equal(one.std, other.std)
        assert (one.theta is None) == (other.theta is None)
        if one.theta is not None and other.theta is not None:
            assert torch.equal(one.theta, other.theta)
    for known, found in zip(explained, la.explain(trace, "eavesdropper"), strict=True):
        sizes = [row.size for row in found.rows]
        assert sizes == pytest.approx([row.size for row in known.rows], rel=1e-12)
        assert [replace(row, size=0) for row in known.rows] == [
            replace(row, size=0) for row in found.rows
        ]


def test_released_pages_keep_their_values(tmp_path: Path) -> None:
    """A page that was changed in memory is never dropped."""
    numbers = torch.arange(1 << 20, dtype=torch.float32)
    torch.save({"a": numbers}, tmp_path / "a.pt")
    from leakaudit._util.untrusted import safe_reader

    read = safe_reader.read(tmp_path / "a.pt")["a"]
    read[5] = -1
    mapping.release(read)
    assert float(read[5]) == -1
    assert torch.equal(read[6:], numbers[6:])


def test_memory_in_tensors_is_never_released() -> None:
    numbers = torch.arange(1 << 20)
    mapping.release(numbers)
    assert torch.equal(numbers, torch.arange(1 << 20))


def test_gradients_that_fit() -> None:
    trace, _ = la.record(SCENARIO)
    held, working = (each * trace.layout.size for each in (hearing.HELD, hearing.WORKING))
    three = working + 3 * held
    assert hearing.affordable(trace, None, working + 100 * held) is None
    assert hearing.affordable(trace, None, three) == 3
    assert hearing.affordable(trace, 2, three) == 2
    with pytest.raises(LeakauditError, match=f"need {three + held} bytes, but --max-memory allows"):
        hearing.affordable(trace, 4, three)
    with pytest.raises(LeakauditError, match="record fewer columns"):
        hearing.affordable(trace, None, working + held - 1)


def test_one_declaration_per_run() -> None:
    trace, _ = la.record(SCENARIO)
    first = protocol_of(trace).whole
    assert protocol_of(trace).whole is first
    other = replace(trace, params={**trace.params, "rho": 0.3})
    with outline():  # the complete one contains the messages, too
        assert protocol_of(trace).whole is first
        assert not protocol_of(other).whole.relations
    assert protocol_of(other).whole.relations != first.relations
    assert protocol_of(trace, 3).whole.round == 3


def _nan(value: torch.Tensor) -> None:
    value[0] = float("nan")


def _wrong(value: torch.Tensor) -> None:
    value += 1


@pytest.mark.parametrize(("change", "about"), [(None, ""), (_nan, "values"), (_wrong, "messages")])
def test_large_recordings_are_examined_in_part(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[torch.Tensor], None] | None,
    about: str,
) -> None:
    """A NaN and a wrong message are found in what is examined, and nothing is found otherwise."""
    trace = recorded(tmp_path)
    large = trace.payload_bytes // 2
    monkeypatch.setattr(messages, "LARGE", large)
    monkeypatch.setattr(equations, "LARGE", large)
    monkeypatch.setattr(equations, "WIDTH", 16)
    monkeypatch.setattr(equations, "RUN", 4)
    if change is not None:
        rows = trace.messages[0].payload
        change(rows[len(rows) // 4 * 2])
    found = conformance.examine(trace).deviations
    assert [one.about for one in found] == ([about] if about else [])
    assert trace_file.load(tmp_path / "trace.pt").rounds == 6
