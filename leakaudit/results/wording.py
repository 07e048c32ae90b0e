"""Words that all reports of an attack share, from the record alone: the verdict sentence, table cells, limits.

Names in a trace come from strangers: `clean` strips what could act on a terminal, each report escapes for its own format.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence

from leakaudit.trace import Json

Finding = Mapping[str, Json]

LIMITS = (
    "An attack that fails proves nothing: another attack, more rounds or a stronger adversary may succeed.",
    "The certificate says how sure the attack is without knowing the truth; the scores compare with the truth file.",
    "This report and the files beside it hold personal data if the training data does.",
)
REFUSED = "refused: nodes, once a run, that gave nothing to score; their records count in every mean as the mean of all other records."
HEADINGS = (
    *("node", "attack", "leak of rounds", "certificate", "PSNR dB", "SSIM", "LPIPS", "rel. error"),
    *("identical", "label", "identified", "seconds"),
)
_ALWAYS = ("node", "attack", "leak of rounds", "certificate", "label", "seconds")
_RANK = {"EXACT": 3, "INTERVAL": 2, "APPROXIMATE": 1, "FAILED": 0}


def clean(text: object) -> str:
    """One line of printable text: control, format and direction characters become spaces."""
    return " ".join(
        "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in str(text)).split()
    )


def summary(
    findings: Sequence[Finding],
    undetermined: Sequence[Finding],
    not_tried: Sequence[str],
    complete: bool = True,
) -> str:
    """One sentence: the worst case first, then how many nodes, then what was not tried."""
    nodes = len({f["node"] for f in findings} | {u["node"] for u in undetermined})
    if findings:
        top = max(findings, key=harm)
        leak = f"a {top['leak']['kind']} heard by {top['adversary']}"
        how = (
            f"by {top['attack']} from {leak}"
            if top["attack"] != "none"
            else f"{leak} is determined, and no attack here can use it"
        )
        parts = [
            f"worst case: node {top['node']}, {outcome(top)}, {how}",
            *_counts(findings, nodes),
        ]
    else:
        parts = [
            f"no gradient of {_count(nodes)} looked at is determined by what was tried, which proves nothing about other attacks"
        ]
    parts += [] if complete else ["the run was interrupted and is not complete"]
    text = clean("; ".join([*parts, f"not tried: {', '.join(not_tried) or 'anything else'}"]))
    return f"{text[0].upper()}{text[1:]}."


def table(results: Mapping[str, Json]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings, and one row of cells a finding; a column that no finding fills is left out. Cells are cleaned, not escaped."""
    rows = [dict(zip(HEADINGS, _cells(f), strict=True)) for f in results["findings"]]
    used = tuple(h for h in HEADINGS if h in _ALWAYS or any(row[h] != "-" for row in rows))
    return used, [tuple(clean(row[h]) for h in used) for row in rows]


def by_reason(entries: Sequence[Finding], key: str) -> list[str]:
    """``nodes 0, 3: reason`` for every reason that the entries give under `key`, each once; cleaned, not escaped."""
    nodes: dict[str, list[int]] = {}
    for entry in entries:
        if entry[key]:
            nodes.setdefault(clean(entry[key]), []).append(entry["node"])
    return [
        f"node{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}: {reason}"
        for reason, who in nodes.items()
    ]


def scopes(findings: Sequence[Finding]) -> list[str]:
    """Say, nodes together, on what part of what is heard their leaks rest."""
    return by_reason(
        [{"node": f["node"], "scope": f["leak"].get("scope", "")} for f in findings], "scope"
    )


