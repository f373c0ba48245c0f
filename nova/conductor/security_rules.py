"""The rules of servers' security groups, on their way to the hosts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa

from nova import exception
from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db import security_groups as db
from nova.db import servers
from nova.objects.network import RuleSet

LOG = logging.getLogger(__name__)

# Servers whose rules are read at once.
_BATCH = 200


def refresh(core: Core, ctx: RequestContext, instance_uuids: Sequence[str]) -> None:
    """Send these servers' rules, as they are now, to all hosts where they may be (call after the commit)."""
    for start in range(0, len(instance_uuids), _BATCH):
        batch = instance_uuids[start:start + _BATCH]

        def look(connection: sa.Connection, batch: Sequence[str] = batch) -> tuple[
                dict[str, set[str]], dict[str, RuleSet]]:
            return servers.places(connection, batch), db.rules_of_instances(connection, batch)

        places, rules = core.db.read(look)
        for uuid, host in sorted((uuid, host) for uuid, hosts in places.items() for host in hosts):
            try:
                core.compute_at(host).refresh_rules(ctx, uuid, rules[uuid])
            except exception.NovaException as error:
                LOG.warning("[instance: %s] New rules were not sent to %s: %s", uuid, host, error)
