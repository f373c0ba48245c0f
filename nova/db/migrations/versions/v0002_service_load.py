"""What the workers of a service do: told in its heartbeat."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from nova.db.types import Json

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A database without transactions for DDL may have been left in the middle.
    if "load" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("services")}:
        op.add_column("services", sa.Column("load", Json(object)))