def provenance(results: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Name and value of everything needed to repeat the run, cleaned, not escaped."""
    p, trace = results["provenance"], results["trace"]
    said = {
        "protocol": f"{trace['protocol']}, {trace['nodes']} nodes, {trace['edges']} edges, {trace['rounds']} rounds",
        "data": f"{trace['data'] or 'not named'}, shape {tuple(trace['shape'])}, model {trace['model']}",
        "command": p["command"],
        "started": p["started"],
        "wall time": f"{p['seconds']:.1f} s",
        "versions": ", ".join(
            f"{name} {version or 'absent'}" for name, version in p["versions"].items()
        ),
        "torchvision": "shimmed (operators declared, not compiled)" if p["shimmed"] else "",
        "seeds": ", ".join(f"{name} {seed}" for name, seed in p["seeds"].items()),
        "device": f"{p['device']}, {p['threads']} thread{'s' * (p['threads'] != 1)}, {p['platform']}",
        "trace": f"id {p['trace']['id'] or 'none'}, sha256 {p['trace']['sha256'] or 'not taken'}",
        "truth": _truth(results),
        "configuration": f"sha256 {p['digest']}",
        **{f"metric {name}": text for name, text in results["metrics"].items()},
    }
    return [(clean(name), clean(value)) for name, value in said.items() if value]


def refused(counts: Mapping[str, Json]) -> str:
    """Of how many nodes an attack gave nothing, for tables; a dash for a record of version 1, which did not count them."""
    return f"{counts['refused']} of {counts['attacked']}" if "refused" in counts else "-"


def said_of(cell: Mapping[str, Json]) -> str:
    """Point of an audit's grid that an entry belongs to."""
    epsilon = cell["epsilon"]
    point = (
        "as configured"
        if epsilon is None
        else "no noise (epsilon inf)"
        if epsilon == "inf"
        else f"epsilon {epsilon:g}"
    )
    return f"{point}, seed {cell['seed']}" if "seed" in cell else point


def _counts(findings: Sequence[Finding], nodes: int) -> list[str]:
    """How many nodes came out how."""
    attacked = {f["node"] for f in findings}
    identical = {f["node"] for f in findings if (best(f["scores"] or {}, "exact", max) or 0) > 0}
    by_word = {
        word: len({f["node"] for f in findings if f["certificate"]["name"] == word})
        for word in _RANK
    }
    certificates = ", ".join(f"{count} {word.lower()}" for word, count in by_word.items() if count)
    return [
        *(
            [f"{len(identical)} of {_count(nodes)} gave away a record bit for bit"]
            if identical
            else []
        ),
        f"certificates of {_count(len(attacked))} attacked: {certificates}",
        *(
            [f"nothing determined for {_count(nodes - len(attacked))}"]
            if nodes > len(attacked)
            else []
        ),
    ]


def _count(nodes: int) -> str:
    return f"{nodes} node" + "s" * (nodes != 1)


def _truth(results: Mapping[str, Json]) -> str:
    if sha256 := results["provenance"]["truth"]["sha256"]:
        return f"sha256 {sha256}"
    return (
        "no truth file: not scored"
        if results["kind"] == "attack"
        else "recorded with each run, and not kept"
    )


def harm(finding: Finding) -> tuple[float, ...]:
    """Sorts findings by how much they give away: identical records, PSNR or error, certificate, residual."""
    scores = finding["scores"] or {}
    identical = best(scores, "exact", max) or 0.0
    psnr, error = best(scores, "psnr", max), best(scores, "relative_error", min)
    near = psnr if psnr is not None else -error if error is not None else float("-inf")
    residual = finding["residual"]
    return (
        identical,
        near,
        _RANK[finding["certificate"]["name"]],
        float("-inf") if residual is None else -residual,
    )


def outcome(finding: Finding) -> str:
    """What was got of one node, in words."""
    scores, certificate = finding["scores"], finding["certificate"]
    if scores is None:
        return f"which {certificate['sentence']} (certificate {certificate['name'].lower()}, no truth file: not scored)"
    psnr, error = best(scores, "psnr", max), best(scores, "relative_error", min)
    if psnr is None and error is None:
        share = scores["labels_found"] if certificate["name"] != "FAILED" else None
        return f"{share:.0%} of the labels and no input recovered" if share else "nothing recovered"
    near = f"relative error {error:.1e}" if psnr is None else f"{psnr:.1f} dB PSNR"
    same = sum(map(bool, scores["exact"]["per_image"])) if "exact" in scores else 0
    return (
        f"{same} of {len(scores['matched'])} records bit for bit ({near})"
        if same
        else f"reconstructed at {near}"
    )


def best(
    scores: Mapping[str, Json], metric: str, pick: Callable[[list[float]], float]
) -> float | None:
    """Return the best value of one metric over all images, None where none was measured."""
    values = [float(v) for v in scores.get(metric, {}).get("per_image", ()) if v is not None]
    return pick(values) if values else None


def _cells(finding: Finding) -> tuple[str, ...]:
    """One cell a heading, "-" where it does not apply."""
    scores = finding["scores"] or {}
    rounds = finding["leak"]["rounds"]
    span = (
        str(rounds["first"])
        if rounds["first"] == rounds["last"]
        else f"{rounds['first']}-{rounds['last']}"
    )
    return (
        str(finding["node"]),
        finding["attack"],
        f"{finding['leak']['kind']} {span}",
        finding["certificate"]["name"].lower(),
        _spread(scores, "psnr", "{:.1f}"),
        _spread(scores, "ssim", "{:.3f}"),
        _spread(scores, "lpips", "{:.3f}"),
        "-" if "psnr" in scores else _spread(scores, "relative_error", "{:.1e}"),
        _share(scores, "exact"),
        _labels(finding, scores),
        _identified(scores),
        f"{finding['seconds']:.2f}",
    )


def _spread(scores: Mapping[str, Json], metric: str, form: str) -> str:
    """The one value, or the median and the range of several that differ as they are printed; missed records count as blind guesses."""
    column = scores.get(metric, {"per_image": ()})
    values = [v for v in column["per_image"] if v is not None]
    if not values:
        return "-"
    values += column.get("missed", ())
    if len({form.format(v) for v in values}) == 1:
        return form.format(values[0])
    return f"{form.format(scores[metric]['median'])} ({form.format(min(values))} to {form.format(max(values))})"


def _share(scores: Mapping[str, Json], metric: str) -> str:
    if metric not in scores:
        return "-"
    values = scores[metric]["per_image"]
    return (
        ("yes" if values[0] else "no")
        if len(values) == 1
        else f"{sum(map(bool, values))} of {len(values)}"
    )


def _labels(finding: Finding, scores: Mapping[str, Json]) -> str:
    if finding["labels"] is None:
        return "-"
    if "label_correct" in scores and len(finding["labels"]) > 1:
        return _share(scores, "label_correct") + " right"
    shown = " ".join("?" if label is None else f"{label:g}" for label in finding["labels"][:8])
    right = {"yes": ", right", "no": ", wrong"}.get(_share(scores, "label_correct"), "")
    return shown + (" …" if len(finding["labels"]) > 8 else "") + right


def _identified(scores: Mapping[str, Json]) -> str:
    share = _share(scores, "identified")
    rank = scores["rank"]["per_image"][0] if share == "no" and "rank" in scores else None
    return share if rank is None else f"no (rank {rank})"
