"""What the extension holds for its kernel: the session and the store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.logbook.store import Store
    from workbench.measurement.session import Session
    from workbench.records import Measurement


class KernelState:
    """One per kernel. Everything is made on first use."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._store: Store | None = None
        # the last complete run of each label, and the code of its cell
        self.last_runs: dict[str, tuple[Measurement, str | None]] = {}

    @property
    def session(self) -> Session:
        if self._session is None:
            from workbench.measurement import session

            self._session = session.current()
        return self._session

    @property
    def store(self) -> Store:
        if self._store is None:
            from workbench.logbook.store import Store

            self._store = Store()
        return self._store

    def close(self) -> None:
        """Put settings back, end the sampling, and take away simulated GPUs that this kernel has made."""
        if self._session is not None:
            self._session.close()
            self._session = None
        machines = sys.modules.get("workbench.simulation.machine")
        present = machines.attached() if machines else None
        if present is not None and present.owned:
            present.close()
