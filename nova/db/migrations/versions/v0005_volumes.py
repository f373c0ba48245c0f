"""Volumes of the embedded back end."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from nova.db.sql.types import Json, Utc, big_id, text

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _volumes()
    _removals()


def _table(name: str, *columns: Any) -> None:
    # A database without transactions for DDL may have been left in the middle.
    if name not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(name, *columns, mysql_engine="InnoDB", mysql_charset="utf8mb4", mysql_collate="utf8mb4_bin")


def _index(name: str, table: str, *columns: str) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, list(columns))


def _volumes() -> None:
    _table(
        "volumes",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("description", text(), nullable=False),
        sa.Column("size_gb", sa.BigInteger(), nullable=False),
        sa.Column("status", text(32), nullable=False),
        sa.Column("volume_type", text()),
        sa.Column("availability_zone", text()),
        sa.Column("metadata", Json(object), nullable=False),
        sa.Column("bootable", sa.Boolean(), nullable=False),
        sa.Column("image", Json(object)),
        sa.Column("host", text()),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("format", text(16), nullable=False),
        sa.Column("instance_uuid", text(36)),
        sa.Column("attachment_id", text(36)),
        sa.Column("device_name", text()),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
        sa.Column("attached_at", Utc()),
        sa.Column("written_at", Utc()),
    )
    _index("ix_volumes_project", "volumes", "project_id", "id")
    _index("ix_volumes_instance", "volumes", "instance_uuid")


def _removals() -> None:
    _table(
        "volume_removals",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("volume_uuid", text(36), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("host", text(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.UniqueConstraint("volume_uuid", "generation", name="uq_volume_removals_volume_generation"),
    )
