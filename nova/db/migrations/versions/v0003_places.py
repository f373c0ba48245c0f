"""Hosts where a guest may be (migrations, evictions); operations that wait for others and for external events."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column, index, table
from nova.db.sql.types import Json, Utc, big_id, text

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("actions", sa.Column("queued", sa.Boolean(), nullable=False, server_default=sa.false()))
    column("actions", sa.Column("waits_for", text(1024)))
    _migrations()
    table(
        "evictions",
        sa.Column("instance_uuid", text(36), primary_key=True),
        sa.Column("host", text(), primary_key=True),
        sa.Column("keep_disks", sa.Boolean(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
    )
    index("ix_evictions_host", "evictions", "host", "instance_uuid")
    table(
        "external_events",
        sa.Column("instance_uuid", text(36), primary_key=True),
        sa.Column("name", text(), primary_key=True),
        sa.Column("status", text(16), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
    )
    index("ix_external_events_created", "external_events", "created_at")


def _migrations() -> None:
    sizes = [f"{what}_{part}" for what in ("memory", "disk") for part in ("total", "processed", "remaining")]
    table(
        "migrations",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("instance_uuid", text(36), nullable=False),
        sa.Column("migration_type", text(32), nullable=False),
        sa.Column("status", text(32), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("source_compute", text(), nullable=False),
        sa.Column("source_node", text(), nullable=False),
        sa.Column("dest_compute", text(), nullable=False),
        sa.Column("dest_node", text(), nullable=False),
        sa.Column("dest_host", text(64), nullable=False),
        sa.Column("old_flavor", Json(object)),
        sa.Column("new_flavor", Json(object)),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("action_uuid", text(36)),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("project_id", text(), nullable=False),
        *(sa.Column(name, sa.BigInteger()) for name in sizes),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
    )
    index("ix_migrations_instance", "migrations", "instance_uuid", "id")
    index("ix_migrations_source", "migrations", "open", "source_compute")
    index("ix_migrations_dest", "migrations", "open", "dest_compute")
    index("ix_migrations_created", "migrations", "created_at")
