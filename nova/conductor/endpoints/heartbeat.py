"""Liveness of services, and the leases of what they run."""

from __future__ import annotations

import datetime
import logging
from typing import Any

from nova.conductor import fleet
from nova.conductor.core import Core
from nova.conf import CONF
from nova.context import RequestContext
from nova.db import actions
from nova.db import services as db
from nova.objects.base import utcnow
from nova.objects.compute import Service

LOG = logging.getLogger(__name__)


class Heartbeat:
    """Answers :class:`nova.rpcapi.engine.Heartbeat`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def register(self, ctx: RequestContext, host: str, binary: str, topic: str, version: int) -> Service:
        service = self.core.db.write(lambda connection: db.register(connection, host, binary, topic, version))
        LOG.info("%s on %s started", binary, host)
        fleet.publish_services(self.core, [(service, True)])
        return service

    def beat(self, ctx: RequestContext, host: str, binary: str, running: list[str]) -> list[str]:
        owner = f"{binary.removeprefix('nova-')}@{host}"

        def transaction(connection: Any) -> tuple[Service | None, list[str]]:
            until = utcnow() + datetime.timedelta(seconds=CONF.conductor.lease)
            return (db.beat(connection, host, binary),
                    actions.renew(connection, owner, running, until) if running else [])

        returned, lost = self.core.db.write(transaction)
        if returned is not None:
            LOG.info("%s on %s is up again", binary, host)
            fleet.publish_services(self.core, [(returned, True)])
        return lost
