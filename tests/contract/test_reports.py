"""Reports say the worst first, and names from a trace stay inert."""

from __future__ import annotations

import copy
import html
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image
from records import Record, column, summarised

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec, Truth
from leakaudit.reporting.figures.pictures import Pair, grid, pair_up, save
from leakaudit.reporting.findings import wording
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.rendering.markdown import escape
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import Finding, fitted
from leakaudit.reports.text import render as render_text
from leakaudit.scoring.scoring import score

HOSTILE = (
    "<script>alert(1)</script>|`x`\n# big ![i](http://e.org/i) <img src=x> [l](javascript:x) "
    "@someone www.e.org \x1b[31mred\x07 \u202eevil ~~s~~ $m$"
)
PIECES = [
    *"ab1 \\`*_{}[]()#+-.!|~$<>&@:/=\n\t\"'",
    "www.",
    "http://",
    "&amp;",
    "\x1b",
    "\u202e",
    "é",
]
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def finding(
    node: int,
    psnr: float | None = 40.0,
    exact: bool = False,
    certificate: str = "EXACT",
    **changes: Any,
) -> Record:
    scores = {
        "psnr": column(psnr),
        "ssim": column(0.99),
        "exact": column(exact),
        "label_correct": column(True),
        "identified": column(True),
    }
    rest = {
        "rank": column(1),
        "chance": 0.01,
        "labels_found": 1.0,
        "not_recovered": 0,
        "matched": [0],
    }
    leak = {
        "kind": "difference",
        "rounds": {"first": 0, "last": 1, "count": 2},
        "rows": 1,
        "formula": "z1 - z0",
        "std": 1e-8,
    }
    base = {
        "node": node,
        "adversary": "eavesdropper",
        "attack": "analytic",
        "leak": leak,
        "batch": 1,
        "labels": [1],
        "residual": 1e-9,
    }
    words = {
        "certificate": {"name": certificate, "sentence": "fits the leak"},
        "seconds": 0.25,
        "note": "",
        "images": None,
    }
    return {**base, **words, "scores": {**scores, **rest}, **changes}


def record(
    *found: Record, undetermined: tuple[Record, ...] = (), name: str = "pdmm", complete: bool = True
) -> Record:
    not_tried = ["dlg", "coalitions of nodes"]
    own = {
        "complete": complete,
        "summary": summarised(found, undetermined, not_tried, complete),
        "not_tried": not_tried,
    }
    metrics = {"psnr": "dB", "lpips": "not measured (no weights)"}
    out = (
        records.record(*found, undetermined=undetermined, name=name, nodes=10)
        | own
        | {"metrics": metrics, "picture": "grid.png"}
    )
    out["trace"] |= {
        "edges": 20,
        "links": [[k, (k + step) % 10] for k in range(10) for step in (1, 2)],
    }
    out["provenance"] |= {
        "shimmed": True,
        "settings": {"steps": 300},
        "truth": {"sha256": None},
        "command": f"leakaudit attack {name}",
    }
    out["files"] |= {"grid.png": "2" * 64}
    record_file.validate(out)
    return out


CLOSED = {"node": 7, "adversary": "node:3", "reason": "needs two rounds, heard one"}
VECTOR = finding(2)
VECTOR["scores"] = {
    k: v for k, v in VECTOR["scores"].items() if k not in ("psnr", "ssim", "exact")
} | {"relative_error": column(1e-9)}
BATCH = finding(4, labels=[0, 1, 1], batch=3)
BATCH["scores"] |= {
    "psnr": column(20.0, 30.0, None),
    "exact": column(False, True, False),
    "label_correct": column(True, True, False),
    "matched": [1, 0, None],
}
RECORDS = {
    "scored": record(finding(0), finding(1, 145.2, True), undetermined=(CLOSED,)),
    "not scored": record(finding(0, scores=None, note="no truth file: not scored")),
    "vectors": record(VECTOR),
    "batch": record(BATCH),
    "nothing": record(undetermined=(CLOSED,)),
    "failed": record(finding(0, None, certificate="FAILED", residual=None, labels=None)),
    "interrupted": record(finding(0), complete=False),
    "hostile": record(
        finding(0, attack=HOSTILE, adversary=HOSTILE, note=HOSTILE),
        undetermined=({**CLOSED, "reason": HOSTILE},),
        name=HOSTILE,
    ),
}


