"""Gauges of the deployment, counted in the database: every conductor reports the same values."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.maintenance import census, outbox
from nova.db.sql import clock
from nova.db.sql.engine import Database
from nova.telemetry import metrics


class Gauges:
    """The gauges, read by three queries."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def update(self) -> None:
        now = clock.now()

        Counts = dict[tuple[str, ...], float]

        def count(connection: sa.Connection) -> tuple[Counts, Counts, int]:
            return census.unfinished(connection, now), census.services(connection), outbox.waiting(connection)

        unfinished, services, waiting = self._db.read(count)
        metrics.UNFINISHED.replace(unfinished)
        metrics.SERVICES.replace(services)
        metrics.NOTIFICATIONS_WAITING.set(waiting)
