"""results.json, the record that every report is rendered from: its schema, and reading and writing it.

The dictionaries below are the schema, in the words of `schema`. NaN and infinity are never written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from leakaudit._util.files import replacing
from leakaudit._util.schema import ANY, Pattern, departure
from leakaudit.errors import LeakauditError
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.trace import Json
from leakaudit.traces._storage import sidecar
from leakaudit.verdict import Verdict

SCHEMA, VERSION = "leakaudit.results", 2
# Version 1 did not ask for `files`, so its pictures may be those of another run; it is still shown, with `UNTIED`.
UNTIED = "the record holds no digests of the files beside it, so its pictures may be those of another run"
ID_ONLY = "only its id ties the truth to the trace, and other runs may have the same id"
_NUMBER = (float, None)
_EPSILON = (float, frozenset({"inf"}), None)  # None: as configured
_FILE = Pattern("a file name without folder", r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_SHA256 = Pattern("a sha256 in hexadecimal", r"[0-9a-f]{64}")
_TIME = Pattern(
    "a time in UTC like 2030-01-31T12:00:00+00:00", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00"
)
_NAMES = frozenset(c.name for c in Certificate)


def _column(entry: Any) -> dict[str, Any]:
    return {
        "per_image": [entry],
        "missed?": [float],
        "min": _NUMBER,
        "median": _NUMBER,
        "mean": _NUMBER,
    }


_SCORES = {
    **{f"{name}?": _column(_NUMBER) for name in ("mse", "psnr", "ssim", "lpips", "relative_error")},
    **{f"{name}?": _column((bool, None)) for name in ("exact", "label_correct", "identified")},
    "rank?": _column((int, None)),
    "chance": _NUMBER,
    "labels_found": _NUMBER,
    "not_recovered": int,
    "surplus?": int,
    "matched": [(int, None)],
}
_LEAK = {
    "kind": str,
    "rounds": {"first": int, "last": int, "count": int},
    "rows": int,
    "formula": str,
    "scope?": str,
    "std": _NUMBER,
}
_IMAGES = {"file": _FILE, "x": str, "y": (str, None), "interval?": str, "choices?": {str: str}}
_FINDING = {
    "node": int,
    "adversary": str,
    "attack": str,
    "leak": _LEAK,
    "certificate": {"name": _NAMES, "sentence": str},
    "certified?": int,
    "batch": (int, None),
    "labels": ([(int, *_NUMBER)], None),
    "scores": (_SCORES, None),
    "residual": _NUMBER,
    "seconds": float,
    "note": str,
    "images": (_IMAGES, None),
    "cell?": {"epsilon": _EPSILON, "seed": int},
}
_PROVENANCE = {
    "versions": {str: (str, None)},
    "shimmed": bool,
    "seeds": {str: int},
    "device": str,
    "threads": int,
    "trace": {"id": str, "sha256": (_SHA256, None), "recording?": (str, None)},
    "truth": {"sha256": (_SHA256, None), "path?": (str, None), "recording?": (str, None)},
    "settings": {str: ANY},
    "digest": _SHA256,
    "command": str,
    "started": _TIME,
    "seconds": float,
    "platform": str,
    "rescored?": [{"metrics": [str], "truth": (_SHA256, None), "command": str, "started": _TIME}],
}
_SIZES = {
    "nodes": int,
    "edges": int,
    "links?": [[int]],
    "rounds": int,
    "shape": [int],
    "classes": int,
}
_TRACE = {"protocol": str, "data": str, "model": str, **_SIZES}
ATTACK = {
    "schema": frozenset({SCHEMA}),
    "version": frozenset({1, VERSION}),
    "kind": frozenset({"attack"}),
    "complete": bool,
    "summary": str,
    "unverified?": [str],
    "trace": _TRACE,
    "findings": [_FINDING],
    "undetermined": [{"node": int, "adversary": str, "reason": str}],
    "not_tried": [str],
    "metrics": {str: str},
    "attacks?": {str: {"paper": str, "reads": str, "cost": str, "exact": bool}},
    "picture": (_FILE, None),
    "originals?": (_FILE, None),
    "files?": {str: _SHA256},
    "provenance": _PROVENANCE,
}
_VERDICT = {
    "epsilon": _EPSILON,
    "adversary": str,
    "node": int,
    "test": str,
    "attack": str,
    "promise": ({"name": str, "epsilon": _EPSILON, "delta": float, "mu": _NUMBER}, None),
    "verdict": frozenset(v.name for v in Verdict),
    "says": str,
    "power": str,
    "p": _NUMBER,
    "level": _NUMBER,
    "needs": (int, None),
    "figures": {str: ANY},
}
_AUDIT = {
    "alpha": float,
    "delta": float,
    "grid": [{"epsilon": _EPSILON, "constants": {str: ANY}, "views": [{str: ANY}]}],
    "curves": [
        {
            **{
                "epsilon": _EPSILON,
                "adversary": str,
                "attack": str,
                "attacked?": int,
                "refused?": int,
            },
            **{f"{m}?": {str: float} for m in ("psnr", "ssim", "relative_error")},
        }
    ],
    "verdicts": [_VERDICT],
    "figure": (_FILE, None),
}
AUDIT = {**ATTACK, "kind": frozenset({"audit"}), "audit": _AUDIT}
_RULE = {
    "kind": frozenset(
        {"budget", "baseline", "lint", "recording", "attacked", "positive", "negative"}
    ),
    **dict.fromkeys(("cell", "measure", "says", "accepted"), str),
    **dict.fromkeys(("value", "limit", "p"), _EPSILON),
    "status": frozenset(
        {
            "OK",
            "OVER",
            "REGRESSION",
            "CONTRADICTED",
            "ACCEPTED",
            "WARNING",
            "INCONCLUSIVE",
            "NOT_COMPARABLE",
            "VOID",
            "UNTESTED",
        }
    ),
}
_BEST = {
    **dict.fromkeys(("node", "seed", "first", "last"), int),
    **dict.fromkeys(("psnr", "relative_error", "labels"), _NUMBER),
    **{"exact": bool, "kind": str, "formula": str},
}
_CELL = {
    **dict.fromkeys(("name", "check", "adversary", "attack", "says"), str),
    "digest": _SHA256,
    "seeds": [int],
    "measures": {str: {"samples": [float], "mean": float, "worst": float}},
    "epsilon": _EPSILON,
    "rounds_priced?": (int, None),
    "worst": ({str: ANY}, None),
    "nodes?": [_BEST],
    "reasons": {str: str},
    "seconds": float,
}
_GATE = {
    "code": frozenset({0, 1, 3}),
    "verdict": frozenset({"pass", "leak", "cannot tell"}),
    "strict": bool,
    "cells": [_CELL],
    "rules": [_RULE],
    "networks?": {str: _TRACE},
    "pitfalls?": {str: {"name": str, "fix": str}},
    "acceptances": {str: frozenset({"used", "unused", "expired"})},
    "stale": [str],
}
CHECK = {**ATTACK, "kind": frozenset({"check"}), "location": str, "gate": _GATE}
_STATISTICS = {"best": float, "median": float, "mean": float}
_COUNTS = dict.fromkeys(("records", "recovered", "exact", "certified"), int)
_PLACE = {"attack": str, "adversary": str, "at": {str: ANY}}
_TRIED = {"attacked?": int, "refused?": int}  # nodes, once a run; version 1 did not count them
_POINT = {
    **_PLACE,
    **_COUNTS,
    **_TRIED,
    "cells": int,
    "labels_found": _NUMBER,
    **{f"{m}?": _STATISTICS for m in ("psnr", "ssim", "relative_error")},
}
_SWEPT = {
    **_PLACE,
    **{
        "key": _SHA256,
        "seed": int,
        "status": frozenset({"done", "failed", "died"}),
        "says": str,
        "records": int,
    },
    **{"constants": {str: ANY}, "reasons": {str: str}},
    "columns": {
        **_COUNTS,
        **_TRIED,
        "returned?": int,
        **{name: [float] for name in ("psnr", "ssim", "relative_error", "labels")},
    },
}
_SWEEP = {
    **{
        "digest": _SHA256,
        "plan": {str: ANY},
        "versions": {str: (str, None)},
        "axes": {str: [ANY]},
        "across": (str, None),
    },
    **{
        "psnr": float,
        "cells": [_SWEPT],
        "missing": int,
        "points": [_POINT],
        "figure": (_FILE, None),
    },
}
SWEEP = {
    **{k: ATTACK[k] for k in ("schema", "version", "complete", "summary")},
    "kind": frozenset({"sweep"}),
    "sweep": _SWEEP,
}
KINDS: dict[str, dict[str, Any]] = {
    "attack": ATTACK,
    "audit": AUDIT,
    "check": CHECK,
    "sweep": SWEEP,
}


def validate(results: Json, name: str = "results.json") -> None:
    """Raise LeakauditError with the place of the first entry that the schema does not allow."""
    if not isinstance(results, Mapping) or results.get("schema") != SCHEMA:
        raise LeakauditError(
            f'{name}: expected a record of leakaudit ("schema": "{SCHEMA}"), got something else'
        )
    version = results.get("version")
    if isinstance(version, int) and version > VERSION:
        raise LeakauditError(
            f"{name}: written by a newer leakaudit (version {version}, this one reads up to {VERSION}); upgrade leakaudit"
        )
    if not isinstance(kind := results.get("kind"), str) or kind not in KINDS:
        raise LeakauditError(
            f"{name}: expected kind to be one of {', '.join(KINDS)}, got {kind!r:.40}"
        )
    if wrong := departure(results, KINDS[kind]):
        raise LeakauditError(f"{name}: {wrong}")
    if results["version"] == VERSION and (
        untied := _named(results) - results.get("files", {}).keys()
    ):
        says = f"{min(untied)} stands in the record, but 'files' holds no sha256 of it"
        raise LeakauditError(
            f"{name}: {says}; the record was edited or copied in part, so run that again"
        )


def write(path: Path, results: Mapping[str, Json]) -> None:
    """Validate and write results.json whole or not at all."""
    validate(results, path.name)
    with replacing(path) as file:
        file.write(
            json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False).encode(
                "utf-8", "backslashreplace"
            )
            + b"\n"
        )


def sealed(results: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Return the record with ``files``: the sha256 of every file of pictures that it names and that stands in `folder`.

    Files are replaced one by one, so a run that is killed may leave its pictures beside the record of an earlier one. `whole` tells.
    """
    there = sorted(name for name in _named(results) if (folder / name).is_file())
    files = {name: sidecar.digest(folder / name) for name in there}
    return {**results, "version": VERSION, "files": files}


