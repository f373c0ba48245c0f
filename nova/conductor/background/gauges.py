"""Gauges of the deployment, counted in the database: every conductor reports the same values."""

from nova.db.maintenance import census, outbox
from nova.db.sql import clock
from nova.db.sql.engine import Database
from nova.telemetry import metrics


def update_gauges(db: Database) -> None:
    """Set the gauges by three queries."""
    now = clock.now()
    unfinished, services, waiting = db.read(lambda connection: (
        census.unfinished(connection, now), census.services(connection), outbox.waiting(connection)))
    metrics.UNFINISHED.replace(unfinished)
    metrics.SERVICES.replace(services)
    metrics.NOTIFICATIONS_WAITING.set(waiting)
