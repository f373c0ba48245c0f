"""An outbox: notifications are written in the transaction of the change that they describe."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from nova.db.migrations import schema
from nova.db.sql.types import Json, Utc, big_id, text

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema.table(
        "outbox",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("message_id", text(36), nullable=False),
        sa.Column("lane", sa.SmallInteger, nullable=False),
        sa.Column("versioned", sa.Boolean, nullable=False),
        sa.Column("event_type", text(64), nullable=False),
        sa.Column("priority", text(16), nullable=False),
        sa.Column("publisher_id", text(300), nullable=False),
        sa.Column("payload", Json(dict[str, Any]), nullable=False),
        sa.Column("context", Json(dict[str, str]), nullable=False),
        sa.Column("created_at", Utc, nullable=False))
    schema.index("ix_outbox_lane", "outbox", "lane", "id")
    schema.index("ix_outbox_created", "outbox", "created_at")
    schema.table(
        "outbox_lanes",
        sa.Column("lane", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("owner", text(), nullable=False),
        sa.Column("lease_until", Utc, nullable=False))
