"""Shares of servers, and the embedded shares."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column, index, table
from nova.db.sql.types import Json, Utc, big_id, text
from nova.objects.volumes.share import ShareMapping

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("instances", sa.Column("shares", Json(list[ShareMapping])))
    table(
        "shares",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("host", text()),
        sa.Column("created_at", Utc, nullable=False))
    index("ix_shares_project", "shares", "project_id", "id")
    table(
        "share_accesses",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("share_id", text(36), nullable=False),
        sa.Column("host", text(), nullable=False),
        sa.Column("instance_uuid", text(36), nullable=False),
        sa.Column("leaving", sa.Boolean, nullable=False),
        sa.Column("updated_at", Utc, nullable=False),
        sa.UniqueConstraint("share_id", "host", "instance_uuid", name="uq_share_accesses_share_host_instance"))
    index("ix_share_accesses_instance", "share_accesses", "instance_uuid")
