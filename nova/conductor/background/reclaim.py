"""Deletion of soft-deleted servers that were not restored in time. Any conductor may process them."""

from __future__ import annotations

import logging

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.db.servers import servers
from nova.db.sql import clock
from nova.operations.soft_delete import Reclaim

LOG = logging.getLogger(__name__)

_AT_ONCE = 20  # servers reclaimed per check, so that many servers deleted together do not delay operations of users


def reclaim(core: Core, engine: Engine) -> None:
    """Delete servers that were soft-deleted [DEFAULT]reclaim_instance_interval seconds ago, unless that is 0. By the
    database's clock: servers that are deleted because of a wrong clock cannot be restored."""
    interval = CONF.reclaim_instance_interval
    if not interval or not clock.steady(CONF.service_down_time):
        return
    before = clock.overdue(interval)
    for uuid in core.db.read(lambda connection: servers.soft_deleted(connection, before, _AT_ONCE)):
        try:
            start(engine, context.admin(), uuid, Reclaim.name, {"before": before})
            LOG.info("[instance: %s] Reclaiming the server: it was soft-deleted at least %d s ago", uuid, interval)
        except exception.NovaException as error:
            # The user restored the server, or another conductor was faster.
            LOG.info("[instance: %s] The server is not reclaimed: %s", uuid, error)
