"""Metrics of hosts."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column
from nova.db.sql.types import Json
from nova.objects.hosts.metric import Metric

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("compute_nodes", sa.Column("metrics", Json(list[Metric])))
