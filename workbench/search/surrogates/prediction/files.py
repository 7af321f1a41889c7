"""One file per model: compressed text, a line about the file and a line of JSON with the model.

The first line has the checksum of the second.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from .... import _paths
from ....errors import UsageError

FORMAT = "GPU Energy Workbench clock model"
VERSION = 2
LARGEST_BYTES = 64 << 20
REMEDY = "`workbench profile-gpu` makes a new one"


def write(path: Path, model: dict[str, Any]) -> None:
    """Write a model; an older file stays whole until the new one is."""
    body = json.dumps(model)
    head = json.dumps({"format": FORMAT, "version": VERSION, "sha256": _checksum(body.encode())})
    try:
        with _paths.replacing(path) as file:
            file.write(gzip.compress(f"{head}\n{body}".encode(), mtime=0))
    except OSError as error:
        raise UsageError(
            f"the clock model cannot be written to {path} ({error.strerror}); name another place"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """A stored model.

    Raises:
        UsageError: the file is missing, damaged, something else, or of another version.
    """
    try:
        with path.open("rb") as raw, gzip.open(raw) as file:
            text = file.read(LARGEST_BYTES + 1)
        if len(text) > LARGEST_BYTES:
            raise ValueError(f"it unpacks to more than {LARGEST_BYTES >> 20} MB")
        head, _, body = text.partition(b"\n")
        about, model = json.loads(head), json.loads(body or b"{}")
    except (EOFError, ValueError, RecursionError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, error) from error
    except OSError as error:
        raise UsageError(f"the clock model {path} cannot be read ({error.strerror}); {REMEDY}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UsageError(f"{path} is no clock model; {REMEDY}")
    if about.get("version") != VERSION:
        raise UsageError(
            f"the clock model {path} has version {about.get('version')}, this workbench reads version "
            f"{VERSION}; {REMEDY}"
        )
    if not isinstance(model, dict) or about.get("sha256") != _checksum(body):
        raise damaged(path, "its checksum does not fit")
    return model


def damaged(path: Path, why: object) -> UsageError:
    return UsageError(f"the clock model {path} is damaged ({why}); {REMEDY}")


def _checksum(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
