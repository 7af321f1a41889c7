"""A private file is not readable by others, under any umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workbench.device.journal import Journal
from workbench.logbook.store import Store

BOOT = Path("/proc/sys/kernel/random/boot_id")
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of files are POSIX's")

WORK = """
import os, sys
os.umask(0)  # files may be read and written by anybody, if it goes by that
import workbench
from workbench.errors import WorkbenchError
from workbench.measurement import session
workbench.simulate("V100")
with workbench.measure("secret") as result:
    pass
from workbench.logbook.store import Store
Store().save(result.measurement)
gpu = workbench.open_device(0)
gpu.apply(power_limit_w=200.0)
job = workbench.RecurringJob("secret", [32, 64], gpus=0)
job.next()
assert (session.current().recorder._path.stat().st_mode & 0o777) == 0o600
from workbench.simulation import machine
assert (machine.attached().state.path.stat().st_mode & 0o777) == 0o600
print("written", flush=True)
sys.stdin.read()
"""


def test_a_new_home_and_all_that_a_session_writes_is_the_users_own(tmp_path: Path) -> None:
    home, temporary = tmp_path / "data" / "home", tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    environment = {**os.environ, "WORKBENCH_HOME": str(home), "TMPDIR": str(temporary)}
    work = subprocess.Popen(
        [sys.executable, "-c", WORK], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert work.stdout is not None
    try:
        assert work.stdout.readline() == b"written\n"
        assert home.stat().st_mode & 0o777 == 0o700
        names = {path.relative_to(home).parts[0] for path in home.rglob("*") if path.is_file()}
        assert {"measurements", "journals", "recurring.db"} <= names
        outside = [path for path in temporary.rglob("*") if path.is_file()]
        for path in outside:  # locks, which other users must be able to take, and which hold one byte at most
            lock = path.name.startswith("gpu-energy-workbench-GPU-") and path.suffix == ".lock"
            assert path.stat().st_mode & 0o077 == 0 or (lock and path.stat().st_size <= 1)
    finally:
        work.communicate(timeout=120)


def test_the_home_in_the_temporary_directory_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        store = Store()
    finally:
        os.umask(before)
    assert store.directory.parent == tmp_path
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert str(store.directory) in store.problem


@pytest.mark.skipif(not BOOT.exists(), reason="only Linux names a start of the machine")
def test_a_journal_names_its_host_by_boot_and_gpu() -> None:
    here = {"uuid": "GPU-1", "name": "A100", "pid": 1, "started": "1", "before_w": 400.0, "simulated": ""}
    journal = Journal(**here, host="another-name", boot_id=BOOT.read_text().strip())  # type: ignore[arg-type]
    assert journal.of_this_host  # a container's host name changes with every start
    assert journal.path.name == "GPU-1.json"
    elsewhere = Journal(**here, host="another-name", boot_id="another boot")  # type: ignore[arg-type]
    assert not elsewhere.of_this_host


def test_a_pipe_or_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "tags" / "a1"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        Store(tmp_path).tag("a1", "whole")
        assert os.read(reader, 100) == b"whole"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(pipe.parent.iterdir()) == [pipe]


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    for name in ("elsewhere", "tags"):
        (tmp_path / name).mkdir()
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "tags" / "a1"
    link.symlink_to(target)
    for content in ("made", "replaced"):
        Store(tmp_path).tag("a1", content)
        assert link.is_symlink()
        assert target.read_text() == content
    assert list(target.parent.iterdir()) == [target]