@pytest.mark.parametrize("format", ["json", "markdown", "text"])
@pytest.mark.parametrize("name", RECORDS)
def test_every_report_renders_every_record(format: str, name: str) -> None:
    page = registry.get("reports", format)(RECORDS[name])
    assert page.endswith("\n")
    assert not any(unicodedata.category(c)[0] == "C" and c != "\n" for c in page)
    shown = (
        json.loads(page)["summary"]
        if format == "json"
        else " ".join(page.replace("\\", "").split())
    )
    assert "Not tried" in shown or "not tried: dlg, coalitions of nodes" in shown


def test_the_sentence_names_the_worst_case_first_and_what_was_not_tried() -> None:
    assert RECORDS["scored"]["summary"] == (
        "An eavesdropper recovered 1 of the 2 training images of nodes 0, 1 exactly. "
        "This was found by comparison with the originals. The attack also proves 1 other result to "
        "be exact that differ from the originals. Either the program changes records before it "
        "uses them (augmentation), the truth is that of another run, or the attack is wrong. "
        "By analytic from a difference; a record recovered bit for bit from 1 of 3 nodes; "
        "certificates of the 2 nodes attacked: 2 exact; no leak determined for 1 node; "
        "not tried: dlg, coalitions of nodes."
    )
    assert RECORDS["vectors"]["summary"].startswith(
        "An eavesdropper recovered the training image of node 2 exactly."
    )
    assert "the network received exactly these inputs" in RECORDS["not scored"]["summary"]
    assert RECORDS["nothing"]["summary"].startswith(
        "What was observed determines no gradient of the 1 node examined."
    )
    assert "recovered no training image of node 0. A failed attack" in RECORDS["failed"]["summary"]
    assert "interrupted" in RECORDS["interrupted"]["summary"]


@pytest.mark.parametrize("name", RECORDS)
def test_no_report_says_private_or_safe(name: str) -> None:
    for format in ("markdown", "text"):
        page = registry.get("reports", format)(RECORDS[name]).lower()
        assert not re.search(r"\b(is|are) (private|safe)\b", page)
        assert "not evidence of privacy" in " ".join(page.split())


def test_json_is_the_record() -> None:
    assert json.loads(registry.get("reports", "json")(RECORDS["hostile"])) == RECORDS["hostile"]


@pytest.mark.parametrize("width", [60, 100, 160])
@pytest.mark.parametrize("name", RECORDS)
def test_text_stays_in_its_width(name: str, width: int) -> None:
    page = render_text(RECORDS[name], width=width)
    assert max(map(len, page.splitlines())) <= width


def test_text_shows_numbers_of_batches_as_median_and_range() -> None:
    page = render_text(RECORDS["batch"], width=200)
    for cell in ("30.0 (20.0 to 30.0)", "1 of 3", "2 of 3 right", "difference 0-1"):
        assert cell in page


