"""Example records of `leakaudit.reporting.results`, one per kind, for tests of rendering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leakaudit.core import registry
from leakaudit.reporting.findings.wording import summary
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.cell_files import CellConfig, CellFinding, CellResult
from leakaudit.reporting.results.model import (
    Finding,
    LeakSummary,
    RoundSpan,
    Scores,
    Undetermined,
    certificate,
    fitted,
)

Record = dict[str, Any]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> ]]> &amp; {{7*7}} %0A::error::x \x1b[31m\x00\u202e\nnext http://e.org"
FORMATS = ("html", "junit", "sarif", "github")


def column(*values: float | bool | None) -> Record:
    known = sorted(float(v) for v in values if v is not None)
    some = (
        {"min": known[0], "median": known[len(known) // 2], "mean": sum(known) / len(known)}
        if known
        else {}
    )
    return {"per_image": list(values), **{"min": None, "median": None, "mean": None, **some}}


def finding(
    node: int,
    psnr: float | None = 40.0,
    exact: bool = False,
    certificate: str = "APPROXIMATE",
    **changes: Any,
) -> Record:
    lost = psnr is None
    scores = {
        "psnr": column(psnr),
        "ssim": column(None if lost else 0.9),
        "exact": column(exact),
        "identified": column(not lost),
    }
    rest = {
        "chance": 0.01,
        "labels_found": 1.0,
        "not_recovered": int(lost),
        "matched": [None if lost else 0],
    }
    span = {"first": 0, "last": 2, "count": 3}
    leak = {
        "kind": "difference",
        "rounds": span,
        "rows": 2,
        "formula": f"g[{node},0] = z[{node}>3,1]",
        "scope": "",
        "std": 1e-8,
    }
    words = {
        "certificate": {"name": certificate, "sentence": "fits the leak"},
        "seconds": 0.5,
        "note": f"a note on {node}",
    }
    base = {
        "node": node,
        "adversary": "node:3",
        "attack": "analytic",
        "leak": leak,
        "batch": 1,
        "labels": [node + 70],
        "residual": 1e-9,
    }
    return {
        **base,
        **words,
        "scores": {**scores, **rest},
        "images": {"file": "reconstructions.npz", "x": "x0", "y": None},
        **changes,
    }


def summarised(
    found: Iterable[Record],
    undetermined: Iterable[Record],
    not_tried: Sequence[str],
    complete: bool = True,
    shape: Sequence[int] = (1, 25, 25),
) -> str:
    findings = [fitted(one, Finding) for one in found]
    closed = [fitted(one, Undetermined) for one in undetermined]
    return summary(findings, closed, not_tried, shape, complete)


def record(
    *found: Record, undetermined: tuple[Record, ...] = (), name: str = "pdmm", nodes: int = 8
) -> Record:
    links = [[k, k + 1] for k in range(nodes - 1)]
    sizes = {
        "nodes": nodes,
        "edges": len(links),
        "links": links,
        "rounds": 5,
        "shape": [1, 25, 25],
        "classes": 2,
    }
    source = {
        "versions": {"python": "3.11", "torch": "2.13.0", "leakaudit": "0.1.0", "lpips": None},
        "shimmed": False,
        "seeds": {"attack": 0},
        "device": "cpu",
        "threads": 1,
        "trace": {"id": name, "sha256": "0" * 64},
        "truth": {"sha256": None, "path": "/home/someone/trace.truth.pt"},
        "settings": {
            "adversary": "node:3",
            "window": None,
            "knows": "all",
            "nodes": [0, 1],
            "truth": "/home/someone/trace.truth.pt",
        },
        "digest": "1" * 64,
        "command": f"leakaudit attack /home/someone/{name}.pt",
        "started": "2030-01-31T12:00:00+00:00",
        "seconds": 1.5,
        "platform": "Linux",
    }
    said = summarised(found, undetermined, ["dlg"])
    out = {
        "schema": record_file.SCHEMA,
        "version": record_file.VERSION,
        "kind": "attack",
        "complete": True,
        "summary": said,
        "trace": {"protocol": name, "data": name, "model": name, **sizes},
        "findings": list(found),
        "undetermined": list(undetermined),
        "not_tried": ["dlg"],
        "metrics": {"psnr": "dB"},
        "attacks": {
            "analytic": {
                "paper": "Phong et al. 2018",
                "reads": "gradients",
                "cost": "one pass",
                "exact": True,
            }
        },
        "picture": "reconstructions.png",
        "originals": "originals.npz",
        "files": dict.fromkeys(
            ("reconstructions.npz", "reconstructions.png", "originals.npz"), "2" * 64
        ),
        "provenance": source,
    }
    record_file.validate(out)
    return out


def verdict(word: str, epsilon: float | str, hits: int) -> Record:
    promise = {"name": "the exact view", "epsilon": epsilon, "delta": 1e-5, "mu": None}
    figures = {"hits": hits, "trials": 20, "kappa": 0.2, "ceiling": 0.6}
    said = {
        "says": "measured",
        "power": "would detect 5",
        "p": 0.5,
        "level": 0.01,
        "needs": 40,
        "figures": figures,
    }
    return {
        "epsilon": epsilon,
        "adversary": "node:3",
        "node": 1,
        "test": "identification",
        "attack": "auto",
        "promise": promise,
        "verdict": word,
        **said,
    }


def in_a_cell(scores: Scores) -> CellFinding:
    """Return a reconstruction in the form of a sweep's cell file."""
    return CellFinding(
        node=0,
        adversary="eavesdropper",
        attack="analytic",
        leak=LeakSummary(
            kind="gradient", rounds=RoundSpan(first=0, last=0, count=1), rows=1, formula="", std=0
        ),
        certificate=certificate("FAILED", ""),
        certified=0,
        batch=None,
        scores=scores,
        residual=None,
        note="",
    )


