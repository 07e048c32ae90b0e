"""From cells to points: what all seeds of one place on the axes gave together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from leakaudit.sweeping.plan import SweepPlan
from leakaudit.trace import Json

METRICS = ("psnr", "ssim", "relative_error")
COUNTS = ("attacked", "refused", "returned", "records", "recovered", "exact", "certified")
BEST = {"psnr": max, "ssim": max, "relative_error": min}


def columns(
    findings: Sequence[Mapping[str, Json]],
    records: int,
    psnr: float,
    refused: Sequence[Mapping[str, Json]] = (),
) -> dict[str, Json]:
    """Return what a cell's reconstructions reach in each metric, and how many are good enough.

    Recovered: at `psnr` dB or more; if data are not images, at that ratio of signal to noise, -20
        log10 of
    the relative error. A record that was missed is not recovered, and its value of a metric is that
    of the mean of all other records.

    Args:
        findings: One per node from which something came back.
        records: Number of records of all nodes that were attacked.
        psnr: PSNR in dB from which a record counts as recovered.
        refused: The scores (`scoring.nothing`) of the nodes of which nothing came back; all their
            records are missed.
    """
    scores = [f["scores"] for f in findings if f["scores"] is not None]
    labels = []
    for score in scores:
        if score.get("labels_found") is not None:
            labels.append(float(score["labels_found"]))
    values = {}
    for metric in METRICS:
        values[metric] = _column(scores, metric) + _missed([*scores, *refused], metric)
    return {
        "attacked": len(findings) + len(refused),
        "refused": len(refused),
        "returned": sum(map(_returned, scores)),
        "records": records,
        "recovered": _recovered(scores, psnr),
        "exact": sum(_column(scores, "exact")),
        "certified": sum(int(f["certified"]) for f in findings),
        **values,
        "labels": labels,
    }


def _recovered(scores: Sequence[Mapping[str, Json]], psnr: float) -> int:
    """Return how many records are recovered, at a PSNR or a ratio of signal to noise in dB."""
    if any("psnr" in s for s in scores):
        return sum(v >= psnr for v in _column(scores, "psnr"))
    # -20 log10(error) >= psnr
    return sum(v <= 10 ** (-psnr / 20) for v in _column(scores, "relative_error"))


def _returned(scores: Mapping[str, Json]) -> int:
    """Return for how many records something came back."""
    return sum(row is not None for row in scores["matched"])


def _column(scores: Iterable[Mapping[str, Json]], metric: str) -> list[Json]:
    """Return the values of one metric for all records that were found."""
    values = []
    for score in scores:
        if metric in score:
            values += [v for v in score[metric]["per_image"] if v is not None]
    return values


def _missed(scores: Iterable[Mapping[str, Json]], metric: str) -> list[Json]:
    """Return the values of one metric for all records that were missed."""
    values = []
    for score in scores:
        if metric in score:
            values += score[metric].get("missed", ())
    return values


def points(cells: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Return one entry per place on the axes, attack and adversary, over its seeds.

    Nodes that were refused count, in every mean, as nodes of which nothing came back: their records
    as the mean of all other records, their labels as not found. There is no mean if nothing came
    back of any node.

    Args:
        cells: What results.json holds of each cell with a result.

    Returns:
        Entries in the order of the cells.
    """
    groups: dict[str, list[Mapping[str, Json]]] = {}
    for cell in cells:
        place = json.dumps([cell["adversary"], cell["attack"], cell["at"]])
        groups.setdefault(place, []).append(cell)
    return list(map(_point, groups.values()))


def _point(group: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Return the entry of the cells at one place."""
    first = group[0]
    total: Counter[str] = Counter()
    labels: list[float] = []
    values: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for cell in group:
        held = cell["columns"]
        for name in COUNTS:
            total[name] += int(held[name])
        for metric in METRICS:
            values[metric] += held[metric]
        labels += held["labels"]
    if labels:
        labels += [0.0] * total["refused"]
    point = {
        "attack": first["attack"],
        "adversary": first["adversary"],
        "at": first["at"],
        "cells": len(group),
        "attacked": total["attacked"],
        "refused": total["refused"],
        "records": total["records"],
        "recovered": total["recovered"],
        "exact": total["exact"],
        "certified": total["certified"],
        "labels_found": fmean(labels) if labels else None,
    }
    if total["returned"]:
        for metric in METRICS:
            if values[metric]:
                point[metric] = _statistics(values[metric], metric)
    return point


def _statistics(values: Sequence[float], metric: str) -> dict[str, float]:
    return {"best": BEST[metric](values), "median": median(values), "mean": fmean(values)}


def across(plan: SweepPlan) -> str | None:
    """Return the axis of the figure.

    It is the plan's choice, else epsilon, else the first axis with several numbers, else the first
    with several values; None if nothing varies.

    Args:
        plan: The sweep.
    """
    if plan.figure is not None:
        return plan.figure
    if len(plan.epsilon) > 1:
        return "epsilon"
    several = []
    for name, values in plan.axes.items():
        if len(values) > 1:
            if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
                return name
            several.append(name)
    return several[0] if several else None


def words(value: Json) -> str:
    """Write a value of an axis in few letters, but two values never alike.

    Args:
        value: A number, a word, true or false.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, int | float):
        return str(value)
    short = f"{value:.4g}".replace("e+0", "e").replace("e+", "e")
    return short if float(short) == value else str(value)