def _named(results: Mapping[str, Json]) -> set[str]:
    """Return the files of pictures that a record names; a sweep's has none that anything is read from."""
    found = {
        finding["images"]["file"] for finding in results.get("findings", ()) if finding["images"]
    }
    figure = (results.get("audit") or {}).get("figure")
    return {
        name for name in (*found, results.get("picture"), results.get("originals"), figure) if name
    }


def remarked(results: Mapping[str, Json], *remarks: str) -> dict[str, Json]:
    """Return the record with what is not verified about it, as ``unverified`` and at the start of its summary.

    Every report shows the summary. A remark that the record has already is not repeated.
    """
    known = list(results.get("unverified", ()))
    new = [remark for remark in remarks if remark not in known]
    if not new:
        return dict(results)
    return {**results, "unverified": [*known, *new], "summary": warned(results["summary"], new)}


def warned(summary: str, remarks: Sequence[str]) -> str:
    """Put remarks of `remarked` before a summary."""
    return "".join([*(f"UNVERIFIED: {remark}. " for remark in remarks), summary])


def whole(results: Mapping[str, Json], folder: Path) -> None:
    """Raise LeakauditError if a file that stands beside a record is not the one that it was written with; one may be missing."""
    for name, expected in results.get("files", {}).items():
        if (folder / name).is_file() and sidecar.digest(folder / name) != expected:
            says = (
                "it was changed, or a later run was cut short before it wrote its own results.json"
            )
            raise LeakauditError(
                f"{folder / name} is not the file that {folder / 'results.json'} was written with: {says}; run that again"
            )