def test_markdown_has_the_table_the_picture_the_limits_and_the_provenance() -> None:
    page = registry.get("reports", "markdown")(RECORDS["scored"])
    shown = MARKDOWN.render(page)
    assert shown.count("<table>") == 2
    assert '<img src="grid.png"' in shown
    assert (
        page.index("An eavesdropper recovered")
        < page.index("## Nodes")
        < page.index("## Not determined")
        < page.index("## Limits")
        < page.index("## Provenance")
    )
    rows = re.findall(r"<tr>(.*?)</tr>", shown, re.S)
    cells = [
        [html.unescape(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows
    ]
    assert cells[0] == [
        "node",
        "attack",
        "leak (rounds)",
        "certificate",
        "PSNR dB",
        "SSIM",
        "identical",
        "label",
        "identified",
        "seconds",
    ]
    assert cells[2] == [
        "1",
        "analytic",
        "difference 0-1",
        "exact",
        "145.2",
        "0.990",
        "yes",
        "1, right",
        "yes",
        "0.25",
    ]


def parsed(of: Record) -> tuple[str, list[Token]]:
    """The page of a record in Markdown, and its tokens."""
    page = registry.get("reports", "markdown")(of)
    return page, [t for block in MARKDOWN.parse(page) for t in (block, *(block.children or ()))]


def assert_inert(of: Record, sound: Record) -> None:
    """The page has the headings and images of a sound one, and no markup that it lacks."""
    page, tokens = parsed(of)
    expected = parsed(sound)[1]
    assert {t.type for t in tokens} <= {t.type for t in expected}
    pictures = [t.attrs["src"] for t in expected if t.type == "image"]
    assert [t.attrs["src"] for t in tokens if t.type == "image"] == pictures
    kinds = [t.type for t in expected]
    assert sum(t.type == "heading_open" for t in tokens) == kinds.count("heading_open")
    assert not re.search(r"https?://|www\.|@", page)


def test_hostile_names_are_inert_in_markdown() -> None:
    assert_inert(RECORDS["hostile"], RECORDS["scored"])


def parts_of(value: Any) -> Iterator[dict[Any, Any]]:
    """The dictionaries in a value, those of a list only in its first two entries."""
    if isinstance(value, dict):
        yield value
        for part in list(value.values()):
            yield from parts_of(part)
    elif isinstance(value, list):
        for part in value[:2]:
            yield from parts_of(part)


def attempt(of: Record, part: dict[Any, Any], changed: dict[Any, Any]) -> bool:
    """Change a dictionary in a record, unless the record would not be valid any more."""
    before = dict(part)
    part.clear()
    part.update(changed)
    try:
        record_file.validate(of)
    except LeakauditError:
        part.clear()
        part.update(before)
        return False
    return True


def spoil(of: Record) -> set[str]:
    """Put hostile text wherever a record stays valid; return the names of these places."""
    spoiled = set()
    for part in list(parts_of(of)):
        for key, value in list(part.items()):
            texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
            text = [HOSTILE] * len(value) if texts else HOSTILE
            if (texts or isinstance(value, str)) and attempt(of, part, {**part, key: text}):
                spoiled.add(key)
            name = f"{HOSTILE} {key}"
            renamed = {name if other == key else other: held for other, held in part.items()}
            if attempt(of, part, renamed):
                spoiled.add(f"name of {key}")
    return spoiled


@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("attack", {"summary", "adversary", "attack", "note", "formula", "name of torch"}),
        ("audit", {"summary", "adversary", "attack", "test", "says", "why", "name of torch"}),
        ("check", {"summary", "cell", "measure", "says", "name of psnr"}),
        ("sweep", {"summary", "adversary", "attack", "across", "says", "2", "name of sigma"}),
    ],
)
def test_no_text_of_a_record_acts_as_markdown(kind: str, places: set[str], project: Path) -> None:
    file = project / "tests" / "golden" / "records" / f"{kind}_v2.json"
    sound = json.loads(file.read_text(encoding="utf-8"))
    if kind == "sweep":
        sound["sweep"]["cells"][0].update(status="failed", says="x", reasons={"2": "y"})
    of = copy.deepcopy(sound)
    assert places <= spoil(of)
    assert_inert(of, sound)


def test_a_sweep_without_a_figure_shows_none(project: Path) -> None:
    file = project / "tests" / "golden" / "records" / "sweep_v2.json"
    of = json.loads(file.read_text(encoding="utf-8"))
    of["sweep"]["figure"] = None
    page, tokens = parsed(of)
    assert "![" not in page
    assert "table_open" in {token.type for token in tokens}


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@settings(derandomize=True, max_examples=400, deadline=None)
def test_escaped_text_reads_as_it_was_written(text: str) -> None:
    wanted = clean(text).replace("@", "(at)")
    line = MARKDOWN.render(f"- {escape(text)}").strip()
    assert (
        html.unescape(re.sub(r"^<ul>\n<li>(.*)</li>\n</ul>$", r"\1", line, flags=re.S)).strip()
        == wanted
    )
    cell = MARKDOWN.render(f"| a |\n| --- |\n| {escape(text)} |")
    assert [html.unescape(c) for c in re.findall(r"<td>(.*?)</td>", cell, re.S)] == [wanted]


@pytest.mark.parametrize(
    "text", ["a\x1b]0;title\x07b", "a\x9bb", "a\rb", "a\u2028b", "a\u202eb", "a\nb", "a\ud800b"]
)
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(text)[0] + clean(text)[-1] == "ab"


def test_the_picture_shows_small_images_enlarged_without_smoothing(tmp_path: Path) -> None:
    image = (torch.arange(25 * 25).reshape(1, 25, 25) % 256) / 255
    save(grid([Pair("node 0", image, 1 - image, 30.0, "exact")]), tmp_path / "grid.png")
    page = Image.open(tmp_path / "grid.png").convert("RGB")
    pixels = torch.frombuffer(bytearray(page.tobytes()), dtype=torch.uint8).reshape(
        page.height, page.width, 3
    )
    for shown in (image, 1 - image):
        wanted = (
            (shown[0] * 255).round().to(torch.uint8).repeat_interleave(4, 0).repeat_interleave(4, 1)
        )
        starts = (pixels[:, :, 0].unfold(1, 100, 1) == wanted[0]).all(2).nonzero().tolist()
        assert [torch.equal(pixels[y : y + 100, x : x + 100, 0], wanted) for y, x in starts].count(
            True
        ) == 1


