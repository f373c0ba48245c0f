"""An index for the usage of a project, which skips the servers that ran at other times."""

from __future__ import annotations

from nova.db.migrations.schema import index

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    index("ix_instances_usage", "instances", "project_id", "uuid", "launched_at", "terminated_at")
