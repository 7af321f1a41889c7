"""What the extension holds for its kernel: the session, the store, and the window of the cell that runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from workbench.measurement.meter import Meter
    from workbench.measurement.session import Session
    from workbench.measurement.store import Store
    from workbench.records import Measurement, Window


class KernelState:
    """One per kernel. Everything is made on first use."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._store: Store | None = None
        self.last: Measurement | None = None

    @property
    def session(self) -> Session:
        if self._session is None:
            from workbench.measurement import session

            self._session = session.current()
        return self._session

    @property
    def store(self) -> Store:
        if self._store is None:
            from workbench.measurement.store import Store

            self._store = Store()
        return self._store

    def keep(
        self, measurement: Measurement, window: Window, meter: Meter,
        iterations: pl.DataFrame | None = None,
    ) -> list[str]:
        """Remember and store a measurement; returns the sentences of `session.keep`."""
        from workbench.measurement.session import keep

        self.last = measurement
        return keep(measurement, window, meter, self.store, iterations)

    def close(self) -> None:
        """Put settings back, end the sampling, and take away simulated GPUs that this kernel has made."""
        if self._session is not None:
            self._session.close()
            self._session = None
        machines = sys.modules.get("workbench.simulation.machine")
        present = machines.attached() if machines else None
        if present is not None and present.owned:
            present.close()
