"""Tokens by which users reach the consoles of their guests."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import index, table
from nova.db.sql.types import Utc, big_id, text

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table(
        "console_tokens",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("digest", text(64), nullable=False, unique=True),
        sa.Column("instance_uuid", text(36), nullable=False),
        sa.Column("instance_host", text(), nullable=False),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("console_type", text(32), nullable=False),
        sa.Column("host", text(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("tls_port", sa.Integer()),
        sa.Column("access_url_base", text(1024), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", Utc(), nullable=False),
    )
    index("ix_console_tokens_instance", "console_tokens", "instance_uuid", "user_id", "id")
    index("ix_console_tokens_expires", "console_tokens", "expires_at")
