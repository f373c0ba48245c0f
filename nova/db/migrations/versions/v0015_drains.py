"""Hosts that are emptied, and what becomes of their servers."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations import schema
from nova.db.sql.types import Utc, text

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema.table(
        "drains",
        sa.Column("uuid", text(36), primary_key=True),
        sa.Column("host", text(), nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("parallel", sa.Integer, nullable=False),
        sa.Column("cold", sa.Boolean, nullable=False),
        sa.Column("target", text(), nullable=False),
        sa.Column("patience", sa.Integer, nullable=False),
        sa.Column("created_at", Utc, nullable=False),
        sa.Column("ended_at", Utc),
        sa.Column("owner", text()),
        sa.Column("lease_until", Utc),
        sa.UniqueConstraint("host", name="uq_drains_host"),
    )
    schema.table(
        "drain_servers",
        sa.Column("drain_uuid", text(36), primary_key=True),
        sa.Column("instance_uuid", text(36), primary_key=True),
        sa.Column("state", text(16), nullable=False),
        sa.Column("how", text(16), nullable=False),
        sa.Column("destination", text(), nullable=False),
        sa.Column("reason", text(1024), nullable=False),
        sa.Column("request_id", text(64), nullable=False),
        sa.Column("since", Utc, nullable=False),
        sa.Column("started_at", Utc),
        sa.Column("ended_at", Utc),
    )
    schema.index("ix_drain_servers_state", "drain_servers", "drain_uuid", "state")
    schema.index("ix_drain_servers_instance", "drain_servers", "instance_uuid")
