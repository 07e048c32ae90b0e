"""Make report.png again: six real faces, attacked; of the page's sections, who listens and the pictures.

`python docs/images/report.py` needs playwright, and a chromium on the path or named by LEAKAUDIT_CHROMIUM.
"""

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from leakaudit.cli import main

RECORD = "record pdmm --nodes 6 --graph rgg --rounds 20 --data faces --model mlp --set hidden=64 --seed 0 -q"
TARGET = Path(__file__).parent / "report.png"
SCALE, WIDTH, COLOURS, MARGIN = (
    1.5,
    1000,
    128,
    16,
)  # pixels a CSS pixel; CSS pixels; of the palette, for a small file; CSS pixels


def photograph(tab: Page, first: str, last: str) -> Image.Image:
    """Return what lies between two elements, both with everything below them that no other element begins."""
    top, bottom = (tab.locator(which).first.bounding_box() for which in (first, last))
    if top is None or bottom is None:
        raise SystemExit(f"the page has no {first} or no {last} any more")
    clip = {"x": 0, "y": top["y"] - MARGIN, "width": WIDTH, "height": bottom["y"] - top["y"]}
    return Image.open(io.BytesIO(tab.screenshot(full_page=True, clip=clip)))


def page(folder: Path) -> Path:
    """Record, attack and render."""
    trace, out, html = folder / "trace.pt", folder / "out", folder / "report.html"
    for command in (
        [*RECORD.split(), "-o", str(trace)],
        ["attack", str(trace), "-o", str(out), "-q"],
    ):
        if code := main(command):
            raise SystemExit(code)
    main(["report", str(out), "-o", str(html), "-q"])
    return html


def run() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as started:
        chromium = os.environ.get("LEAKAUDIT_CHROMIUM") or shutil.which("chromium")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(
            viewport={"width": WIDTH, "height": 900},
            color_scheme="light",
            device_scale_factor=SCALE,
        )
        tab.goto(page(Path(name)).as_uri())
        parts = [
            photograph(tab, "body > header, header", "#threat h3"),
            photograph(tab, "#pictures", "#who"),
        ]
        browser.close()
    whole = Image.new("RGB", (parts[0].width, sum(p.height for p in parts)), "white")
    for k, part in enumerate(parts):
        whole.paste(part, (0, sum(p.height for p in parts[:k])))
    whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        TARGET, optimize=True
    )
    sys.stdout.write(f"{TARGET}: {TARGET.stat().st_size} bytes, {whole.width} x {whole.height}\n")


if __name__ == "__main__":
    run()