def cell_result(
    *findings: CellFinding,
    records: int = 1,
    refused: Mapping[int, Scores] | None = None,
    nodes: tuple[int, ...] = (),
) -> CellResult:
    """Return the result of a cell of a sweep; `refused` are the scores of nodes by node."""
    config = CellConfig(
        scenario={},
        adversary="eavesdropper",
        attack="analytic",
        settings={},
        epsilon=None,
        nodes=nodes,
        gradients=8,
        device="cpu",
    )
    missed = refused or {}
    return CellResult(
        config=config,
        status="done",
        says="",
        constants={},
        records=records,
        findings=findings,
        refused=tuple(missed.values()),
        reasons={str(node): "no gradient" for node in missed},
    )


def audit(count: int = 6) -> Record:
    cells: list[Record] = [{"cell": {"epsilon": e, "seed": 0}} for e in ("inf", 10.0)]
    found = [finding(k % 8, 10.0 + k % 50, **cells[k % 2]) for k in range(count)]
    view = {
        "node": 1,
        "adversary": "node:3",
        "mu": 1.5,
        "epsilon": 6.0,
        "exact": "inf",
        "verdict": "UNCLAIMED",
        "why": "no claim",
        "claim": None,
    }
    three = {"images": 3.0, "best": 30.0, "median": 20.0, "mean": 21.0}
    curves = [
        {"epsilon": e, "adversary": "node:3", "attack": "auto", "psnr": three}
        for e in ("inf", 10.0)
    ]
    verdicts = [verdict("REFUTED", 10.0, 20), verdict("INCONCLUSIVE", "inf", 3)]
    grid: list[Record] = [{"epsilon": e, "constants": {}, "views": [view]} for e in ("inf", 10.0)]
    tested = {
        "alpha": 0.01,
        "delta": 1e-5,
        "grid": grid,
        "curves": curves,
        "verdicts": verdicts,
        "figure": None,
    }
    out = {
        **record(*found),
        "kind": "audit",
        "summary": "REFUTED: identification; 1 REFUTED.",
        "audit": tested,
    }
    record_file.validate(out)
    return out


