"""Open pages of the gallery in a browser without a network: python look_at_gallery.py CHROMIUM FOLDER

Prints one line of JSON per page. It contains errors, the number of plots, the panel's text, and the text
after its slider moved. A process of its own, because a browser that tests share stays open.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(chromium: str, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        for path in sorted(folder.glob("*.html")):
            wrong: list[str] = []
            page = context.new_page()
            page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            page.on("console", lambda each, wrong=wrong: wrong.append(each.text) if each.type == "error" else None)
            page.on("request", lambda each, wrong=wrong: None if each.url.startswith(("file:", "blob:", "data:"))
                    else wrong.append(each.url))
            page.goto(path.as_uri())
            page.wait_for_selector(".workbench-panel", timeout=60_000)
            page.wait_for_function("() => document.querySelector('.workbench-panel').innerText.length > 80", timeout=60_000)
            page.wait_for_timeout(300)
            found = {"page": path.stem, "plots": page.locator("canvas").count(), "words": page.inner_text(".workbench-panel")}
            if path.stem == "frontier":
                page.locator("input[type=range]").first.focus()
                page.keyboard.press("ArrowLeft")
                page.wait_for_timeout(300)
                found["then"] = page.inner_text(".workbench-panel")
            found["problem"] = page.inner_text(".workbench-problem")
            print(json.dumps({**found, "wrong": wrong}), flush=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