@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 25, 25), 1), ((3, 32, 32), 12), ((3, 224, 200), 3), ((1, 3, 60), 33), ((1, 1, 1), 200)],
)
def test_pictures_of_any_number_wrap_and_stop(shape: tuple[int, ...], count: int) -> None:
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    page = grid(
        [Pair(f"node {i}", None if i % 3 else x[i], x[i], None, "failed") for i in range(count)],
        title=HOSTILE,
        limit=60,
    )
    assert 480 <= page.width <= 1400
    assert page.height < 3000


def test_columns_follow_the_truth_and_a_lost_record_has_an_empty_place() -> None:
    spec = TaskSpec("mlp", shape=(1, 8, 8), levels=255)
    x = torch.randint(0, 256, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0)) / 255
    truth = Truth(
        "run",
        spec,
        x,
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int64),
        torch.arange(3),
        x[:0],
    )
    found = [Reconstruction(0, "dlg", x[[2, 0]], None, Certificate.APPROXIMATE, 0.1)]
    scored = pair_up(found, score(found, truth), truth)
    assert [p.psnr for p in scored] == [200.0, None, 200.0]
    assert [p.found is None for p in scored] == [False, True, False]
    assert all(
        p.original is not None and (p.found is None or torch.equal(p.found, p.original))
        for p in scored
    )
    alone = pair_up(found, score(found, None), None)
    assert [p.original for p in alone] == [None, None]
    assert grid(alone).height < grid(scored).height


def test_what_is_no_picture_is_refused() -> None:
    for shape in ((2, 22), (2, 5, 8, 8)):
        found = [Reconstruction(0, "dlg", torch.zeros(shape), None, Certificate.FAILED, 1.0)]
        assert pair_up(found, score(found, None), None) == []
    with pytest.raises(LeakauditError, match="at least one image"):
        grid([])
    with pytest.raises(LeakauditError, match="at least one image"):
        grid([Pair("node 0", None, None, None, "failed")])
    with pytest.raises(LeakauditError, match="1 or 3"):
        grid([Pair("node 0", torch.zeros(22), None, None, "failed")])


@pytest.mark.parametrize(
    ("labels", "cell"),
    [
        ([0, 1, 2, 3], "4 of 4 right"),
        ([1, 0, 3, 2], "0 of 4 right, 4 of 4 as a set"),
        ([1, 0, 3, 9], "0 of 4 right, 3 of 4 as a set"),
        ([0, 1, 3, 9], "2 of 4 right, 3 of 4 as a set"),
    ],
)
def test_labels_are_scored_in_order_and_as_a_set(labels: list[int], cell: str) -> None:
    task = TaskSpec("mlp", {"hidden": 4}, shape=(1, 4, 4), classes=10)
    x = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    owners = torch.zeros(4, dtype=torch.int64)
    truth = Truth("", task, x, torch.arange(4), owners, torch.arange(4), x[:0])
    found = Reconstruction(0, "exact", x, torch.tensor(labels), Certificate.APPROXIMATE, 0.0)
    (measured,) = score(found, truth)
    assert measured.labels_found is not None
    scored = records.finding(0, labels=[float(one) for one in labels], batch=4)
    scored["scores"] |= {
        "labels_found": measured.labels_found,
        "label_correct": column(*(measured.label_correct or ())),
        "matched": list(measured.matched),
    }
    headings, (row,) = wording.table([fitted(scored, Finding)])
    assert row[headings.index("label")] == cell


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<b>", "&lt;b&gt;"),
        ("&lt;", "&amp;lt;"),
        ("me@home", "me(at)home"),
        ("a*b_c", r"a\*b\_c"),
        ("www.a", r"www\.a"),
        ("- a", r"\- a"),
        ("1. a", r"1\. a"),
    ],
)
def test_characters_of_markup_are_escaped(text: str, written: str) -> None:
    """Also where our own renderer, which allows no HTML, would print them as they are."""
    assert escape(text) == written
