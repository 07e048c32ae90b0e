"""The viewer in a real browser, with 1,000 runs: nothing is requested from elsewhere, the script agrees with the server, and axe
finds no violation.

Skipped where playwright or a chromium is not there, as test_report_html.py.
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, operator, union-attr"

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from viewed import Viewer, bare, put, rows, viewing

from leakaudit.cli import main
from leakaudit.reporting.viewing.summaries import identifier

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHROMIUM = (
    os.environ.get("LEAKAUDIT_CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
)
HOSTILE = "<script>document.title='ran'</script>\"'><img src=http://e.org/x onerror=\"document.title='ran'\"> </style>"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "dark phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}
RUNS = 1000


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
def folder(browser: Any, recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand runs made from one attack, one of them with malicious names, a sweep in progress, and a broken folder."""
    root = tmp_path_factory.mktemp("viewed")
    assert main(["attack", str(recorded), "-o", str(root / "real"), "-q"]) == 0
    real = json.loads((root / "real/results.json").read_text())
    protocols = ("pdmm", "dpsgd", "fedavg", "gossip")
    for k in range(RUNS - 2):
        made = bare(real)
        made["trace"]["protocol"] = protocols[k % 4]
        made["provenance"]["started"] = (
            f"2026-{k % 11 + 1:02d}-{k % 28 + 1:02d}T{k % 24:02d}:30:00+00:00"
        )
        for finding in made["findings"]:
            finding["adversary"] = ("eavesdropper", "node:1", "node:3")[k % 3]
        put(root / f"group{k % 10}" / f"run{k:04d}", made)
    hostile = bare(real)
    hostile["trace"] |= {"protocol": HOSTILE, "data": HOSTILE, "model": HOSTILE}
    hostile["findings"][0] |= {"adversary": HOSTILE, "attack": HOSTILE}
    put(root / "<img src=x onerror=alert(1)>", hostile)
    (root / "broken").mkdir()
    (root / "broken/results.json").write_text("{")
    (root / "running").mkdir()
    stage = {"what": "attacks", "done": 3, "total": 8}
    now = time.time()
    about = {
        "format": "leakaudit.progress",
        "version": 1,
        "started": now - 60,
        "updated": now + 900,
    }
    (root / "running/progress.json").write_text(json.dumps({**about, "stages": [stage]}))
    return root


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[Viewer]:
    with viewing(folder) as started:
        yield started


@pytest.fixture(scope="module")
def pages(viewer: Viewer) -> dict[str, str]:
    """Addresses of one page of every kind."""
    pair = f"run={identifier('real')}&run={identifier('group1/run0001')}"
    three = f"{pair}&run={identifier('group2/run0002')}"
    return {
        "list": "",
        "filtered": "?protocol=dpsgd&sort=name",
        "nothing": "?q=nothing-like-that",
        "report": f"runs/{identifier('real')}.html",
        "hostile": f"runs/{identifier('<img src=x onerror=alert(1)>')}.html",
        "two": f"compare.html?{pair}",
        "three": f"compare.html?{three}",
        "watch": f"watch/{identifier('running')}.html?pause=1",
        "missing": "runs/0000000000000000.html",
    }


NAMES = ("list", "filtered", "nothing", "report", "hostile", "two", "three", "watch", "missing")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_asks_for_nothing_and_fits(
    browser: Any, viewer: Viewer, pages: dict[str, str], name: str, look: str
) -> None:
    context = browser.new_context(**LOOKS[look])
    page, requests, said = context.new_page(), [], []
    page.on("request", lambda r: requests.append(r.url))
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("dialog", lambda d: said.append(d.message))
    page.goto(viewer.address + pages[name])
    page.wait_for_load_state("networkidle")
    inside = ("data:", viewer.address + pages[name])
    assert [r for r in requests if not r.startswith(inside)] == []
    assert [text for text in said if name != "missing" or "404" not in text] == []
    assert page.title() != "ran"
    if name not in ("report", "hostile"):  # tests/browser/test_report_html.py counts theirs
        own = int(name in ("list", "filtered", "nothing"))
        assert page.evaluate("document.scripts.length") == own
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    context.close()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_no_violation(
    browser: Any, viewer: Viewer, pages: dict[str, str], name: str, look: str
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    context = browser.new_context(bypass_csp=True, **LOOKS[look])  # axe itself is a script
    page = context.new_page()
    page.goto(viewer.address + pages[name])
    if name == "list":  # thousands of equal rows take axe minutes
        page.evaluate(
            "[...document.querySelectorAll('#rows tr')].slice(30).forEach(r => r.remove())"
        )
    found = axe.Axe().run(page).response
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found["violations"]] == []
    assert {p["id"] for p in found["passes"]} >= {"color-contrast", "document-title"}
    context.close()


