"""Live panels depend on one promise of ipykernel: it handles a widget's message while a cell runs.

Runs against the ipykernel that is installed; `tests/contracts/ipykernels.sh 7.0.1 7.3.0` runs it against
others, each in a directory of its own that IPYKERNEL_SITE names.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

REPOSITORY = Path(__file__).resolve().parent.parent.parent

# Widgets are made and shown by the main shell, as in a notebook. Each says when and where it heard something.
SET_UP = """
import json, threading, time
import ipykernel
from workbench.panels._core.jupyter import unblock
from workbench.panels._core.live import LivePanel
heard = {}
class Panel(LivePanel):
    _esm = "export default { render() {} }"
    def snapshot(self): return {}, []
    def changes(self): return None
    def on_message(self, kind, content):
        heard[kind] = (time.monotonic(), threading.current_thread() is threading.main_thread())
panel, plain = Panel(), Panel()
plain.comm.__dict__.pop("_reply_subshell_for", None)       # as ipykernel would have it
for one in (panel, plain):
    one.send({"kind": "shown"})
print(json.dumps([ipykernel.__version__, panel.model_id, plain.model_id]))
"""
BLOCK = """
import json, time
began = time.monotonic()
while "panel" not in heard and time.monotonic() < began + 60.0:  # pure Python, and the main shell is blocked
    pass
print(json.dumps([began, time.monotonic(), heard]))
"""


def outputs(client: BlockingKernelClient, message: str) -> list[dict[str, Any]]:
    """The JSON lines that an execution printed, once it has ended."""
    text, deadline = "", time.monotonic() + 120
    while time.monotonic() < deadline:
        got = client.get_iopub_msg(timeout=240)
        if got["parent_header"].get("msg_id") != message:
            continue
        if got["msg_type"] == "stream":
            text += got["content"]["text"]
        elif got["msg_type"] == "error":
            pytest.fail("\n".join(got["content"]["traceback"]))
        elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
            return [json.loads(line) for line in text.splitlines()]
    pytest.fail("the kernel did not finish")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[BlockingKernelClient]:
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    paths = [os.environ.get("IPYKERNEL_SITE", ""), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=240)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def subshell(client: BlockingKernelClient) -> str:
    """A new subshell, as a front end asks for it."""
    features = client.kernel_info(reply=True, timeout=240)["content"].get("supported_features", [])
    if "kernel subshells" not in features:
        why = "this ipykernel has no subshells: live panels take input when the cell ends"
        (pytest.skip if os.environ.get("IPYKERNEL_SITE") else pytest.fail)(why)
    message = client.session.msg("create_subshell_request", {})
    client.control_channel.send(message)
    reply = client.get_control_msg(timeout=240)
    assert reply["content"]["status"] == "ok"
    return str(reply["content"]["subshell_id"])


def report_it(client: BlockingKernelClient, comm: str, kind: str, shell: str) -> None:
    content = {"comm_id": comm, "data": {"method": "custom", "content": {"kind": kind, "n": 1}}}
    message = client.session.msg("comm_msg", content)
    message["header"]["subshell_id"] = shell
    client.shell_channel.send(message)


def test_a_panel_receives_messages_while_a_cell_blocks_the_main_shell(client: BlockingKernelClient) -> None:
    shell = subshell(client)
    ((version, panel, plain),) = outputs(client, client.execute(SET_UP))
    cell = client.execute(BLOCK)
    time.sleep(0.5)
    report_it(client, panel, "panel", shell)
    report_it(client, plain, "plain", shell)
    ((began_s, ended_s, heard),) = outputs(client, cell)
    assert "panel" in heard, (
        f"ipykernel {version} kept a panel's message until the cell ended: see "
        "workbench.panels._core.jupyter.unblock"
    )
    at_s, on_main_thread = heard["panel"]
    assert began_s < at_s < ended_s
    assert not on_main_thread
    print(
        f"ipykernel {version}: heard {at_s - began_s:.2f} s into the cell; without the work-round: "
        f"{'plain' in heard}"
    )
