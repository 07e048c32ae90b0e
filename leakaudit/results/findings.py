"""The record of an attack run as plain values: one finding a reconstruction, then the whole of results.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from leakaudit import registry
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.results.record_file import SCHEMA, VERSION
from leakaudit.results.wording import summary
from leakaudit.scoring.scoring import Score, definitions
from leakaudit.trace import Json, Trace

DRAWN = 5000  # edges at most that are kept for the drawing


def finding(
    leak: GradientLeak,
    found: Reconstruction,
    score: Score,
    images: Mapping[str, str | None] | None = None,
) -> dict[str, Json]:
    """One entry of ``findings``; images: where the reconstruction was saved, from `results.save_reconstructions`."""
    return {
        "node": found.node,
        "adversary": leak.adversary,
        "attack": found.attack,
        "leak": {
            "kind": leak.kind,
            "rounds": {
                "first": int(leak.rounds.min()),
                "last": int(leak.rounds.max()),
                "count": len(leak.rounds),
            },
            "rows": len(leak.combination),
            "formula": leak.formula,
            "scope": leak.scope,
            "std": finite(float(leak.std.max())),
        },
        "certificate": {"name": found.certificate.name, "sentence": found.certificate.value},
        "certified": sum(c is Certificate.EXACT for c in found.certificates),
        "batch": leak.batch if leak.batch is not None else len(found.x),
        "labels": None if found.y is None else [finite(v) for v in found.y.tolist()],
        "scores": score.to_json(),
        "residual": finite(found.residual),
        "seconds": found.seconds,
        "note": "; ".join(filter(None, (found.note, score.note))),
        "images": None if images is None else dict(images),
    }


def undetermined(node: int, adversary: str, reason: str) -> dict[str, Json]:
    """One entry of ``undetermined``: a node of which this adversary learns no gradient, and why."""
    return {"node": node, "adversary": adversary, "reason": reason}


def build(
    trace: Trace,
    findings: Sequence[Mapping[str, Json]],
    undetermined: Sequence[Mapping[str, Json]],
    not_tried: Iterable[str],
    provenance: Mapping[str, Json],
    *,
    lpips: str,
    picture: str | None = None,
    originals: str | None = None,
    complete: bool = True,
) -> dict[str, Json]:
    """Everything that results.json holds.

    not_tried: what the run left out, in words. lpips: the sentence of `lpips_weights.find`. picture: file name of the
    grid beside results.json, originals: of the true images. complete: False where the run was interrupted.
    """
    left_out = list(not_tried)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "kind": "attack",
        "complete": complete,
        "summary": summary(findings, undetermined, left_out, complete),
        "trace": about(trace),
        "findings": [dict(f) for f in findings],
        "undetermined": [dict(u) for u in undetermined],
        "not_tried": left_out,
        "metrics": definitions(trace.task, lpips),
        "attacks": {
            name: described(name)
            for name in dict.fromkeys(f["attack"] for f in findings)
            if name != "none"
        },
        "picture": picture,
        "originals": originals,
        "provenance": dict(provenance),
    }


def about(trace: Trace) -> dict[str, Json]:
    """What was trained, and the network to draw."""
    return {
        "protocol": trace.protocol,
        "nodes": trace.graph.nodes,
        "edges": len(trace.graph.edges),
        "links": [list(edge) for edge in trace.graph.edges[:DRAWN]],
        "rounds": trace.rounds,
        "data": trace.task.data,
        "model": trace.task.model,
        "shape": list(trace.task.shape),
        "classes": trace.task.classes,
    }


def described(attack: str) -> dict[str, Json]:
    """What a reader should know of an attack: its source, what it reads, what it costs."""
    kind = registry.get("attacks", attack)
    return {"paper": kind.paper, "reads": kind.reads, "cost": kind.cost, "exact": kind.exact}


def finite(value: float) -> float | None:
    """The number, or None where JSON cannot hold it."""
    return value if math.isfinite(value) else None
