"""The progress of notifications about the servers of an audit period."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations import schema
from nova.db.sql.types import Utc

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema.table(
        "usage_audits",
        sa.Column("period_ending", Utc, primary_key=True),
        sa.Column("marker", sa.BigInteger, nullable=False),
        sa.Column("finished", sa.Boolean, nullable=False))
