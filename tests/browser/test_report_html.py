"""The HTML report in a real browser: nothing is requested, nothing runs, nothing overflows, and the pictures are right.

Skipped where playwright or a chromium is not there: `pip install playwright axe-playwright-python`, and the distribution's chromium
(or LEAKAUDIT_CHROMIUM names one).
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, call-overload, index, operator, union-attr"

from __future__ import annotations

import copy
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.judging.gate import judge, record
from leakaudit.judging.gate.config import Budget, Check, Gate
from leakaudit.reporting.rendering import gallery
from leakaudit.reporting.results import model, record_file
from leakaudit.traces import trace_file

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHROMIUM = (
    os.environ.get("LEAKAUDIT_CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
)
SWEEP = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "faces"
model = "mlp"
[scenario.set]
hidden = 16
[sweep]
attacks = ["analytic", "labels"]
seeds = 2
nodes = [0]
[sweep.over.dpsgd]
sigma = [0.0, 0.01]
"""
KINDS = ("faces", "audit", "gate", "sweep", "bound", "claims")  # all six kinds of page
HOSTILE = "<script>document.title='ran'</script>\"'><img src=http://e.org/x onerror=\"document.title='ran'\"> </style></svg>"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 720}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 720}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "dark phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium was found; LEAKAUDIT_CHROMIUM names one")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def folder(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An attack on real faces, and pages of it, with hostile names, as an audit, and with 2000 findings; and a gate."""
    place = tmp_path_factory.mktemp("browser")
    command = [
        "record",
        "fedsgd",
        "--nodes",
        "6",
        "--rounds",
        "3",
        "--samples",
        "2",
        "--model",
        "mlp",
        "--set",
        "hidden=32",
        "-q",
    ]
    assert main([*command, "-o", str(place / "trace.pt")]) == 0
    assert main(["attack", str(place / "trace.pt"), "-o", str(place / "out"), "-q"]) == 0
    of = record_file.read(place / "out/results.json")
    shown = gallery.with_pictures(of, place / "out")
    pages = {
        "faces": shown,
        "hostile": hostile(shown),
        "audit": audited(shown),
        "many": many(of),
        "gate": gated(),
    }
    for name, one in pages.items():
        (place / f"{name}.html").write_text(registry.get("reports", "html")(one))
    (place / "plan.toml").write_text(SWEEP)
    assert main(["sweep", str(place / "plan.toml"), "-o", str(place / "swept"), "-q"]) == 0
    for command in (
        ["report", str(place / "swept"), "-o", str(place / "sweep.html")],
        ["bound", str(place / "trace.pt"), "-o", str(place / "bound.html")],
        ["reproduce", "--claims", "--row", "2", "--row", "3", "-o", str(place / "claims.html")],
    ):
        assert main([*command, "-q"]) == 0
    return place


def hostile(of: dict[str, Any]) -> dict[str, Any]:
    """The record with names that try to be markup."""
    out = copy.deepcopy(of)
    out["summary"] = f"Worst case: {HOSTILE}; and more"
    out["trace"] |= {"protocol": HOSTILE, "data": HOSTILE, "model": HOSTILE}
    out["findings"][0] |= {"adversary": HOSTILE, "attack": HOSTILE, "note": HOSTILE}
    out["gallery"][0] |= {"attack": HOSTILE, "adversary": HOSTILE}
    out["provenance"]["command"] = HOSTILE
    return out


def audited(of: dict[str, Any]) -> dict[str, Any]:
    """The record with curves and verdicts of an audit."""
    promise = {"name": "Theorem 1", "epsilon": 10.0, "delta": 1e-5, "mu": None}
    verdicts, curves = [], []
    for epsilon, hits in ((1.0, 2), (10.0, 18), ("inf", 20)):
        figures = {"hits": hits, "trials": 20, "kappa": 0.1, "ceiling": 0.4}
        said = {
            "says": "measured",
            "power": "",
            "p": 0.5,
            "level": 0.01,
            "needs": None,
            "figures": figures,
            "promise": promise,
        }
        word = {2: "NOT_REFUTED", 18: "REFUTED", 20: "UNCLAIMED"}[hits]
        cell = {"epsilon": epsilon, "adversary": "eavesdropper", "attack": "auto"}
        verdicts.append({**cell, "node": 1, "test": "identification", "verdict": word, **said})
        curves.append(
            {
                **cell,
                "psnr": {
                    "images": 4.0,
                    "best": hits * 3.0,
                    "median": hits * 1.5,
                    "mean": hits * 1.0,
                },
            }
        )
    view = {
        "node": 1,
        "adversary": "eavesdropper",
        "mu": 1.0,
        "epsilon": 4.0,
        "exact": 4.0,
        "verdict": "REFUTED",
        "why": "why",
        "claim": None,
    }
    grid = [{"epsilon": 1.0, "constants": {}, "views": [view]}]
    tested = {
        "alpha": 0.01,
        "delta": 1e-5,
        "grid": grid,
        "curves": curves,
        "verdicts": verdicts,
        "figure": None,
    }
    return {**of, "kind": "audit", "audit": tested}


def gated() -> dict[str, Any]:
    """A gate that two adversaries make fail, whose recording is said to contradict what it declares."""
    scenario = {
        "victim": "dpsgd",
        "nodes": 5,
        "graph": "ring",
        "rounds": 3,
        "model": "logistic",
        "set": {"order": "adapt"},
    }
    check = Check(
        "ring",
        scenario=scenario,
        adversaries=("eavesdropper", "node:1"),
        attacks=("exact", "labels"),
    )
    budgets = (Budget("exact", 0.0), Budget("psnr", 300.0), Budget("gain", 300.0))
    judged = judge.run(Gate((check,), budgets, seeds=2, baseline=""), None)
    made = model.plain(record.build(judged))
    assert made["gate"]["code"] == 1
    lint = next(r for r in made["gate"]["rules"] if r["kind"] == "lint")
    lint |= {
        "status": "CONTRADICTED",
        "measure": "P20",
        "says": f"insufficient noise, REFUTED: {HOSTILE}",
    }
    record_file.validate(made)
    return made


def many(of: dict[str, Any]) -> dict[str, Any]:
    some = [
        {**of["findings"][k % len(of["findings"])], "attack": f"attack{k % 7}"} for k in range(2000)
    ]
    return {**of, "findings": some}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", [*KINDS, "hostile", "many"])
def test_a_page_asks_for_nothing_runs_nothing_and_fits(
    browser: Any, folder: Path, name: str, look: str
) -> None:
    context = browser.new_context(**LOOKS[look])
    page, requests, said = context.new_page(), [], []
    page.on("request", lambda r: requests.append(r.url))
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("dialog", lambda d: said.append(d.message))
    page.goto(f"file://{folder}/{name}.html")
    page.wait_for_load_state("networkidle")
    assert [r for r in requests if not r.startswith("data:image/png")] == [
        f"file://{folder}/{name}.html"
    ]
    assert said == []
    assert page.title().startswith("leakaudit: ")
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    wide = "!e.closest('.scroll, svg') && e.getBoundingClientRect().right > innerWidth + 1"
    assert (
        page.evaluate(
            f"[...document.querySelectorAll('body *')].filter(e => {wide}).map(e => e.outerHTML.slice(0, 80))"
        )
        == []
    )
    context.close()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", KINDS)
def test_the_first_screen_says_what_to_whom_how_sure_and_what_to_do(
    browser: Any, folder: Path, name: str, look: str
) -> None:
    context = browser.new_context(**LOOKS[look])
    page = context.new_page()
    page.goto(f"file://{folder}/{name}.html")
    height = page.viewport_size["height"]
    parts = ["h1.verdict", ".sure", ".badge", ".todo li:last-child", ".facts-first dd"]
    if name in ("faces", "audit", "gate", "bound"):
        parts.append(".shown svg")
    if name == "faces":
        parts += [".evidence img >> nth=0", ".evidence img >> nth=1"]
    for part in parts:
        box = page.locator(part).first.bounding_box()
        assert box["height"] > 5, part
        assert box["y"] + box["height"] <= height, part
    assert "who" in page.locator(".first").inner_text().lower() or name == "claims"
    context.close()


def test_a_page_works_without_its_script(browser: Any, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{folder}/faces.html")
    assert page.locator("input").count() == 0
    assert page.locator("figure.pair").first.is_visible()
    assert page.locator("#checks tbody tr").first.is_visible()
    context.close()


def test_rows_are_sorted_and_filtered(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"file://{folder}/bound.html")
    head = page.locator("#views th", has_text="node")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    nodes = page.locator("#views tbody tr td:nth-child(2)")
    values = [int(nodes.nth(k).inner_text()) for k in range(nodes.count())]
    assert values == sorted(values)
    assert len(set(values)) > 1
    head.locator("button").click()
    assert nodes.first.inner_text() == str(max(values))
    page.locator("input.filter").fill("Curious")
    rows = page.locator("#views tbody tr:visible")
    assert 0 < rows.count() < len(values)
    assert all("Curious node" in rows.nth(k).inner_text() for k in range(rows.count()))
    page.close()


def test_the_rounds_of_a_network_are_replayed(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"file://{folder}/faces.html")
    nodes = page.locator(".first circle.node.s5")
    assert nodes.count() == 6
    slider = page.locator(".rounds input")
    slider.fill("0")
    assert nodes.count() == 0
    assert "before the first round" in page.locator(".rounds").inner_text()
    slider.fill("3")
    assert nodes.count() == 6
    page.close()


def test_images_are_enlarged_by_keyboard_and_mouse(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"file://{folder}/faces.html")
    image = page.locator("figure.evidence img").first
    image.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog.zoom")
    assert dialog.is_visible()
    assert dialog.locator("img").first.bounding_box()["width"] > image.bounding_box()["width"]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.locator("figure.pair img").first.click()
    assert dialog.is_visible()
    page.close()


def test_no_node_is_red_under_an_undecided_headline(browser: Any, folder: Path) -> None:
    """An audit whose noise-free point leaks everything, and whose verdicts are undecided."""
    of = json.loads((folder / "out/results.json").read_text())
    made = audited(gallery.with_pictures(of, folder / "out"))
    for one in made["audit"]["verdicts"]:
        one["verdict"] = "INCONCLUSIVE"
    file = folder / "undecided.html"
    file.write_text(registry.get("reports", "html")(made))
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"file://{file}")
    assert page.locator(".badge").inner_text() == "INCONCLUSIVE"
    assert page.locator(".first circle.node").count() == 7
    assert page.locator(".first .s5, .first .s4, .first .s3").count() == 0
    page.close()


@pytest.mark.parametrize(
    ("name", "look"),
    [
        *((name, look) for name in (*KINDS, "hostile") for look in LOOKS),
        ("many", "light"),
        ("many", "dark"),
    ],
)
def test_axe_finds_no_violation(browser: Any, folder: Path, name: str, look: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    context = browser.new_context(bypass_csp=True, **LOOKS[look])  # axe itself is a script
    page = context.new_page()
    page.goto(f"file://{folder}/{name}.html")
    found = axe.Axe().run(page).response
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found["violations"]] == []
    assert {p["id"] for p in found["passes"]} >= {"color-contrast", "document-title"}
    context.close()


def test_the_pictures_on_the_screen_are_the_originals_and_what_was_reconstructed(
    browser: Any, folder: Path
) -> None:
    truth, of = (
        trace_file.load_truth(folder / "trace.truth.pt"),
        record_file.read(folder / "out/results.json"),
    )
    found = {
        f["node"]: (f, r)
        for f, r in zip(
            of["findings"], record_file.load_reconstructions(of, folder / "out"), strict=True
        )
    }
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"file://{folder}/faces.html")
    shown = page.locator("figure.pair img")
    assert shown.count() == 24
    assert page.locator("figure.evidence img").count() == 2
    for k in range(shown.count()):
        kind, record, node = _label(shown.nth(k).get_attribute("alt"))
        finding, one = found[node]
        source = (
            truth.of(node)[0][record]
            if kind == "original"
            else one.x[finding["scores"]["matched"][record]]
        )
        wanted = (source[0] * 255).round().to(torch.int64).numpy()
        assert np.abs(_seen(shown.nth(k).screenshot(), 25) - wanted).max() <= 2, (
            kind,
            record,
            node,
        )
    page.close()


def _label(alt: str) -> tuple[str, int, int]:
    kind, rest = alt.split(", record ")
    record, node = rest.split(" of node ")
    return kind, int(record) - 1, int(node)


def _seen(png: bytes, side: int) -> np.ndarray:
    """Gray values at the middle of every pixel of an enlarged image with a border of one pixel."""
    image = np.asarray(Image.open(io.BytesIO(png)).convert("L")).astype(np.int64)[1:-1, 1:-1]
    at = ((np.arange(side) + 0.5) * image.shape[0] / side).astype(int)
    return image[np.ix_(at, at)]


def test_print_shows_what_is_folded_and_no_navigation(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 800, "height": 1000}, color_scheme="dark")
    page.goto(f"file://{folder}/many.html")
    folded = page.locator("details:not([open]) td").first
    assert not folded.is_visible()
    page.emulate_media(media="print")
    assert folded.bounding_box()["height"] > 0
    assert not page.locator("nav").is_visible()
    assert (
        page.evaluate("getComputedStyle(document.body).color") == "rgb(31, 35, 40)"
    )  # dark ink on paper, whatever the screen had
    page.emulate_media(media=None)
    page.close()
    page = browser.new_page()
    page.goto(f"file://{folder}/faces.html")
    assert page.pdf(format="A4").startswith(b"%PDF-")
    page.close()


def test_the_network_of_a_gate_is_drawn_with_the_adversary_marked(
    browser: Any, folder: Path
) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"file://{folder}/gate.html")
    figures = page.locator("main figure.network")
    assert [figures.nth(k).inner_text().strip().splitlines()[-1] for k in range(2)] == [
        "As observed by the adversary eavesdropper.",
        "As observed by the adversary node:1.",
    ]
    marked = page.locator("main figure.network rect.node.own")
    assert marked.count() == 1
    box, ink = marked.bounding_box(), marked.evaluate("e => getComputedStyle(e).fill")
    assert box["width"] > 15
    assert box["x"] + box["width"] <= 1200
    assert ink != page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (
        page.locator("main figure.network").first.locator("circle.node.s5").count() == 5
    )  # bit for bit, without noise
    page.close()


def test_on_a_phone_a_rule_is_read_without_scrolling_sideways(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(f"file://{folder}/gate.html")
    tables = page.locator("#gate table.said")
    assert tables.count() >= 3
    for k in range(tables.count()):
        assert tables.nth(k).evaluate("e => e.scrollWidth <= e.closest('.scroll').clientWidth")
    page.close()


def test_a_page_of_many_findings_is_navigated_by_links(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"file://{folder}/many.html")
    blocks = page.locator("ul.jump a")
    assert blocks.count() == 21
    blocks.nth(20).click()
    assert page.evaluate("location.hash") == "#block-1900"
    page.locator("#block-1900 summary").click()
    assert page.locator("#block-1900 td").first.is_visible()
    page.close()


def test_the_axe_rules_and_looks_are_not_empty(browser: Any, folder: Path) -> None:
    """A page with a fault is found: else the tests above could not fail."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    page = browser.new_page()
    page.set_content(
        '<html lang="en"><title>t</title><main><h1>x</h1><img src="data:,"><p style="color:#ddd;background:#fff">pale</p></main>'
    )
    found = {v["id"] for v in axe.Axe().run(page).response["violations"]}
    assert {"image-alt", "color-contrast"} <= found
    assert json.loads((folder / "out/results.json").read_text())["findings"]
    page.close()
