"""The volume connectors that hosts report for an external volume service."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column
from nova.db.sql.types import Json

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("services", sa.Column("connector", Json(object)))
