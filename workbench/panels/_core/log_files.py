"""The log on disk, as panels that follow it read it."""

from __future__ import annotations

from collections.abc import Hashable

import polars as pl

from ...errors import StoreError
from ...logbook.store import Store


def log_version(store: Store) -> Hashable:
    """A value that changes with the log."""
    try:
        found = sorted((store.directory / "measurements").glob("*.parquet"))
        return tuple((path.name, path.stat().st_mtime_ns) for path in found)
    except OSError:
        return ()


def readable_log(store: Store) -> pl.DataFrame:
    """The log (`store.SCHEMA`); an empty one if it cannot be read."""
    try:
        return store.log()
    except StoreError:
        return Store(store.directory / "none").log()
