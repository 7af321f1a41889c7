"""The Zeus daemon lends the rights that this process has not, behind a Unix socket (`ZEUSD_SOCK_PATH`).

Endpoints as PyPI's `zeus` 0.16 calls them (POST
/gpu/set_power_limit?gpu_ids=0&power_limit_mw=150000&block=true); a token, where it wants one, is in
`ZEUSD_TOKEN`. Standard library only: a watchdog restores through it too.

The daemon numbers the GPUs of the node, NVML those that this process may use. It is used where both have the
same GPUs or `ZEUSD_GPU_ID` gives its numbers, and what it has set must show on our GPU.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from ..clock import Clock
from ..errors import DriverError, NotPermitted

TIMEOUT_S, MOST_BYTES = 5.0, 1 << 20  # of one answer
NODE_GPUS = Path("/proc/driver/nvidia/gpus")  # a directory for each GPU that the kernel driver has
SAME_W, SAME_MHZ = 1.0, 15  # the driver rounds limits; one step of an SM clock
FOLLOW_S, POLL_S = 2.0, 0.02  # how long a clock may take to follow a lock, and the pause between two readings
STEADY = 3  # so many readings in a row count
_ID = "set ZEUSD_GPU_ID to the number that the daemon has for this GPU"
_UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, RecursionError)
_CLOCKS = {"sm_clock_mhz": "gpu", "mem_clock_mhz": "mem"}


def present() -> bool:
    """Whether the environment names a daemon's socket and it is there."""
    path = _path()
    return bool(path) and os.path.exists(path)


def gpu_id(position: int, names: Sequence[str]) -> int:
    """The daemon's number for the GPU at `position` among `names`. Raises NotPermitted for a guess."""
    given = os.environ.get("ZEUSD_GPU_ID", "").strip()
    if given:
        numbers = [part.strip() for part in given.split(",")]
        if len(numbers) != len(names) or not all(number.isascii() and number.isdigit() for number in numbers):
            raise NotPermitted(f"ZEUSD_GPU_ID={given} has to be {len(names)} number(s) with commas between "
                               f"them, one for each GPU that this process can use; {_ID}")
        return int(numbers[position])
    numbered = _discover()
    theirs, node = [name for _, name in numbered], _node_gpus()
    if theirs == list(names) and node in (None, len(names)):
        return numbered[position][0]
    kernel = f", the kernel driver {node}" if node is not None else ""
    raise NotPermitted(f"GPU {position} of this process may be another GPU at the Zeus daemon, and nothing "
                       f"was changed: the daemon at {_path()} has {_listed(theirs)}, this process "
                       f"{_listed(names)}{kernel}; {_ID}")


def set_power_limit(gpu: int, limit_w: float, read_w: Callable[[], float | None]) -> None:
    """Set the power limit of a GPU of the daemon that has to be our GPU, whose limit `read_w` reads.

    Raises:
        NotPermitted: the daemon does not, or its GPU is not ours; nothing was changed.
        DriverError: the limit does not show on our GPU; the message states what became of the other one.
    """
    own_w = read_w()
    if own_w is not None and abs(own_w - limit_w) < SAME_W:
        return  # it is set; a change of another GPU could not be noticed
    earlier_w = _power_limit_w(gpu)
    other = f"GPU {gpu} of the Zeus daemon at {_path()}"
    if own_w is not None and earlier_w is not None and abs(own_w - earlier_w) >= SAME_W:
        raise NotPermitted(f"{other} has a power limit of {earlier_w:g} W and this GPU {own_w:g} W, so it is "
                           f"another GPU, and nothing was changed; {_ID}")
    _post("set_power_limit", gpu, power_limit_mw=round(1000 * limit_w))
    if own_w is None or (shown_w := read_w()) is None or abs(shown_w - own_w) >= SAME_W:
        return  # it has moved; whoever asked compares with what was asked
    left = f"{other} stays at {limit_w:g} W until its owner sets it back"
    if earlier_w is not None:
        try:
            _post("set_power_limit", gpu, power_limit_mw=round(1000 * earlier_w))
            left = f"{other} is back at {earlier_w:g} W"
        except NotPermitted as error:
            left = f"it had {earlier_w:g} W, and {left} ({error})"
    raise DriverError(
        f"{other} took {limit_w:g} W and this GPU still shows {own_w:g} W, so it is another GPU; "
        f"{left}; {_ID}"
    )


def lock_clock(
    gpu: int, knob: str, clock_mhz: int, choices_mhz: Sequence[int], read_mhz: Callable[[], float],
    clock: Clock,
) -> None:
    """Lock a clock of a GPU of the daemon: to one value, until our GPU's clock follows, then as a ceiling.

    Args:
        gpu: The daemon's number.
        knob: "sm_clock_mhz" or "mem_clock_mhz".
        clock_mhz: What to lock it to.
        choices_mhz: Clocks that our GPU takes; one that is at `clock_mhz` already has to follow another.
        read_mhz: Reads our GPU's clock.
        clock: What our GPU is timed by.

    Raises:
        NotPermitted: the daemon does not.
        DriverError: our GPU's clock does not follow; the message states whether the daemon has reset its
            GPU's.
    """
    wanted = [clock_mhz]
    if abs(read_mhz() - clock_mhz) <= SAME_MHZ:
        others = [choice for choice in choices_mhz if abs(choice - clock_mhz) > 2 * SAME_MHZ]
        wanted[:0] = [min(others, key=lambda choice: abs(choice - clock_mhz))] if others else []
    for number, mhz in enumerate(wanted):
        try:
            _post(f"set_{_CLOCKS[knob]}_locked_clocks", gpu, min_clock_mhz=mhz, max_clock_mhz=mhz)
        except NotPermitted as error:
            if not number:
                raise
            raise DriverError(f"{error}; {_given_back(gpu, knob, wanted[0])}") from error
        shown_mhz = _follows(mhz, read_mhz, clock)
        if shown_mhz is not None:
            raise DriverError(
                f"GPU {gpu} of the Zeus daemon at {_path()} was locked at {mhz} MHz and this GPU shows "
                f"{shown_mhz:g} MHz after {FOLLOW_S:g} s, so the lock does not count; "
                f"{_given_back(gpu, knob, mhz)}. Either it is another GPU ({_ID}), or this one is idle, or "
                "slowed by its power limit or heat (lock the clock while it works)"
            )
    low_mhz = min(choices_mhz, default=clock_mhz)
    _post(f"set_{_CLOCKS[knob]}_locked_clocks", gpu, min_clock_mhz=low_mhz, max_clock_mhz=clock_mhz)


