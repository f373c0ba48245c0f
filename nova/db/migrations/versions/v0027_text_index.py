"""The text index of servers."""

import sqlalchemy as sa

from nova.db.migrations.schema import column, index, is_left_for_later, table
from nova.db.sql.types import LongBytes, Utc, big_id, text

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    table(
        "text_blocks",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.Column("oldest", Utc(), nullable=False),
        sa.Column("newest", Utc(), nullable=False),
    )
    table(
        "block_texts",
        sa.Column("block_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("name", text(64), primary_key=True),
        sa.Column("content", LongBytes(), nullable=False),
    )
    column("instances", sa.Column("text_block", sa.BigInteger()))
    if not is_left_for_later("instances"):
        index("ix_instances_text_block", "instances", "deleted", "text_block", "id")
