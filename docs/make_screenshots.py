"""Draws docs/images/report.png: the top of a run's report, by Chromium without a window.

neaptide run examples/quickstart.toml && python docs/make_screenshots.py runs/quickstart
"""
# ruff: noqa: INP001 - a script beside the pages, not a package

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from neaptide_verbs.report.reading import read_run
from neaptide_verbs.report.single import run_page

IMAGE = Path(__file__).parent / "images" / "report.png"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def draw(run: Path, image: Path, *, width: int = 1280, height: int = 1000) -> None:
    """Write a screenshot of the report of `run`; SystemExit where no browser is installed."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        sys.exit(f"none of {', '.join(_BROWSERS)} is installed; on Debian: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(run_page(read_run(run)), encoding="utf-8")
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--blink-settings=preferredColorScheme=1",  # light
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={image.resolve()}",
        )
        subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True)  # noqa: S603 - a browser, a page of our own


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004 - the script and a run
        sys.exit(f"usage: {sys.argv[0]} RUN")
    IMAGE.parent.mkdir(exist_ok=True)
    draw(Path(sys.argv[1]), IMAGE)