def reset_clock(gpu: int, knob: str) -> None:
    """Give a clock back to the driver. Raises NotPermitted where the daemon does not."""
    _post(f"reset_{_CLOCKS[knob]}_locked_clocks", gpu)


def _follows(mhz: int, read_mhz: Callable[[], float], clock: Clock) -> float | None:
    """None when a clock comes to `mhz` and stays there; else the last reading."""
    until_s, steady = clock() + FOLLOW_S, 0
    while True:
        shown_mhz = read_mhz()
        steady = steady + 1 if abs(shown_mhz - mhz) <= SAME_MHZ else 0
        if steady == STEADY:
            return None
        if clock() >= until_s:
            return shown_mhz
        clock.sleep(POLL_S)


def _given_back(gpu: int, knob: str, mhz: int) -> str:
    """Have the daemon reset a clock; what became of it."""
    try:
        reset_clock(gpu, knob)
    except NotPermitted as error:
        return f"GPU {gpu} of the daemon stays locked at {mhz} MHz until its owner resets it ({error})"
    return f"the clock of GPU {gpu} of the daemon was reset"


def _node_gpus() -> int | None:
    """How many GPUs the kernel driver has; None where it does not say."""
    try:
        return len(list(NODE_GPUS.iterdir()))
    except OSError:
        return None


def _listed(names: Sequence[str]) -> str:
    """How many GPUs, and which models."""
    models = ", ".join(dict.fromkeys(names))
    return f"{len(names)} GPU{'' if len(names) == 1 else 's'}" + (f" ({models})" if models else "")


def _path() -> str:
    return os.environ.get("ZEUSD_SOCK_PATH", "")


class _Socket(socket.socket):
    """A Unix socket with one deadline for everything that is read."""

    until_s = math.inf

    def recv_into(self, *arguments: Any) -> int:
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"its answer was not complete after {TIMEOUT_S:g} s")
        self.settimeout(left_s)
        return super().recv_into(*arguments)


def _discover() -> list[tuple[int, str]]:
    """Number and name of each GPU of the daemon. Raises NotPermitted where it does not name them."""
    status, text = _ask("GET", "/discover")
    try:
        if status != 200:
            raise ValueError(f"HTTP {status}")
        return sorted((int(row["id"]), str(row["name"])) for row in json.loads(text)["gpus"])
    except _UNREADABLE as error:
        raise NotPermitted(f"the Zeus daemon at {_path()} does not list its GPUs ({error}); {_ID}") from error


def _power_limit_w(gpu: int) -> float | None:
    """The power limit of a GPU of the daemon; None where the daemon does not report it."""
    status, text = _ask("GET", f"/gpu/get_power_limit?gpu_ids={gpu}")
    try:
        limit_w = float(json.loads(text)[str(gpu)]["power_limit_mw"]) / 1000 if status == 200 else math.nan
    except _UNREADABLE:
        return None
    return limit_w if math.isfinite(limit_w) else None


def _post(what: str, gpu: int, **values: int) -> None:
    status, text = _ask("POST", f"/gpu/{what}?{urlencode({'gpu_ids': gpu, **values, 'block': 'true'})}")
    if status != 200:
        body = "".join(filter(str.isprintable, text))[:200]
        raise NotPermitted(f"the Zeus daemon at {_path()} refused {what} (HTTP {status}): {body}")


def _ask(method: str, request: str) -> tuple[int, str]:
    """The daemon's HTTP status and answer. Raises NotPermitted where it does not answer."""
    path = _path()
    token = os.environ.get("ZEUSD_TOKEN", "").strip()  # of a file, with its end of line
    if not (token.isascii() and token.isprintable()):  # said here: an error of the HTTP library would show it
        raise NotPermitted("ZEUSD_TOKEN is no token: it has line breaks or letters beyond ASCII; set it "
                           "again, or unset ZEUSD_SOCK_PATH")
    connection = http.client.HTTPConnection("localhost")
    try:
        connection.sock = unix = _Socket(socket.AF_UNIX)
        unix.settimeout(TIMEOUT_S)
        unix.connect(path)
        unix.until_s = time.monotonic() + TIMEOUT_S
        connection.request(method, request, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        text = answer.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise OSError(f"its answer is longer than {MOST_BYTES >> 20} MB")
        return answer.status, text.decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        remedy = "start zeusd, or unset ZEUSD_SOCK_PATH"
        raise NotPermitted(f"the Zeus daemon at {path} does not answer ({error}); {remedy}") from error
    finally:
        connection.close()
