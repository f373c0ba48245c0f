"""Load of the workers of a service, from its heartbeat."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column
from nova.db.sql.types import Json

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("services", sa.Column("load", Json(object)))
