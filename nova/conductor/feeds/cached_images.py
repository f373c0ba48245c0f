"""What is told of hosts that have fetched the images of an aggregate's request."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from nova.conf import CONF
from nova.db import aggregates
from nova.db.precaches import HostDone
from nova.notifications import resources
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.notification import Notification


def images_cached(connection: sa.Connection, teller: NotificationBuilder,
                  done: Sequence[HostDone]) -> list[Notification]:
    """Hosts of aggregates have the images that were asked for, or cannot have them."""
    return [told for each in done for of in (aggregates.get(connection, each.aggregate_id),)
            for told in teller.resource(
                "aggregate.cache_images.progress", of.uuid,
                resources.aggregate_cache(of, each.host, each.cached, each.failed, each.index, each.total),
                by=publisher("nova-conductor", CONF.host))]
