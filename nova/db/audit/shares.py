"""Shares of servers, and the access of hosts to them. Subjects: instances."""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables
from nova.db.audit.base import Check, Finding, alive, hold
from nova.db.servers import servers
from nova.objects.volumes.share import ATTACHING, DETACHING, ERROR

TABLE = tables.share_accesses
INSTANCES = tables.instances
ACTIONS = tables.actions


class Shares(Check):
    """Check that idle servers have no share in a transition, and that only their own hosts have access to the shares.

    A conductor revokes accesses that remain after a superseded move or an outage of the service
    ([DEFAULT]stale_share_access_reconcile_interval).
    """

    def subjects(self) -> Sequence[sa.Select[Any]]:
        has = sa.select(INSTANCES.c.uuid).where(INSTANCES.c.deleted == sa.false(), INSTANCES.c.shares.is_not(None))
        return has, sa.select(TABLE.c.instance_uuid)

    def lock(self, connection: sa.Connection, key: str) -> None:
        super().lock(connection, key)
        hold(connection, TABLE, TABLE.c.instance_uuid == key)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        living = alive(connection, keys, INSTANCES.c.shares, INSTANCES.c.host, INSTANCES.c.action_uuid)
        places = servers.places(connection, keys)
        # A cleanup in an external service is still pending.
        owing = set(connection.scalars(sa.select(ACTIONS.c.instance_uuid).where(
            ACTIONS.c.instance_uuid.in_(keys), ACTIONS.c.lease_until.is_not(None))))
        accesses: dict[str, list[Any]] = {}
        for row in connection.execute(sa.select(TABLE).where(TABLE.c.instance_uuid.in_(keys)).order_by(TABLE.c.id)):
            accesses.setdefault(row.instance_uuid, []).append(row)
        for key in keys:
            server = living.get(key)
            if key not in owing and (server is None or server.action_uuid is None):
                yield from self._of_server(key, server, accesses.get(key, []), places.get(key, set()))

    @staticmethod
    def _of_server(key: str, row: Any, accesses: Sequence[Any], places: set[str]) -> Iterator[Finding]:
        mappings = (row.shares or []) if row is not None else []
        has = {mapping.share_id for mapping in mappings if mapping.status != ERROR}
        for mapping in mappings:
            if mapping.status in (ATTACHING, DETACHING):
                yield Finding("share", key, f"share {mapping.share_id} is {mapping.status}, and nobody is at it")
        for access in accesses:
            if access.share_id not in has or access.host not in places:
                yield Finding("share", key, f"host {access.host} may reach share {access.share_id} for it, in vain")
        opened = {access.share_id for access in accesses if row is not None and access.host == row.host}
        for share_id in sorted(has - opened):
            yield Finding("share", key, f"its host may not reach share {share_id}")