def gate() -> Record:
    name = "main/node:3/exact"
    cell = {
        "name": name,
        "check": "main",
        "adversary": "node:3",
        "attack": "exact",
        "says": "node:3 reconstructs the input of node 5",
    }
    samples = {
        "measures": {"psnr": {"samples": [30.0], "mean": 30.0, "worst": 30.0}},
        "reasons": {"6": "node 6 sent nothing"},
    }
    best = {
        "node": 5,
        "seed": 0,
        "psnr": 30.0,
        "relative_error": 0.1,
        "exact": False,
        "labels": 1.0,
        "kind": "gradient",
        "formula": "g[5,0]",
    }
    found = {
        "nodes": [
            {**best, "first": 0, "last": 2},
            {**best, "node": 1, "psnr": None, "relative_error": None, "first": 1, "last": 1},
        ]
    }
    rest = {
        "digest": "3" * 64,
        "seeds": [0],
        "epsilon": None,
        "worst": {**best, "first": 0, "last": 2},
        "seconds": 1.0,
        **found,
    }

    def rule(kind: str, status: str, says: str) -> Record:
        return {
            "kind": kind,
            "cell": name,
            "measure": "psnr",
            "status": status,
            "says": says,
            "value": 30.0,
            "limit": 25.0,
            "p": None,
            "accepted": "",
        }

    rules = [
        rule("budget", "OVER", "30 dB of node 5"),
        rule("baseline", "INCONCLUSIVE", "too few"),
        rule("positive", "OK", "recovered"),
    ]
    noise = {"cell": "main/lint", "measure": "P20", **dict.fromkeys(("value", "limit"))}
    rules += [
        rule("negative", "UNTESTED", "nothing to score"),
        {**rule("lint", "CONTRADICTED", "too little: 6 -> 7 has none"), **noise},
    ]
    tested = {
        "code": 1,
        "verdict": "leak",
        "strict": False,
        "cells": [{**cell, **samples, **rest}],
        "rules": rules,
    }
    tested |= {
        "networks": {"main": record()["trace"]},
        "pitfalls": {"P20": {"name": "insufficient noise", "fix": "draw it"}},
    }
    shown = {"kind": "check", "summary": "Leak: node 5. 3 rules.", "location": "/ci/leakaudit.toml"}
    out = {
        **record(),
        **shown,
        "gate": {**tested, "acceptances": {"labels": "expired"}, "stale": []},
    }
    record_file.validate(out)
    return out


def gate_of_two_checks() -> Record:
    of = gate()
    other = {
        **of["gate"]["cells"][0],
        "name": "wide/node:0/exact",
        "check": "wide",
        "adversary": "node:0",
        "reasons": {},
    }
    of["gate"]["cells"].append(other)
    of["gate"]["networks"]["wide"] = record(nodes=12)["trace"]
    record_file.validate(of)
    return of


CLOSED = {"node": 7, "adversary": "node:3", "reason": "node 7 needs two rounds, heard one"}
EXACT = finding(1, 200.0, True, "EXACT")
RECORDS = {
    "attack": record(finding(0), EXACT, undetermined=(CLOSED,)),
    "not scored": record(
        finding(0, scores=None, certificate="EXACT"), finding(2, scores=None, certificate="FAILED")
    ),
    "nothing": record(undetermined=(CLOSED,)),
    "failed": record(
        finding(0, None, certificate="FAILED", residual=None, labels=None, batch=None)
    ),
    "audit": audit(),
    "gate": gate(),
    "hostile": record(
        finding(0, attack=HOSTILE, adversary=HOSTILE, note=HOSTILE),
        undetermined=({**CLOSED, "reason": HOSTILE, "adversary": HOSTILE},),
        name=HOSTILE,
    ),
}


def rendered(format: str, of: Record) -> str:
    page: str = registry.get("reports", format)(of)
    return page
