"""A record that can be shown to more people: no pictures, no labels, no paths, and nodes under other numbers."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from leakaudit.results.comparison import MEANS
from leakaudit.results.grading import checks
from leakaudit.results.record_file import warned
from leakaudit.results.wording import clean, summary
from leakaudit.trace import Json

HIDDEN = "redacted"
_NODES = re.compile(r"(?i)\b(nodes?|peers?)([:= ]\s?)(\d+(?:(?:,\s?| and | or )\d+)*)")
_EDGES = re.compile(r"(?i)\b(edges?)([:= ]\s?)(\d+-\d+(?:,\s?\d+-\d+)*)")
_FILE = re.compile(r"[/\\]|^(file|npz):|\.\w{2,5}$")
TREATED = (
    "findings",
    "undetermined",
    "provenance",
    "trace",
    "summary",
    "gallery",
    "against",
    "files",
)  # of a record, one by one
NAMED = (
    "lint",
    "recording",
    "attacked",
)  # rules of a gate that begin with what was found, then a colon and figures
_PICTURES = ("picture", "originals", "figure")
_DROPPED = (
    "formula",
    "scope",
    "note",
    "leaking",
    "reasons",
)  # entries whose texts name nodes in other ways

Rename = Callable[[int], int]


def redact(results: Mapping[str, Json], key: str | None = None) -> dict[str, Json]:
    """Return the record without pictures, labels, notes, formulas, paths and command arguments, its nodes renumbered throughout.

    key: gives the same numbers in every record redacted with it, and gives them away to whoever knows it; without one they are drawn
    from the whole record. Scores, certificates, the shape of the graph, seeds and sha256 stay: they are what a report is about.
    """
    rename = _renaming(results, key)
    findings = _in_order([_finding(f, rename) for f in results["findings"]])
    undetermined = _in_order(
        [{**_texts(u, rename), "reason": HIDDEN} for u in results["undetermined"]]
    )
    rest = {k: v for k, v in results.items() if k not in TREATED}
    out: dict[str, Json] = {**_texts(rest, rename), "trace": _trace(results["trace"], rename)}
    out |= dict.fromkeys((p for p in _PICTURES if p in results), None)
    if location := out.get("location"):
        out["location"] = location.rpartition("/")[2] if location.startswith("/") else location
    if gate := results.get("gate"):
        out["gate"] = _gate(gate, out["gate"], rename)
    if audit := out.get("audit"):
        out["audit"] = {**audit, "figure": None}
    out |= {
        "findings": findings,
        "undetermined": undetermined,
        "provenance": _provenance(results["provenance"], rename),
    }
    if results["kind"] == "attack":
        said = summary(findings, undetermined, out["not_tried"], results["complete"])
        out["summary"] = warned(said, results.get("unverified", ()))
    else:
        out["summary"] = _text(_unlinted(results), rename)
    if against := results.get("against"):
        out["against"] = {**against, "rows": _rows(out, _texts(against["rows"], rename))}
    return out


def _rows(redacted: Mapping[str, Json], rows: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Changes by kind, with the fingerprints of the redacted checks: the old ones could be guessed from the old numbers."""
    known = {c.name: c.id for c in checks(redacted)}
    shown = [{**row, "id": known.get(row["name"], "")} for row in rows]
    return sorted(shown, key=lambda row: list(MEANS).index(row["change"]))


def _gate(gate: Mapping[str, Json], shown: Mapping[str, Json], rename: Rename) -> dict[str, Json]:
    """Its networks renamed; of what lint and recordings show only the name of it, since figures name nodes in many ways."""
    rules = [
        {**r, "says": _pitfall(r["says"])} if r["kind"] in NAMED else r for r in shown["rules"]
    ]
    return {
        **shown,
        "rules": rules,
        "networks": {k: _trace(v, rename) for k, v in gate.get("networks", {}).items()},
    }


def _pitfall(says: str) -> str:
    return says.partition(": ")[0]


def _unlinted(results: Mapping[str, Json]) -> str:
    """Return the sentence of the whole without the figures of lint and recordings."""
    said: str = results["summary"]
    for rule in (results.get("gate") or {}).get("rules", ()):
        said = (
            said.replace(clean(rule["says"]), _pitfall(rule["says"]))
            if rule["kind"] in NAMED
            else said
        )
    return said


def _renaming(results: Mapping[str, Json], key: str | None) -> Rename:
    """Return a permutation of the nodes."""
    secret = (
        json.dumps({k: v for k, v in results.items() if k != "gallery"}, sort_keys=True)
        if key is None
        else key
    )
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
    networks = (results["trace"], *(results.get("gate") or {}).get("networks", {}).values())
    order = sorted(
        range(max(n["nodes"] for n in networks)),
        key=lambda n: hmac.digest(digest, str(n).encode(), "sha256"),
    )
    place = {node: k for k, node in enumerate(order)}
    return lambda node: place.get(node, node)


def _finding(finding: Mapping[str, Json], rename: Rename) -> dict[str, Json]:
    return {**_texts(finding, rename), "labels": None, "images": None}


def _trace(trace: Mapping[str, Json], rename: Rename) -> dict[str, Json]:
    links = trace.get("links")
    shown = {k: _hide(v) if isinstance(v, str) else v for k, v in trace.items()}
    return (
        shown
        if links is None
        else {**shown, "links": sorted(sorted(map(rename, edge)) for edge in links)}
    )


def _provenance(p: Mapping[str, Json], rename: Rename) -> dict[str, Json]:
    out = {**p, "settings": _settings(p["settings"], rename), "command": _command(p["command"])}
    out["truth"] = {k: v for k, v in p["truth"].items() if k != "path"}
    if "rescored" in p:
        out["rescored"] = [{**one, "command": _command(one["command"])} for one in p["rescored"]]
    return out


def _command(command: str) -> str:
    """The program and its verb."""
    return " ".join([*command.split()[:2], HIDDEN])


def _settings(value: Any, rename: Rename, name: str = "") -> Any:
    if isinstance(value, Mapping):
        return {k: _settings(v, rename, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_settings(v, rename, name) for v in value]
    if isinstance(value, str):
        return _text(_hide(value), rename)
    return (
        rename(value)
        if name in ("node", "nodes") and isinstance(value, int) and not isinstance(value, bool)
        else value
    )


def _hide(text: str) -> str:
    return HIDDEN if _FILE.search(text) else text


def _texts(value: Any, rename: Rename, name: str = "") -> Any:
    """The same values, with the nodes renamed that their texts and their entries ``node`` name."""
    if name in _DROPPED:
        return type(value)() if isinstance(value, str | list | dict) else value
    if isinstance(value, Mapping):
        return {k: _texts(v, rename, k) for k, v in value.items()}
    if isinstance(value, list):
        shown = [_texts(v, rename, name) for v in value]
        return _in_order(shown)
    if isinstance(value, str):
        return _text(value, rename)
    return (
        rename(value)
        if name == "node" and isinstance(value, int) and not isinstance(value, bool)
        else value
    )


def _in_order(values: list[Any]) -> list[Any]:
    """Entries that are about a node by its new number: their old order would give the old one away."""
    if not all(isinstance(v, Mapping) and isinstance(v.get("node"), int) for v in values):
        return values
    return sorted(values, key=lambda v: v["node"])


def _text(text: str, rename: Rename) -> str:
    def numbers(found: re.Match[str]) -> str:
        return found[1] + found[2] + re.sub(r"\d+", lambda n: str(rename(int(n[0]))), found[3])

    return _EDGES.sub(numbers, _NODES.sub(numbers, text))
