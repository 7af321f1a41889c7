"""Where studies are kept: opened with patience and checked first; their errors as `StoreError`."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreError, UsageError, is_path, missing, shown

if TYPE_CHECKING:
    import optuna

LOCK_S = 60.0  # that one process waits for another's write


def storage_url(storage: str | Path) -> str:
    """The URL of a storage; a path is an SQLite file."""
    text = str(storage)
    if not is_path(storage):
        raise UsageError(f"storage={shown(storage)}: give a URL, the path of a file, or one of Optuna's")
    return text if "://" in text else f"sqlite:///{Path(text).expanduser().resolve()}"


def open_study(
    name: str, storage: str | Path | optuna.storages.BaseStorage
) -> tuple[optuna.Study, optuna.storages.BaseStorage]:
    """A study, made where there is none of that name, and its storage."""
    import optuna
    import sqlalchemy

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def made(opened: optuna.storages.BaseStorage) -> tuple[optuna.Study, optuna.storages.BaseStorage]:
        return optuna.create_study(storage=opened, study_name=name, load_if_exists=True), opened

    if isinstance(storage, optuna.storages.BaseStorage):
        return made(storage)
    url = storage_url(storage)
    if url.startswith("sqlite:///"):
        _check_file(Path(url.removeprefix("sqlite:///")))
    literal = url.replace("{", "{{").replace("}", "}}")  # Optuna formats it
    arguments = {"connect_args": {"timeout": LOCK_S}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    for patience_s in (0.05, 0.2, 0.5, 1.0, 2.0, None):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return made(optuna.storages.RDBStorage(literal, engine_kwargs=arguments))
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # Two processes that both make the tables: the second one finds them.
            if patience_s is None or not any(
                word in str(error) for word in ("already exists", "UNIQUE", "unique", "locked")
            ):
                raise
            time.sleep(patience_s)
    raise AssertionError("unreachable")


def _check_file(path: Path) -> None:
    """That an SQLite file is whole, and Optuna's; what is not there yet is."""
    if not path.parent.is_dir():
        raise StoreError(
            f"the directory {path.parent} of the history is not there; make it, or choose another storage"
        )
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=LOCK_S)
        ) as database:
            verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            tables = {
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
    except sqlite3.DatabaseError as error:
        raise StoreError(_damaged(str(path), error)) from error
    if verdict != "ok":
        raise StoreError(_damaged(str(path), verdict))
    if tables and not {"studies", "trials"} <= tables:
        raise StoreError(
            f"{path} is a database of another program (tables {', '.join(sorted(tables)[:3])}); choose "
            "another file. Nothing was changed"
        )


def _damaged(where: str, why: object) -> str:
    return (
        f"the history in {where} cannot be read ({why}); move it away, or choose another storage. Nothing "
        "was changed"
    )


@contextlib.contextmanager
def translate_storage_errors(url: str) -> Iterator[None]:
    """Errors of the storage in our words."""
    import optuna
    import sqlalchemy

    scheme = url.partition("://")[0]
    try:
        yield
    except ImportError as error:
        raise StoreError(
            missing("the driver for PostgreSQL", "postgres") if scheme.startswith("postgres") else
            f"the driver for {scheme} is not installed here ({error.__cause__ or error})"
        ) from error
    except UsageError:
        raise
    except (
        sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError,
        ValueError,  # a date, text or JSON in a row that the database takes for whole
    ) as error:
        try:
            where = sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
        except sqlalchemy.exc.ArgumentError:  # which may hold a password all the same
            raise StoreError(
                f"the storage {scheme}://... is no URL of a database; give one such as "
                "sqlite:///runs.db or postgresql://user@host/name, or the path of a file"
            ) from None
        cause = str(getattr(error, "orig", None) or error.__cause__ or error).splitlines()[0]
        raise StoreError(_damaged(where, cause)) from error
