"""The views' JavaScript as a bundle in wheel and sdist, made by esbuild where Node is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CARRIED = "workbench/panels/static/dist"


class BundleHook(BuildHookInterface):
    """Include the bundle: an sdist's own, else a new one; without Node the sources serve."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # a checkout is read file by file
        root = Path(self.root)
        folder = root / CARRIED
        if not folder.is_dir():
            folder = root / "build" / "js"
            problem = bundle(root / "tools" / "js", folder)
            if problem:
                self.app.display_warning(f"{problem}: the views' sources are packed without a bundle")
                return
        build_data["force_include"][str(folder)] = CARRIED


def bundle(tools: Path, folder: Path) -> str:
    """Fill `folder`; returns what stands against it, "" where nothing does."""
    npm = shutil.which("npm")
    if npm is None:
        return "Node is not here"
    shutil.rmtree(folder, ignore_errors=True)
    commands = [[npm, "run", "--silent", "bundle", "--", str(folder)]]
    if not (tools / "node_modules").is_dir():
        commands.insert(0, [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
    for command in commands:
        done = subprocess.run(command, cwd=tools, capture_output=True, text=True)
        if done.returncode:
            return f"{' '.join(command[1:])}: {done.stderr.strip()[-500:]}"
    return ""
