"""The Zeus daemon: it has the rights that this process has not, and lends them behind a Unix socket (`ZEUSD_SOCK_PATH`).

Its endpoints are those of zeusd as PyPI's `zeus` 0.16 calls them: POST /gpu/set_power_limit?gpu_ids=0&power_limit_mw=150000&block=true and
the like; a token, where it wants one, is in `ZEUSD_TOKEN`. Standard library only: a watchdog restores through it too.
"""

from __future__ import annotations

import http.client
import os
import socket
from urllib.parse import urlencode

from ..errors import NotPermitted

TIMEOUT_S = 5.0


def present() -> bool:
    """Whether the environment names a daemon's socket and it is there."""
    path = os.environ.get("ZEUSD_SOCK_PATH", "")
    return bool(path) and os.path.exists(path)


def set_power_limit(index: int, limit_w: float) -> None:
    """Set the power limit of the GPU with an NVML index. Raises NotPermitted where the daemon does not."""
    _post("set_power_limit", index, power_limit_mw=round(1000 * limit_w))


def lock_clock(index: int, knob: str, clock_mhz: int) -> None:
    """Lock "sm_clock_mhz" or "mem_clock_mhz" of a GPU. Raises NotPermitted where the daemon does not."""
    _post(f"set_{_CLOCKS[knob]}_locked_clocks", index, min_clock_mhz=clock_mhz, max_clock_mhz=clock_mhz)


def reset_clock(index: int, knob: str) -> None:
    """Give a clock back to the driver. Raises NotPermitted where the daemon does not."""
    _post(f"reset_{_CLOCKS[knob]}_locked_clocks", index)


_CLOCKS = {"sm_clock_mhz": "gpu", "mem_clock_mhz": "mem"}


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _post(what: str, index: int, **values: int) -> None:
    path = os.environ.get("ZEUSD_SOCK_PATH", "")
    token = os.environ.get("ZEUSD_TOKEN", "").strip()  # of a file, with its end of line
    if not (token.isascii() and token.isprintable()):  # said here: an error of the HTTP library would show it
        raise NotPermitted("ZEUSD_TOKEN is no token: it has line breaks or letters beyond ASCII; set it anew, or unset ZEUSD_SOCK_PATH")
    connection = _Connection(path)
    try:
        query = urlencode({"gpu_ids": index, **values, "block": "true"})
        connection.request("POST", f"/gpu/{what}?{query}", headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise NotPermitted(f"the Zeus daemon at {path} does not answer ({error}); start zeusd, or unset ZEUSD_SOCK_PATH") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise NotPermitted(f"the Zeus daemon at {path} refused {what} (HTTP {answer.status}): {text.strip()[:200]}")
