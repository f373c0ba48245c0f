"""Secrets of virtual TPMs."""

import sqlalchemy as sa

from nova.db.migrations.schema import column
from nova.db.sql.types import LongText

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    column("instances", sa.Column("encrypted_tpm_secret", LongText))
