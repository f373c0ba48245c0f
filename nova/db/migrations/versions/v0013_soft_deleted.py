"""The time of soft deletion of servers: they are reclaimed later, and count for no quota until then."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column, index
from nova.db.sql.types import Utc

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("instances", sa.Column("soft_deleted_at", Utc()))
    index("ix_instances_soft_deleted", "instances", "soft_deleted_at")
