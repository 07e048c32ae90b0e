"""From cells to points: what all seeds of one place on the axes gave together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from leakaudit.sweeping.plan import SweepPlan
from leakaudit.trace import Json

METRICS = ("psnr", "ssim", "relative_error")
BEST = {"psnr": max, "ssim": max, "relative_error": min}


def columns(
    findings: Sequence[Mapping[str, Json]],
    records: int,
    psnr: float,
    refused: Sequence[Mapping[str, Json]] = (),
) -> dict[str, Json]:
    """Return what a cell's reconstructions have of each metric, and how many of its records are recovered and bit-identical.

    Recovered: at `psnr` dB or more; where data are no images, at that ratio of signal to noise, -20 log10 of the relative error. A
    record that was missed is not recovered, and its value of a metric is that of the mean of all other records.

    Args:
        findings: One a node from which something came back.
        records: Of all nodes that were attacked.
        psnr: From which a record counts as recovered, in dB.
        refused: The scores (`scoring.nothing`) of the nodes of which nothing came back; all their records are missed.
    """
    scores = [f["scores"] for f in findings if f["scores"] is not None]
    every = [*scores, *refused]
    found = {m: _column(scores, m) for m in METRICS}
    out: dict[str, Json] = {m: found[m] + _missed(every, m) for m in METRICS}
    counts = {
        "attacked": len(findings) + len(refused),
        "refused": len(refused),
        "returned": sum(map(_returned, scores)),
    }
    images = any("psnr" in s for s in scores)
    near = (
        [v >= psnr for v in found["psnr"]]
        if images
        else [v <= 10 ** (-psnr / 20) for v in found["relative_error"]]
    )
    labels = [float(s["labels_found"]) for s in scores if s.get("labels_found") is not None]
    right = {
        "recovered": sum(near),
        "exact": sum(_column(scores, "exact")),
        "certified": sum(int(f["certified"]) for f in findings),
    }
    return {**counts, "records": records, **right, **out, "labels": labels}


def _returned(scores: Mapping[str, Json]) -> int:
    """How many records something came back for."""
    return sum(row is not None for row in scores["matched"])


def _column(scores: Iterable[Mapping[str, Json]], metric: str) -> list[Json]:
    return [v for s in scores if metric in s for v in s[metric]["per_image"] if v is not None]


def _missed(scores: Iterable[Mapping[str, Json]], metric: str) -> list[Json]:
    return [v for s in scores if metric in s for v in s[metric].get("missed", ())]


def points(cells: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Return one entry a place on the axes, attack and adversary, over its seeds, in the order of the cells.

    Nodes that were refused count, in every mean, as nodes of which nothing came back: their records as the mean of all other records,
    their labels as not found. There is no mean if nothing came back of any node.
    """
    groups: dict[str, list[Mapping[str, Json]]] = {}
    for cell in cells:
        groups.setdefault(json.dumps([cell["adversary"], cell["attack"], cell["at"]]), []).append(
            cell
        )
    return [_point(group) for group in groups.values()]


def _point(group: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    first, held = group[0], [c["columns"] for c in group]
    counts = {
        name: sum(int(c[name]) for c in held)
        for name in ("records", "recovered", "exact", "certified")
    }
    tried = {name: sum(int(c[name]) for c in held) for name in ("attacked", "refused")}
    labels = [v for c in held for v in c["labels"]]
    if labels:
        labels += [0.0] * tried["refused"]
    stats = {}
    if any(c["returned"] for c in held):
        stats = {
            m: stat for m in METRICS if (stat := _statistics([v for c in held for v in c[m]], m))
        }
    where = {
        "attack": first["attack"],
        "adversary": first["adversary"],
        "at": first["at"],
        "cells": len(group),
        **tried,
    }
    return {**where, **counts, "labels_found": fmean(labels) if labels else None, **stats}


def _statistics(values: Sequence[float], metric: str) -> dict[str, float] | None:
    return (
        {"best": BEST[metric](values), "median": median(values), "mean": fmean(values)}
        if values
        else None
    )


def across(plan: SweepPlan) -> str | None:
    """Return the axis of the figure: the plan's choice, else epsilon, else the first of several numbers, else the first of several."""
    if plan.figure is not None:
        return plan.figure
    several = {name: values for name, values in plan.axes.items() if len(values) > 1}
    numbers = [
        n
        for n, values in several.items()
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    ]
    return "epsilon" if "epsilon" in several else next(iter([*numbers, *several]), None)


def words(value: Json) -> str:
    """Write a value of an axis in few letters, but two values never alike."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    short = f"{value:.4g}".replace("e+0", "e").replace("e+", "e")
    return short if float(short) == value else str(value)
