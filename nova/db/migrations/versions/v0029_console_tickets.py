"""Tickets of MKS consoles."""

import sqlalchemy as sa

from nova.db.migrations.schema import column
from nova.db.sql.types import text

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    column("console_tokens", sa.Column("access_path", text(1024)))
