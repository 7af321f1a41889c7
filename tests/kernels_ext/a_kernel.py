"""A real kernel to run cells in, and what came back of each."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

MEASUREMENT = "application/vnd.gpu-energy-workbench.measurement+json"
TIMEOUT_S = 180


@dataclass
class Ran:
    """The answer of a cell."""

    reply: dict[str, Any]
    outputs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.reply["status"])

    @property
    def text(self) -> str:
        """The printed text."""
        return "".join(content["text"] for kind, content in self.outputs if kind == "stream")

    @property
    def value(self) -> str | None:
        """The text of the cell's own value; None where none was shown."""
        return next(
            (content["data"]["text/plain"] for kind, content in self.outputs if kind == "execute_result"),
            None,
        )

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The bundles of the measurements that were shown."""
        return [
            content["data"]
            for kind, content in self.outputs
            if kind == "display_data" and MEASUREMENT in content["data"]
        ]

    @property
    def report(self) -> dict[str, Any]:
        """The one measurement that was shown, as JSON."""
        (only,) = self.reports
        return dict(only[MEASUREMENT])

    @property
    def error(self) -> str:
        return str(self.reply.get("ename", "")) and f"{self.reply['ename']}: {self.reply['evalue']}"


class Kernel:
    """A running kernel; call it with a cell."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self.client = manager, client

    def __call__(self, cell: str, **options: Any) -> Ran:
        outputs: list[tuple[str, dict[str, Any]]] = []

        def keep(message: dict[str, Any]) -> None:
            outputs.append((message["msg_type"], message["content"]))

        reply = self.client.execute_interactive(cell, output_hook=keep, timeout=TIMEOUT_S, **options)
        return Ran(reply["content"], outputs)

    def interrupted(self, cell: str, after_s: float = 0.4) -> Ran:
        """Run a cell that prints "started" and interrupt it a while later."""
        outputs: list[tuple[str, dict[str, Any]]] = []

        def keep(message: dict[str, Any]) -> None:
            outputs.append((message["msg_type"], message["content"]))
            if message["msg_type"] == "stream" and "started" in message["content"]["text"]:
                group = os.getpgid(self.manager.provisioner.pid)  # as the interrupt button does
                threading.Timer(after_s, os.killpg, (group, signal.SIGINT)).start()

        reply = self.client.execute_interactive(cell, output_hook=keep, timeout=TIMEOUT_S)
        return Ran(reply["content"], outputs)

    def end(self) -> None:
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=False)
        self.client.stop_channels()


def gone(path: Callable[[], bool], timeout_s: float = 240.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while path() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not path()
