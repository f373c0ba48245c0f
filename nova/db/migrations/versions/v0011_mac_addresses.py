"""MAC addresses are columns of their own, and unique."""

from __future__ import annotations

import hashlib
import secrets

import sqlalchemy as sa
from alembic import op

from nova.db.migrations.schema import column
from nova.db.sql.types import text

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_PAGE = 500
_IPS = sa.table("fixed_ips", sa.column("id", sa.BigInteger), sa.column("network_uuid", sa.String),
                sa.column("version", sa.SmallInteger), sa.column("mac", sa.String),
                sa.column("instance_uuid", sa.String))


def upgrade() -> None:
    column("fixed_ips", sa.Column("mac", text(17)))
    fill(op.get_bind())
    if "uq_fixed_ips_mac" not in {existing["name"] for existing in sa.inspect(op.get_bind()).get_indexes("fixed_ips")}:
        op.create_index("uq_fixed_ips_mac", "fixed_ips", ["mac"], unique=True)


def fill(connection: sa.Connection) -> None:
    """Rows get the MAC address that followed from their id until now; of two that had the same the second another.

    Those in use come first. An interface that is plugged keeps what it has.
    """
    taken = set(connection.scalars(sa.select(_IPS.c.mac).where(_IPS.c.mac.is_not(None))))
    for state in (_IPS.c.instance_uuid.is_not(None), _IPS.c.instance_uuid.is_(None)):
        last = 0
        while True:
            page = connection.execute(
                sa.select(_IPS.c.id, _IPS.c.network_uuid)
                .where(_IPS.c.id > last, _IPS.c.version == 4, _IPS.c.mac.is_(None), state)
                .order_by(_IPS.c.id).limit(_PAGE)).all()
            changed = []
            for row in page:
                start = int.from_bytes(hashlib.sha256(row.network_uuid.encode()).digest()[:3], "big")
                mac = _spelt((start + row.id) % 2**24)
                while mac in taken:
                    mac = _spelt(secrets.randbelow(2**24))
                taken.add(mac)
                changed.append({"this": row.id, "found": mac})
            if changed:
                connection.execute(sa.update(_IPS).where(_IPS.c.id == sa.bindparam("this"))
                                   .values(mac=sa.bindparam("found")), changed)
            if len(page) < _PAGE:
                break
            last = page[-1].id


def _spelt(number: int) -> str:
    return f"fa:16:3e:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
