"""Checks of embedded volumes: their servers, and the removal of their data. Checks of shares: the access of hosts."""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.conf import CONF
from nova.conf.storage import EMBEDDED
from nova.db import tables
from nova.db.audit.base import Check, Finding, alive, hold, put
from nova.db.servers import servers
from nova.objects.volumes import volume as volume_states
from nova.objects.volumes.share import ATTACHING, DETACHING, ERROR

TABLE = tables.volumes
INSTANCES = tables.instances
REMOVALS = tables.volume_removals
ACCESSES = tables.share_accesses
ACTIONS = tables.actions

_OWNED = (volume_states.RESERVED, volume_states.ATTACHING, volume_states.IN_USE, volume_states.DETACHING)


class Volumes(Check):
    """Check that a volume in use belongs to one existing server that has it among its devices, and that the data of a
    volume in status deleting are to be removed by a host. Subjects: volumes."""

    subjects = (sa.select(TABLE.c.uuid).where(sa.or_(
            TABLE.c.instance_uuid.is_not(None),
            TABLE.c.status.not_in((volume_states.AVAILABLE, volume_states.ERROR)))),)

    def lock(self, connection: sa.Connection, key: str) -> None:
        # Every attach and detach of a volume locks the instance first.
        hold(connection, INSTANCES, INSTANCES.c.uuid.in_(sa.select(TABLE.c.instance_uuid).where(TABLE.c.uuid == key)))
        hold(connection, TABLE, TABLE.c.uuid == key)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        volumes = connection.execute(sa.select(TABLE).where(TABLE.c.uuid.in_(keys)).order_by(TABLE.c.uuid)).all()
        instances = alive(connection, [row.instance_uuid for row in volumes if row.instance_uuid],
                          INSTANCES.c.block_devices)
        leaving = {(row.volume_uuid, row.generation) for row in connection.execute(
            sa.select(REMOVALS.c.volume_uuid, REMOVALS.c.generation).where(REMOVALS.c.volume_uuid.in_(keys)))}
        for row in volumes:
            if row.instance_uuid is not None:
                yield from self._of_server(row, instances.get(row.instance_uuid))
            elif row.status in _OWNED:
                yield Finding("volume", row.uuid, f"status is {row.status}, but no server has it", repair=_free(row))
            elif row.status == volume_states.DELETING and (row.uuid, row.generation) not in leaving:
                yield Finding("volume", row.uuid, "status is deleting, but no host is to remove the data",
                              repair=put(TABLE, TABLE.c.uuid == row.uuid, status=volume_states.ERROR))

    @staticmethod
    def _of_server(row: Any, instance: Any) -> Iterator[Finding]:
        devices = instance.block_devices if instance else []
        if not any((device.volume_id, device.attachment_id) == (row.uuid, row.attachment_id) for device in devices):
            yield Finding("volume", row.uuid, f"belongs to server {row.instance_uuid}, which does not have it",
                          repair=_free(row))
        elif row.status not in (*_OWNED, volume_states.ERROR):
            yield Finding("volume", row.uuid, f"belongs to server {row.instance_uuid}, but its status is {row.status}")


class Devices(Check):
    """Check that the embedded volumes of an existing server belong to this server. Subjects: instances."""

    # The column is JSON; servers without volumes are excluded by a text search.
    subjects = (sa.select(INSTANCES.c.uuid).where(
        INSTANCES.c.deleted == sa.false(), sa.type_coerce(INSTANCES.c.block_devices, sa.Text).like('%"volume_id"%')),)

    def page(self, connection: sa.Connection, after: str, limit: int) -> list[str]:
        return super().page(connection, after, limit) if CONF.volume.driver in EMBEDDED else []

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        instances = alive(connection, keys, INSTANCES.c.block_devices)
        wanted = {device.volume_id for row in instances.values() for device in row.block_devices if device.volume_id}
        owners = dict(connection.execute(
            sa.select(TABLE.c.uuid, TABLE.c.instance_uuid).where(TABLE.c.uuid.in_(wanted))).all())
        for uuid, row in instances.items():
            for device in row.block_devices:
                if device.volume_id and device.is_volume and owners.get(device.volume_id) != uuid:
                    holder = owners.get(device.volume_id) or "no server"
                    yield Finding("volume", uuid, f"server {uuid} has the volume, but it belongs to {holder}",
                                  subject=device.volume_id)


def _free(row: Any) -> Any:
    """Return a repair that makes the volume available if its row has not changed."""
    this = sa.and_(TABLE.c.uuid == row.uuid, TABLE.c.status == row.status)
    return put(TABLE, this, status=volume_states.AVAILABLE, instance_uuid=None, attachment_id=None, device_name=None,
               attached_at=None)


class Shares(Check):
    """Check servers without a running operation: no share is being attached or detached, and only possible hosts of the
    server have access to its shares. Subjects: instances. A conductor revokes accesses that remain after a superseded
    move or an outage of the share service ([DEFAULT]stale_share_access_reconcile_interval)."""

    subjects = (
        sa.select(INSTANCES.c.uuid).where(INSTANCES.c.deleted == sa.false(), INSTANCES.c.shares.is_not(None)),
        sa.select(ACCESSES.c.instance_uuid))

    def lock(self, connection: sa.Connection, key: str) -> None:
        super().lock(connection, key)
        hold(connection, ACCESSES, ACCESSES.c.instance_uuid == key)

    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        living = alive(connection, keys, INSTANCES.c.shares, INSTANCES.c.host, INSTANCES.c.action_uuid)
        places = servers.places(connection, keys)
        # Servers with a deferred cleanup, which may still revoke an access.
        owing = set(connection.scalars(sa.select(ACTIONS.c.instance_uuid).where(
            ACTIONS.c.instance_uuid.in_(keys), ACTIONS.c.lease_until.is_not(None))))
        accesses: dict[str, list[Any]] = {}
        for row in connection.execute(
                sa.select(ACCESSES).where(ACCESSES.c.instance_uuid.in_(keys)).order_by(ACCESSES.c.id)):
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
                yield Finding("share", key, f"share {mapping.share_id} is {mapping.status}, but no operation runs")
        for access in accesses:
            if access.share_id not in has or access.host not in places:
                yield Finding("share", key, f"host {access.host} has access to share {access.share_id} without need")
        opened = {access.share_id for access in accesses if row is not None and access.host == row.host}
        for share_id in sorted(has - opened):
            yield Finding("share", key, f"the server's host has no access to share {share_id}")
