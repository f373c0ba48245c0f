"""Migrations: the requested interrupt of a running migration, and lists per project."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations import schema
from nova.db.sql.types import text

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema.column("migrations", sa.Column("wanted", text(16), nullable=False, server_default=""))
    schema.index("ix_migrations_project", "migrations", "project_id", "created_at")
