"""Ids of the EC2 API."""

import sqlalchemy as sa

from nova.db.migrations.schema import index, table
from nova.db.sql.types import Utc, big_id, text

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    table("ec2_ids", sa.Column("id", big_id(), primary_key=True), sa.Column("kind", text(16), nullable=False),
          sa.Column("number", sa.BigInteger, nullable=False), sa.Column("uuid", text(), nullable=False),
          sa.Column("used_at", Utc, nullable=False),
          sa.UniqueConstraint("kind", "number", name="uq_ec2_ids_kind_number"),
          sa.UniqueConstraint("kind", "uuid", name="uq_ec2_ids_kind_uuid"))
    index("ix_ec2_ids_used", "ec2_ids", "used_at", "id")
