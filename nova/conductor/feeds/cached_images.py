"""Notifications of the progress of image pre-caching on an aggregate's hosts."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nova.conf import CONF
from nova.db.hosts import aggregates
from nova.db.hosts.precaches import HostDone
from nova.notifications import resources
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.accounts.notification import Notification


def images_cached(connection: sa.Connection, builder: NotificationBuilder,
                  done: Sequence[HostDone]) -> list[Notification]:
    """Return the notifications for hosts that finished caching the requested images, or failed to."""
    return [message for result in done for of in (aggregates.get(connection, result.aggregate_id),)
            for message in builder.resource(
                "aggregate.cache_images.progress", of.uuid,
                resources.aggregate_cache(of, result.host, result.cached, result.failed, result.index, result.total),
                by=publisher("nova-conductor", CONF.host))]
