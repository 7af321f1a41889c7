"""The documentation as its sources: links, the way to a newcomer's tasks, sentences, and that the reference is whole."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import gallery_pages
import pytest
import site_parts
from pages import DOCS, ROOT, anchors, links, pages, read, sentences, target

import workbench
from tools.js.messages import SAID, troubles

REPOSITORY_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
TASKS = {  # what a newcomer wants, and the page that has it
    "install": "how-to/install.md", "measure": "how-to/measure-cell.md", "compare": "how-to/compare.md",
    "tune": "how-to/tune.md", "undo": "how-to/apply.md", "callbacks": "how-to/callbacks.md", "rights": "how-to/rights.md",
    "several GPUs": "how-to/distributed.md", "price and CO2": "how-to/price.md", "errors": "explanation/measurement.md",
    "troubleshooting": "how-to/troubleshooting.md", "hardware": "hardware.md", "citation": "cite.md",
}


@pytest.mark.parametrize("page", [*REPOSITORY_PAGES, *pages()], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in links(page):
        found = target(page, link)
        assert found is not None, f"{link} leads nowhere"
        anchor = link.partition("#")[2]
        if anchor and found.suffix == ".md":
            assert anchor in anchors(site_parts.fill(read(found))), f"{link}: no such heading"


def test_files_that_the_code_names_are_there() -> None:
    """`docs/...` in docstrings, comments, notebooks and tools."""
    gone = []
    for folder in ("workbench", "kernels_ext", "benchmarks", "tools", "tests", "notebooks", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".ipynb", ".md") and not {"build", "node_modules"} & set(path.parts):
                text = path.read_text(encoding="utf-8")
                gone += [f"{path}: {name}" for name in re.findall(r"\bdocs/[\w/-]+\.md\b", text)
                         if not (ROOT / name).is_file() and "the old" not in name]
    assert not gone


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {DOCS / "index.md"}
    for page in pages():
        listed |= {found for link in links(page) if (found := target(page, link)) is not None}
    assert [str(page.relative_to(DOCS)) for page in pages() if page not in listed] == []


@pytest.mark.parametrize("task", TASKS)
def test_a_newcomer_finds_a_task_in_two_clicks(task: str) -> None:
    wanted, reached, clicks = DOCS / TASKS[task], {DOCS / "index.md"}, 0
    while wanted not in reached:
        clicks += 1
        assert clicks <= 2
        reached |= {found for page in reached if page.suffix in (".md", ".ipynb")
                    for link in links(page) if (found := target(page, link)) is not None}


@pytest.mark.parametrize(
    "page", [*sorted((DOCS / "how-to").glob("*.md")), *sorted((DOCS / "tutorials").glob("*"))],
    ids=lambda page: f"{page.parent.name}/{page.name}",
)
def test_sentences_are_short(page: Path) -> None:
    long = [each for each in sentences(read(page)) if len(each.split()) > 40]
    assert not long, long


def test_every_public_name_is_documented() -> None:
    documented = site_parts.documented()
    names = {*workbench.__all__}
    for module in site_parts.MODULES:
        names |= {f"{module}.{name}" for name in site_parts.public(module)}
    assert names - documented == set()
    texts = site_parts.error_list()
    for name, error in vars(workbench.errors).items():
        if inspect.isclass(error) and issubclass(error, workbench.WorkbenchError):
            assert f"workbench.errors.{name}" in texts


def test_public_names_have_docstrings() -> None:
    missing = []
    for name in sorted(site_parts.documented() - {"callbacks"}):
        thing: object = workbench
        if name.startswith("callbacks."):
            continue
        for part in name.split("."):
            thing = getattr(thing, part)
        if not callable(thing):
            continue
        missing += [name] * (not inspect.getdoc(thing))
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not member.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(function):
                missing.append(f"{name}.{member}")
    assert missing == []


def test_every_variable_of_the_environment_is_listed() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for folder in ("workbench", "kernels_ext") for path in (ROOT / folder).rglob("*.py")
    )
    used = set(re.findall(r"\b(?:WORKBENCH|ZEUSD)_[A-Z_]+\b", text))
    assert used - site_parts.VARIABLES.keys() == set()


def test_every_stored_column_has_a_meaning() -> None:
    assert re.findall(r"^\| `(\w+)` \| \S+ \|  \|$", site_parts.store(), flags=re.MULTILINE) == []


@pytest.mark.parametrize("name", ["api", "command-line", "errors", "gallery", "magics", "store", "variables"])
def test_a_part_that_is_made_from_the_code_is_on_a_page(name: str) -> None:
    assert any(name in site_parts.MARKER.findall(read(page)) for page in DOCS.glob("*/*.md"))
    assert len(site_parts.made(name)) > 200


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_tutorial_is_its_notebook_with_outputs(path: Path) -> None:
    copy = DOCS / "tutorials" / path.name
    of_notebook, of_copy = (json.loads(each.read_text(encoding="utf-8"))["cells"] for each in (path, copy))
    again = f"docs/tutorials/{path.name} is old: python -m tools.tutorials {path.stem[:2]}"
    assert [(c["cell_type"], "".join(c["source"])) for c in of_copy] == [
        (c["cell_type"], "".join(c["source"])) for c in of_notebook
    ], again
    outputs = [output for cell in of_copy for output in cell.get("outputs", [])]
    assert len(outputs) >= 3
    assert not [each for each in outputs if each["output_type"] == "error"]
    assert copy.stat().st_size < 400_000
    text = copy.read_text(encoding="utf-8")
    assert "/home/" not in text
    assert "/root/" not in text
    assert not re.search(r"https?://(?!127\.0\.0\.1|localhost|doi\.org|arxiv\.org|www\.w3\.org)[\w.-]+\.(?:js|css)\b", text)


@pytest.mark.parametrize("name", gallery_pages.PANELS)
def test_a_gallery_recording_matches_the_current_panel_messages(name: str) -> None:
    """Views accept only the declared messages; a recording that differs has to be made again."""
    recording = json.loads((gallery_pages.DATA / f"{name}.json").read_text(encoding="utf-8"))
    greeting, _ = SAID[recording["panel"]]
    content = {key: value for key, value in recording["content"].items() if key not in ("state", "problem")}
    wrong = [each for each in troubles(content, greeting, name) if ".kind is not" not in each]
    assert not wrong, f"python -m tools.gallery {name}: {wrong}"


@pytest.mark.parametrize("name", gallery_pages.PANELS)
def test_a_page_of_the_gallery_needs_nothing_else(name: str) -> None:
    page = gallery_pages.page(name)
    assert (DOCS / "images" / gallery_pages.PANELS[name][3]).is_file()
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", page.split("<script>")[0] + page[-4000:])
    assert page.count("</script>") == 3
    assert len(page) < 2_000_000
