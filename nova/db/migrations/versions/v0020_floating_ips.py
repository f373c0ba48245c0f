"""Floating addresses of the embedded networks."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import index, table
from nova.db.sql.types import Utc, big_id, text

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table(
        "floating_ips",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("address", text(64), nullable=False, unique=True),
        sa.Column("pool", text(), nullable=False),
        sa.Column("project_id", text()),
        sa.Column("instance_uuid", text(36)),
        sa.Column("vif_id", text(36)),
        sa.Column("fixed_address", text(64)),
        sa.Column("updated_at", Utc()),
    )
    index("ix_floating_ips_unused", "floating_ips", "pool", "project_id", "id")
    index("ix_floating_ips_project", "floating_ips", "project_id", "id")
    index("ix_floating_ips_instance", "floating_ips", "instance_uuid")
