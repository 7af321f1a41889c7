"""`python -m tools.try_package WHEEL`: the wheel in a new environment, as a user has it.

Imports the package, loads the extension into a kernel, measures a cell on a simulated GPU, and runs the
command; prints how many packages and megabytes that took. Where nothing can be downloaded it says so and
tries nothing (and fails with WORKBENCH_REQUIRE_INSTALL=1).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = r"""
import time, nbformat
from nbclient import NotebookClient
cells = ["%load_ext workbench\n%gpu simulate A100\n%config EnergyMagics.live = False",
         "%%energy tried\nimport time; time.sleep(1)", "workbench.panels.log()"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
done = NotebookClient(book, timeout=120, kernel_name="python3").execute()
shown = " ".join(output.get("data", output).get("text/plain", "") for output in done.cells[1].outputs)
assert "tried" in shown and " J" in shown and "simulated" in shown, shown
print(shown.splitlines()[0])
"""


def main(wheel: Path) -> int:
    """Try a wheel; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        python = place / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
        locked = place / "locked.txt"
        asked = [sys.executable, "-m", "tools.lock", "--parts", "plain"]
        locked.write_text(subprocess.run(asked, check=True, cwd=ROOT, capture_output=True, text=True).stdout)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        if subprocess.run([*pip, "--require-hashes", "--requirement", str(locked)]).returncode:
            print("NOT TRIED: what the wheel needs cannot be installed here")
            return int(os.environ.get("WORKBENCH_REQUIRE_INSTALL") == "1")
        subprocess.run([*pip, "--no-index", str(wheel)], check=True)  # nothing is missing from the lock
        subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", "check"], check=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"WORKBENCH_HOME": str(place / "home"), "IPYTHONDIR": str(place / "ipython"),
                        "PATH": f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"}
        for code in ("import workbench; assert 'site-packages' in workbench.__file__", NOTEBOOK):
            subprocess.run([str(python), "-c", code], check=True, cwd=place, env=environment)
        command = str(python.with_name("workbench"))
        measured = [command, "run", "--simulate", "A100", "--json", "m.json", "--", str(python), "-c", "pass"]
        subprocess.run(measured, check=True, cwd=place, env=environment)
        assert json.loads((place / "m.json").read_text())["simulated"] is True
        subprocess.run([command, "notebooks", "books"], check=True, cwd=place, env=environment,
                       stdout=subprocess.DEVNULL)
        assert len(list((place / "books").glob("*.ipynb"))) > 5
        listed = [str(python), "-m", "pip", "--disable-pip-version-check", "list", "--format=freeze"]
        packages = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
        files = [path for path in (place / "venv").rglob("*") if not path.is_symlink()]
        size = sum(path.stat().st_blocks for path in files) * 512
        count = sum(not each.startswith(("pip=", "setuptools=")) for each in packages)
        print(f"the wheel works: {count} packages, {size / 1e6:.0f} MB with Python's own environment")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
