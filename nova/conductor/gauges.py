"""What of the deployment is counted by looking: every conductor sees the same."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db import census, clock
from nova.db.engine import Database
from nova.telemetry import metrics


class Gauges:
    """Two grouped queries each time."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def look(self) -> None:
        now = clock.now()

        def count(connection: sa.Connection) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
            return census.unfinished(connection, now), census.services(connection)

        unfinished, services = self._db.read(count)
        metrics.UNFINISHED.replace(unfinished)
        metrics.SERVICES.replace(services)
