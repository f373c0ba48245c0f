"""Console tokens, stored by their digests. Each is valid for a server on its present host, until it expires. A token
becomes invalid by rows that operations write anyway: a new host in the row of the server, and a later action in the
journal. So operations need not change tokens."""

import datetime
from collections.abc import Collection, Sequence

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock, rows
from nova.objects.servers.console import Console, ConsoleAddress, ConsoleSession

TABLE = tables.console_tokens
INSTANCES = tables.instances
ACTIONS = tables.actions

MOST = 16  # maximum number of tokens of a user per server


def create(connection: sa.Connection, digest: str, console: Console, until: datetime.datetime) -> Console:
    """Insert a token; the user's oldest tokens of the server are deleted. Raises InstanceNotFound, InstanceNotReady."""
    uuid = console.instance_uuid
    host = connection.execute(sa.select(INSTANCES.c.host).where(
        INSTANCES.c.uuid == uuid, INSTANCES.c.deleted == sa.false())).first()
    if host is None:
        raise exception.InstanceNotFound(instance_id=uuid)
    if host[0] != console.instance_host:
        raise exception.InstanceNotReady(instance_id=uuid)
    console.since = connection.scalar(sa.select(sa.func.max(ACTIONS.c.id)).where(ACTIONS.c.instance_uuid == uuid)) or 0
    console.expires_at = until
    surplus = connection.scalars(
        sa.select(TABLE.c.id).where(TABLE.c.instance_uuid == uuid, TABLE.c.user_id == console.user_id)
        .order_by(TABLE.c.id.desc()).offset(MOST - 1).limit(MOST)).all()
    if surplus:
        connection.execute(sa.delete(TABLE).where(TABLE.c.id.in_(surplus)))
    connection.execute(sa.insert(TABLE).values(
        {**rows.values_of(TABLE, console), **msgspec.structs.asdict(console.address), "digest": digest}))
    return console


def get(connection: sa.Connection, digest: str, endings: Collection[str]) -> Console:
    """Return a valid token. Raises ConsoleTokenNotFound. ``endings``: operations that invalidate tokens of a server."""
    now = clock.now()
    row = connection.execute(
        sa.select(TABLE).join(INSTANCES, INSTANCES.c.uuid == TABLE.c.instance_uuid).where(
            TABLE.c.digest == digest, TABLE.c.expires_at > now, INSTANCES.c.deleted == sa.false(),
            INSTANCES.c.host == TABLE.c.instance_host,
            ~sa.exists().where(ACTIONS.c.instance_uuid == TABLE.c.instance_uuid, ACTIONS.c.id > TABLE.c.since,
                               ACTIONS.c.operation.in_(endings)))).first()
    if row is None:
        raise exception.ConsoleTokenNotFound()
    return Console(
        instance_uuid=row.instance_uuid, instance_host=row.instance_host, console_type=row.console_type,
        address=ConsoleAddress(host=row.host, port=row.port, tls_port=row.tls_port, access_path=row.access_path),
        access_url_base=row.access_url_base, user_id=row.user_id, project_id=row.project_id, since=row.since,
        expires_at=row.expires_at, seconds=(row.expires_at - now).total_seconds())


def over(connection: sa.Connection, sessions: Sequence[ConsoleSession], endings: Collection[str]) -> list[str]:
    """Return the sessions that must end, since one of the operations ``endings`` of the server has succeeded after the
    session began. While the operation runs, the session stays, so that the user can watch the guest shut down."""
    if not sessions:
        return []
    newest = dict(connection.execute(
        sa.select(ACTIONS.c.instance_uuid, sa.func.max(ACTIONS.c.id)).where(
            ACTIONS.c.instance_uuid.in_({session.instance_uuid for session in sessions}),
            ACTIONS.c.operation.in_(endings), ACTIONS.c.outcome == "success")
        .group_by(ACTIONS.c.instance_uuid)).all())
    return [session.ident for session in sessions if newest.get(session.instance_uuid, 0) > session.since]


def forget_expired(connection: sa.Connection) -> int:
    """Delete expired tokens; return their number."""
    return connection.execute(sa.delete(TABLE).where(TABLE.c.expires_at <= clock.now())).rowcount
