"""The database has an id, by which hosts know it again, and remembers the machines whose service was deleted."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

from nova.db.migrations.schema import table
from nova.db.sql.types import Utc, big_id, text

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table("deployment", sa.Column("id", big_id(), primary_key=True), sa.Column("uuid", text(36), nullable=False))
    table("deleted_hosts",
          sa.Column("identity", text(36), primary_key=True),
          sa.Column("deleted_at", Utc, nullable=False))
    deployment = sa.table("deployment", sa.column("id", sa.BigInteger), sa.column("uuid", sa.String))
    if op.get_bind().execute(sa.select(deployment.c.uuid)).first() is None:
        op.bulk_insert(deployment, [{"id": 1, "uuid": str(uuid.uuid4())}])
