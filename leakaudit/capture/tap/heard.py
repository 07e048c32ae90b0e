"""The messages of a log whose description is not known: what travels, and what should be gradients in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.tap import fit
from leakaudit.capture.tap.reading import RankLog
from leakaudit.capture.tap.streams import FLOATS, POINT, Message, assemble
from leakaudit.errors import LeakauditError
from leakaudit.protocols.mixing import metropolis
from leakaudit.tasks.task import Task
from leakaudit.trace import Graph

ALIKE, OPPOSED = 0.9, -0.9  # cosines
SOME = 6  # messages or gradients that are looked at


@dataclass(frozen=True)
class Heard:
    """Messages by wire, as vectors. graph: of ranks that exchange messages one to one."""

    streams: Mapping[tuple[int, int | None, str], list[Message]]
    slices: list[slice]
    sizes: tuple[int, ...]
    graph: Graph

    def value(self, message: Message) -> Tensor:
        """Return a message's vector (d,)."""
        return message.value(self.slices)

    @property
    def own(self) -> dict[int, list[Message]]:
        """What each rank sends to whom it sends first."""
        out: dict[int, list[Message]] = {}
        for (src, _, op), stream in sorted(
            self.streams.items(), key=lambda kv: (kv[0][0], -1 if kv[0][1] is None else kv[0][1])
        ):
            if op not in ("recv", "model"):
                out.setdefault(src, stream)
        return out


def listen(logs: Sequence[RankLog], task: Task | None) -> Heard:
    """Put the log's tensors together into messages of the model's size, or of the size that repeats."""
    if task is not None:
        slices = task.layout.slices
        sizes = (*(s.stop - s.start for s in slices.values()), task.layout.size)
    else:
        sizes = _sizes(logs)
    streams = {k: [m for m in v if m.kept] for k, v in assemble(logs, sizes).messages.items()}
    streams = {k: v for k, v in streams.items() if v}
    if not streams:
        raise LeakauditError(
            f"no message of {sizes[-1]} numbers, the model's size, is in the log; name the model that was trained"
        )
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    nodes = 1 + max(max(src, -1 if dst is None else dst) for src, dst, _ in streams)
    edges = {
        (min(i, j), max(i, j)) for i, j, op in streams if op in POINT and j is not None and i != j
    }
    return Heard(
        streams,
        [slice(a, b) for a, b in pairwise(starts)],
        sizes,
        Graph(nodes, tuple(sorted(edges))),
    )


def _sizes(logs: Sequence[RankLog]) -> tuple[int, ...]:
    """Return the lengths of the tensors that repeat on most wires, and their sum."""
    wires: dict[Any, list[int]] = defaultdict(list)
    whole = Counter[tuple[int, ...]]()
    for log in logs:
        for e in log.events:
            if sizes := [n for n in e.notes.get("sizes", ()) if type(n) is int]:
                whole[*sizes, sum(sizes)] += 2 * sum(sizes)
            elif e.dtype in FLOATS and e.shape and "parameters" not in e.notes:
                wires[e.rank, e.peer, e.op].append(e.numel)
    for numels in wires.values():
        period = next(
            (
                p
                for p in range(1, min(len(numels), 500) + 1)
                if all(a == b for a, b in zip(numels, numels[p:], strict=False))
            ),
            0,
        )
        if period:
            whole[*numels[:period], sum(numels[:period])] += sum(numels)
    if not whole:
        raise LeakauditError(
            "the log holds no tensors of floating point, so there is nothing to describe"
        )
    return whole.most_common(1)[0][0]


def payload(heard: Heard) -> tuple[str, str, str]:
    """Return what travels, how sure that is, and why."""
    own = list(heard.own.values())
    pairs = [
        (a[k], b[k])
        for a in own
        for b in own
        if a is not b
        for k in range(min(len(a), len(b), SOME))
    ]
    across = _median([_cosine(heard.value(a), heard.value(b)) for a, b in pairs[:60]], 0.0)
    steps = [(heard.value(a), heard.value(b)) for s in own for a, b in islice(pairwise(s), SOME)]
    move = _median([float((b - a).norm() / a.norm().clamp_min(1e-30)) for a, b in steps], 1.0)
    swaps = _swaps(heard) if across < ALIKE else []
    if swaps and (opposed := _median(swaps, 0.0)) < OPPOSED:
        return (
            "duals",
            "sure",
            f"what two nodes add to each other's last message is opposite (cosine {opposed:.3f}), as in PDMM and ECL",
        )
    facts = f"messages of different ranks have cosine {across:.3f}, and move by {move:.2g} of their length a round"
    if across > ALIKE and move < 0.5:
        return (
            "weights",
            "sure" if across > 0.99 else "likely",
            f"{facts}: models that stay together",
        )
    if across < ALIKE:
        return "gradients", "likely", f"{facts}: each rank's own direction"
    return "weights", "unsure", facts


def _swaps(heard: Heard) -> list[float]:
    """Cosines of z_ji(t+1) - z_ij(t) and z_ij(t+1) - z_ji(t), which PDMM makes 2 rho w_i and -2 rho w_j."""
    out = []
    for i, j in heard.graph.edges:
        there, back = (heard.streams.get((a, b, "send"), []) for a, b in ((i, j), (j, i)))
        for t in range(min(len(there), len(back), SOME) - 1):
            one, two = (
                heard.value(there[t + 1]) - heard.value(back[t]),
                heard.value(back[t + 1]) - heard.value(there[t]),
            )
            out.append(_cosine(one, two))
    return out


def same_start(heard: Heard) -> bool:
    """Whether all ranks begin with the same message."""
    firsts = [heard.value(s[0]) for s in heard.own.values() if s[0].index == 0]
    return len(firsts) > 1 and all(torch.equal(firsts[0], v) for v in firsts)


def samples(heard: Heard, payload: str) -> list[fit.Sample]:
    """Return would-be gradients of the first rounds of several ranks."""
    out: list[fit.Sample] = []
    if payload == "gradients":
        models = next((s for (_, _, op), s in heard.streams.items() if op == "model"), [])
        for sent in heard.own.values():
            for m in sent[:2]:
                near = [w for w in models if w.index == m.index]
                out.append(
                    fit.Sample(heard.value(m), {"model": heard.value(near[0])} if near else {})
                )
        return out[:SOME]
    if payload != "weights" or not heard.graph.edges:
        return out
    weights, own = metropolis(heard.graph), heard.own
    for i, neighbours in enumerate(heard.graph.neighbours):
        around = [i, *neighbours]
        for t in range(min(2, min((len(own.get(j, [])) for j in around), default=0) - 1)):
            if any(own[j][t].index != t for j in around):
                continue
            now = {j: heard.value(own[j][t]).double() for j in around}
            mean = torch.stack([float(weights[i, j]) * now[j] for j in around]).sum(0)
            out.append(
                fit.Sample(
                    mean - heard.value(own[i][t + 1]).double(), {"combine": now[i], "adapt": mean}
                )
            )
    return out[: 2 * SOME]


def agreed(samples: Sequence[fit.Sample], sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the widths that most samples show; parameters that were sent one by one say them."""
    some, apart = (
        [s for s in samples[:SOME] if bool(s.value.any())],
        sizes[:-1] if len(sizes) > 2 else (),
    )
    if apart and not some:
        return list(islice(fit.widths(sizes[-1], apart), 1))
    votes = Counter(widths for s in some for widths in islice(fit.layers(s.value, apart), 3))
    return [widths for widths, n in votes.most_common(2) if 2 * n >= len(some)]


def _median(values: Sequence[float], none: float) -> float:
    return float(np.median(values)) if values else none


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))
