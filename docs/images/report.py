"""Make report.png again: a screenshot of the page that `leakaudit demo` writes.

`python docs/images/report.py` needs playwright, and a chromium on the path or named by LEAKAUDIT_CHROMIUM.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from leakaudit.cli import main

TARGET = Path(__file__).parent / "report.png"
SCREEN = {"width": 1280, "height": 720}


def run() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        code = main(["demo", "-o", folder, "-q"])
        if code:
            raise SystemExit(code)
        chromium = os.environ.get("LEAKAUDIT_CHROMIUM") or shutil.which("chromium")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SCREEN, color_scheme="light")
        tab.goto((Path(folder) / "demo" / "report.html").as_uri())
        tab.screenshot(path=str(TARGET))
        browser.close()
    sys.stdout.write(f"{TARGET}: {TARGET.stat().st_size} bytes\n")


if __name__ == "__main__":
    run()
