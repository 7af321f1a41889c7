"""Binary logs: offline runs of W&B, event files of TensorBoard. Standard library only.

Layouts: wandb_internal.proto and LevelDB's log format; TensorFlow's event.proto, summary.proto and TFRecord;
the encoding of Protocol Buffers. Check sums are not looked at: a cut-off file is read as far as it goes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

Metric = tuple[float, str, Any]  # seconds since 1970, name, value
WANDB = b":W&B"
BLOCK, HEAD = 32768, 7


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message: integers, bytes, or the bytes of a fixed number. Ends where it is cut
    off.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(message, at)
        if kind not in (1, 2, 5) or at + size > len(message):
            return
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return 0, len(message)


def wandb_metrics(raw: bytes) -> Iterator[Metric]:
    """System metrics of an offline run of W&B: records of LevelDB's log format, each a Record; its field 7 is
    StatsRecord (2 timestamp, 3 items of 1 key, 16 value as JSON).
    """
    for record in _leveldb(raw):
        for number, stats in _fields(record):
            if number != 7 or not isinstance(stats, bytes):
                continue
            parts = list(_fields(stats))
            stamps = [dict(_fields(value)) for name, value in parts if name == 2 and isinstance(value, bytes)]
            if not stamps:
                continue
            at_s = stamps[0].get(1, 0) + stamps[0].get(2, 0) / 1e9
            items = [dict(_fields(value)) for name, value in parts if name == 3 and isinstance(value, bytes)]
            for item in items:
                yield at_s, _utf8(item.get(1)), _utf8(item.get(16))


def _utf8(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _leveldb(raw: bytes) -> Iterator[bytes]:
    """Records of a log; what is cut off or of no known kind ends it."""
    at, begun = HEAD, b""
    while at + HEAD <= len(raw):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", raw, at)
        body = raw[at + HEAD : at + HEAD + size]
        if kind not in (1, 2, 3, 4) or len(body) < size:
            return
        at += HEAD + size
        begun = body if kind in (1, 2) else begun + body
        if kind in (1, 4):
            yield begun


def is_event_file(raw: bytes) -> bool:
    """Whether this is a TFRecord file: its first record is the version of an event file."""
    if len(raw) < 16:
        return False
    (size,) = struct.unpack_from("<Q", raw)
    return size < 100 and b"brain.Event:" in raw[12 : 12 + size]


def tensorboard_scalars(raw: bytes) -> Iterator[Metric]:
    """Scalars of an event file: Event has 1 wall_time, 5 summary; that has values (1) of 1 tag and 2
    simple_value or 8 tensor (5 float_val, 4 tensor_content).
    """
    at = 0
    while at + 12 <= len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        event = raw[at + 12 : at + 12 + size]
        if len(event) < size:
            return
        at += 16 + size
        fields = list(_fields(event))
        stamp = next((value for number, value in fields if number == 1), None)
        if not isinstance(stamp, bytes) or len(stamp) != 8:
            continue
        at_s = struct.unpack("<d", stamp)[0]
        for number, summary in fields:
            if number != 5 or not isinstance(summary, bytes):
                continue
            for name, value in _fields(summary):
                if name == 1 and isinstance(value, bytes):
                    parts = dict(_fields(value))
                    yield at_s, _utf8(parts.get(1)), _scalar(parts)


def _scalar(value: Mapping[int, Any]) -> float | None:
    plain, tensor = value.get(2), value.get(8)
    if plain is None and isinstance(tensor, bytes):
        inner = dict(_fields(tensor))
        plain = inner.get(5, inner.get(4))
    known = isinstance(plain, bytes) and len(plain) == 4
    return float(struct.unpack("<f", plain)[0]) if known else None  # type: ignore[arg-type]
