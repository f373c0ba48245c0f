"""Key pairs of users."""

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.sql import clock, rows
from nova.objects.accounts.keypair import Keypair

TABLE = tables.keypairs


def index(connection: sa.Connection, user_id: str, limit: int | None = None,
          marker: str | None = None) -> list[Keypair]:
    """Return the key pairs of a user, sorted by name, from the one after ``marker``. Raises MarkerNotFound."""
    statement = sa.select(TABLE).where(TABLE.c.user_id == user_id).order_by(TABLE.c.name).limit(limit)
    if marker is not None:
        marker_id = connection.scalar(sa.select(TABLE.c.id).where(TABLE.c.user_id == user_id, TABLE.c.name == marker))
        if marker_id is None:
            raise exception.MarkerNotFound(f"Marker {marker} could not be found.", marker=marker)
        statement = statement.where(TABLE.c.name > marker)
    return rows.to_objects(Keypair, connection.execute(statement))


def get(connection: sa.Connection, user_id: str, name: str) -> Keypair:
    """Return a key pair. Raises KeypairNotFound."""
    return rows.first(connection, Keypair, sa.select(TABLE).where(TABLE.c.user_id == user_id, TABLE.c.name == name),
                      exception.KeypairNotFound(name=name, user_id=user_id))


def create(connection: sa.Connection, keypair: Keypair, most: int) -> Keypair:
    """Add a key pair of a user. ``most``: limit per user (-1: unlimited). Raises KeyPairExists, QuotaLimit."""
    if most >= 0:
        quotas.serialize(connection, f"keypairs:{keypair.user_id}"[:255])
        if quotas.count_key_pairs(connection, keypair.user_id) >= most:
            raise exception.QuotaLimit("Quota exceeded, too many key pairs.")
    with rows.on_duplicate(exception.KeyPairExists(key_name=keypair.name)):
        connection.execute(sa.insert(TABLE).values({**rows.values_of(TABLE, keypair), "created_at": clock.now()}))
    return get(connection, keypair.user_id, keypair.name)


def delete(connection: sa.Connection, user_id: str, name: str) -> None:
    """Delete a key pair. Raises KeypairNotFound."""
    deleted = connection.execute(sa.delete(TABLE).where(TABLE.c.user_id == user_id, TABLE.c.name == name))
    if deleted.rowcount == 0:
        raise exception.KeypairNotFound(name=name, user_id=user_id)
