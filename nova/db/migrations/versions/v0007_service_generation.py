"""Generations of services: they order the notifications to schedulers, whichever conductor sends them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A database without transactions for DDL may have been left in the middle.
    inspector = sa.inspect(op.get_bind())
    if "generation" not in {column["name"] for column in inspector.get_columns("services")}:
        op.add_column("services", sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"))