def read(path: Path) -> dict[str, Json]:
    """Read and validate results.json.

    A record of version 1 that names pictures and has no digests of them says so in its summary.
    Raises LeakauditError if it cannot be read or is not what it should be.
    """
    try:
        results = json.loads(path.read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise LeakauditError(
            f"{path}: expected the results.json of a run, cannot read it: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise LeakauditError(
            f"{path}: expected the results.json of a run, got a file that is no text"
        ) from None
    except (ValueError, RecursionError) as error:
        raise LeakauditError(
            f"{path}: expected the results.json of a run, got no JSON: {str(error)[:200]}"
        ) from None
    validate(results, str(path))
    untied = _named(results) - results.get("files", {}).keys()
    return remarked(results, *([UNTIED] if untied else []))


def save_reconstructions(path: Path, found: Sequence[Reconstruction]) -> list[dict[str, Json]]:
    """Write reconstructions to one npz and return each one's ``images`` entry, so that they can be scored again without an attack.

    An entry names the arrays of the inputs and, if there are any, of labels, half-widths of intervals, and other candidates for an
    input by its place.
    """
    arrays: dict[str, np.ndarray] = {}
    entries = []
    for i, one in enumerate(found):
        entry: dict[str, Json] = {
            "file": path.name,
            "x": f"x{i}",
            "y": None if one.y is None else f"y{i}",
        }
        kept = {entry["x"]: one.x}
        if one.y is not None:
            kept[entry["y"]] = one.y
        if one.interval is not None:
            entry["interval"] = f"interval{i}"
            kept[entry["interval"]] = one.interval
        if one.choices:
            entry["choices"] = {str(place): f"choices{i}_{place}" for place in one.choices}
            kept |= {f"choices{i}_{place}": others for place, others in one.choices.items()}
        arrays |= {name: tensor.detach().cpu().numpy() for name, tensor in kept.items()}
        entries.append(entry)
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return entries


def load_reconstructions(results: Mapping[str, Json], folder: Path) -> list[Reconstruction]:
    """Rebuild the reconstructions of a record from the npz beside it, in the order of its findings.

    Raises LeakauditError if the npz is not the one that the record was written with, or cannot be read.
    """
    whole(results, folder)
    return [_rebuild(finding, folder) for finding in results["findings"]]


def _rebuild(finding: Mapping[str, Json], folder: Path) -> Reconstruction:
    images = finding["images"]
    if images is None:
        raise LeakauditError(
            f"node {finding['node']}: its reconstruction was not kept; run the attack again"
        )
    try:
        with np.load(folder / images["file"], allow_pickle=False) as file:
            x = torch.from_numpy(file[images["x"]])
            y = None if images["y"] is None else torch.from_numpy(file[images["y"]])
            interval = torch.from_numpy(file[images["interval"]]) if "interval" in images else None
            choices = {
                int(place): torch.from_numpy(file[name])
                for place, name in images.get("choices", {}).items()
            }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LeakauditError(
            f"{folder / images['file']}: expected the saved reconstruction {images['x']!r}: {str(error)[:200]}"
        ) from None
    certificate = Certificate[finding["certificate"]["name"]]
    residual = math.nan if finding["residual"] is None else finding["residual"]
    rest = (
        residual,
        finding["seconds"],
        finding["note"],
        finding.get("certified", 0),
        interval,
        choices,
    )
    return Reconstruction(finding["node"], finding["attack"], x, y, certificate, *rest)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
