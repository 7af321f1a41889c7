"""`make test-environments` hides one program and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tools import environments


@pytest.mark.parametrize("missing", environments.HIDDEN)
def test_an_environment_hides_the_programs_of_one_name_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    programs = {name for names in environments.HIDDEN.values() for name in names} | {"git"}
    for folder, content in (("bin", programs), ("other", {"make"})):
        (tmp_path / folder).mkdir()
        for name in content:
            (tmp_path / folder / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), str(tmp_path / "other")]))
    variables = environments.environment(missing, tmp_path / "links")
    found = {name for name in programs | {"make"} if shutil.which(name, path=variables["PATH"])}
    assert found == (programs | {"make"}) - set(environments.HIDDEN[missing])
    if missing in environments.PLACES:
        assert not list(Path(variables[environments.PLACES[missing]]).glob("*/bin"))
    assert environments.environment(None, tmp_path / "all")["PATH"] == os.environ["PATH"]
