"""The site builds without a warning, and its pages need nothing from elsewhere."""

from __future__ import annotations

import html.parser
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pages import DOCS, ROOT

pytest.importorskip("sphinx", reason="the documentation's tools are not installed: pip install '.[docs]'")
for _each in ("myst_nb", "pydata_sphinx_theme", "sphinx_copybutton"):
    pytest.importorskip(_each, reason="the documentation's tools are not installed: pip install '.[docs]'")

pytestmark = pytest.mark.slow


class _Page(html.parser.HTMLParser):
    """A page's links, the files it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in ("script", "img", "iframe") and "src" in given:
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "modulepreload"):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Page]:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-b", "html", "-E", "-W", "--keep-going", "-q", "-d", str(folder / "trees"),
         str(DOCS), str(folder / "html")],
        cwd=ROOT, text=True, capture_output=True, timeout=500, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr.strip()
    return {path: _Page(path.read_text(encoding="utf-8")) for path in sorted((folder / "html").rglob("*.html"))
            if "_static" not in path.parts}


def test_no_internal_link_is_dead(site: dict[Path, _Page]) -> None:
    dead = []
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = found in site and (not parts.fragment or unquote(parts.fragment) in site[found].ids)
            if not there and not (found.is_file() and found not in site):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site: dict[Path, _Page]) -> None:
    for path, page in site.items():
        for each in page.loads:
            parts = urlsplit(each)
            assert parts.scheme in ("", "data"), f"{path.name} loads {each}"
            if not parts.scheme:
                assert (path.parent / unquote(parts.path)).resolve().is_file(), f"{path.name} loads {each}"
