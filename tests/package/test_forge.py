"""Files that public forges read: sound YAML, the interpreters and kernels that are declared, no registry's host."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import workbench
from workbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
YAML = sorted(
    path for pattern in (".github/**/*.yml", ".pre-commit-config.yaml", "CITATION.cff") for path in ROOT.glob(pattern)
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOBS = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_file_is_sound_and_names_no_registry(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    assert not re.search(r"pypi|pythonhosted|npmjs|anaconda\.org|index-url", path.read_text(encoding="utf-8"))


def test_the_matrix_has_the_interpreters_and_kernels_that_are_declared() -> None:
    declared = {each.rpartition(":: ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)}
    assert set(JOBS["pythons"]["strategy"]["matrix"]["python"]) == declared
    assert f">={min(declared, key=lambda each: int(each[2:]))}" == PROJECT["requires-python"]
    (kernel,) = (each for each in PROJECT["dependencies"] if each.startswith("ipykernel"))
    floor = re.search(r">=([\d.]+)", kernel)[1]
    assert f"ipykernel=={floor}.*" in JOBS["kernels"]["strategy"]["matrix"]["kernel"]


def test_the_extras_of_the_matrix_are_there() -> None:
    asked = {extra for each in JOBS["pythons"]["strategy"]["matrix"]["extras"] for extra in each.split(",")}
    assert asked <= set(PROJECT["optional-dependencies"])


def test_the_files_that_jobs_run_exist() -> None:
    for job in JOBS.values():
        for step in job["steps"]:
            for path in re.findall(r"(?<=\s)(?:tests/\S+|\.ci/\S+)", f" {step.get('run', '')}"):
                assert (ROOT / path).exists(), path
    for hook in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]:
        for module in re.findall(r"-m (tools\.\w+)", hook["entry"]):
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()


def test_an_issue_form_asks_for_what_its_form_can_show() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.stem == "config":
            continue
        assert {"name", "description", "body"} == set(form)
        ids = [each["id"] for each in form["body"]]
        assert len(ids) == len(set(ids))
        assert {each["type"] for each in form["body"]} <= {"textarea", "input", "dropdown", "checkboxes"}
        assert all(each["attributes"]["label"] for each in form["body"])


def test_the_citation_has_the_packages_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == workbench.__version__
    assert citation["license"] == PROJECT["license"]
    assert "Workbench" in citation["authors"][0]["name"]


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CODE_OF_CONDUCT.md", "docs/supported.md"])
def test_a_link_of_a_document_leads_to_a_file(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert link.startswith("https://") or (ROOT / name).parent.joinpath(link).exists(), link
    for test in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / test).exists(), test


def test_the_table_of_json_names_every_command_that_reports(capsys: pytest.CaptureFixture[str]) -> None:
    def help_of(*command: str) -> str:
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        return capsys.readouterr().out

    text = (ROOT / "docs/supported.md").read_text(encoding="utf-8")
    commands = re.findall(r"^ {2,4}([a-z][a-z-]+)(?=\s)", help_of(), re.MULTILINE)
    reporting = [name for name in commands if "--json" in help_of(name)]
    assert reporting
    for name in reporting:
        assert re.search(rf"^\|[^|]*`{name}`", text, re.MULTILINE), name