def shown(page: Any) -> list[str]:
    """The places of the rows that can be seen, in their order."""
    found: list[str] = page.eval_on_selector_all(
        "#rows tr:not([hidden]) input", "e => e.map(one => one.getAttribute('aria-label').slice(8))"
    )
    return found


def same(page: Any, viewer: Viewer) -> None:
    """The script shows the rows that the server answers for the address of the page."""
    query = page.evaluate("location.search")
    assert shown(page) == rows(viewer.get(query).text)


def test_the_script_filters_and_sorts_as_the_server_does(browser: Any, viewer: Viewer) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(viewer.address)
    assert len(shown(page)) == RUNS
    page.get_by_label("Protocol").select_option("dpsgd")
    same(page, viewer)
    assert len(shown(page)) == 250
    assert page.locator("#count").inner_text() == "250 of 1,000 runs"
    page.get_by_label("Adversary").select_option("node:3")
    page.get_by_label("From").fill("2026-03-01")
    page.get_by_label("Order").select_option("oldest")
    same(page, viewer)
    assert 10 < len(shown(page)) < 100
    page.get_by_label("Search").fill("GROUP1 run")
    same(page, viewer)
    for order in ("newest", "name", "worst", "protocol"):
        page.get_by_label("Order").select_option(order)
        if order != "name":  # the walk and the script order "run10" and its like by different rules
            same(page, viewer)
    page.reload()
    assert page.get_by_label("Protocol").input_value() == "dpsgd"
    page.get_by_label("Search").fill("nothing-like-that")
    page.get_by_label("Search").press(
        "Enter"
    )  # the page has some of the runs, so the server filters
    page.get_by_text("No run matches").wait_for()
    page.get_by_role("link", name="Reset").click()
    page.wait_for_load_state()
    assert len(shown(page)) == RUNS
    page.close()


def test_two_runs_are_selected_and_compared(browser: Any, viewer: Viewer) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(viewer.address)
    button = page.locator("#compare")
    assert button.is_disabled()
    page.locator("#rows input").nth(0).check()
    assert button.is_disabled()
    page.locator("#rows input").nth(1).check()
    assert button.inner_text() == "Compare 2 runs"
    button.click()
    page.wait_for_load_state()
    assert page.locator("h1").inner_text() == "2 runs compared"
    page.get_by_role("link", name="All runs").click()
    page.wait_for_load_state()
    assert len(shown(page)) == RUNS
    page.close()


def test_without_scripts_the_form_filters_and_compares(browser: Any, viewer: Viewer) -> None:
    context = browser.new_context(java_script_enabled=False, **LOOKS["light"])
    page = context.new_page()
    page.goto(viewer.address)
    page.get_by_label("Protocol").select_option("gossip")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_load_state()
    assert "protocol=gossip" in page.url
    assert page.locator("#rows tr").count() == 249
    page.locator("#rows input").nth(0).check()
    page.locator("#rows input").nth(1).check()
    page.get_by_role("button", name="Compare selected").click()
    page.wait_for_load_state()
    assert page.locator("h1").inner_text() == "2 runs compared"
    context.close()


def test_a_run_in_progress_is_loaded_again_and_can_be_paused(
    browser: Any, viewer: Viewer, folder: Path
) -> None:
    page = browser.new_page()
    page.goto(viewer.address)
    page.get_by_role("link", name="running").click()
    page.wait_for_load_state()
    assert "3 of 8 attacks" in page.locator("main").inner_text()
    path = folder / "running/progress.json"
    before = path.read_text()
    path.write_text(before.replace('"done": 3', '"done": 7'))
    page.get_by_text("7 of 8 attacks").wait_for(timeout=15_000)
    page.get_by_role("link", name="Pause").click()
    page.get_by_role("link", name="Follow").wait_for()
    path.write_text(before)
    page.wait_for_timeout(4000)
    assert "7 of 8 attacks" in page.locator("main").inner_text()
    page.close()


def test_an_export_is_filtered_and_read_from_files(
    browser: Any, folder: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for name in ("real", "group0/run0000", "group1/run0001", "<img src=x onerror=alert(1)>"):
        shutil.copytree(folder / name, root / name)
    assert main(["view", str(root), "--export", str(tmp_path / "site"), "-q"]) == 0
    page, said = browser.new_page(viewport=LOOKS["light"]["viewport"]), []
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("dialog", lambda d: said.append(d.message))
    page.goto(f"file://{tmp_path}/site/index.html")
    seen = page.locator("#rows tr:not([hidden]) th a")
    assert seen.count() == 4
    page.get_by_label("Protocol").select_option("dpsgd")
    assert seen.all_inner_texts() == ["group1/run0001"]
    seen.first.click()
    page.wait_for_load_state()
    assert page.locator("h1").is_visible()
    page.get_by_role("link", name="All runs").click()
    page.wait_for_load_state()
    assert seen.count() == 4
    assert said == []
    page.close()
