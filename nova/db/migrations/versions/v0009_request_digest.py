"""The digest of a create request with an Idempotency-Key, compared with that of repeated requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A database without transactions for DDL may have been left in the middle.
    inspector = sa.inspect(op.get_bind())
    if "request_digest" not in {column["name"] for column in inspector.get_columns("instances")}:
        op.add_column("instances", sa.Column("request_digest", sa.String(64)))
