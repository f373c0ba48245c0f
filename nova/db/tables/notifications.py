"""The tables of notifications to be published on the bus."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Index

from nova.db.sql.types import Json, Utc, big_id, table, text

# Notifications to publish, written in the transaction of their change, ordered by id within a partition.
outbox = table(
    "outbox",
    Column("id", big_id(), primary_key=True),
    Column("message_id", text(36), nullable=False),
    Column("lane", sa.SmallInteger, nullable=False),
    Column("versioned", sa.Boolean, nullable=False),
    Column("event_type", text(64), nullable=False),
    Column("priority", text(16), nullable=False),
    Column("publisher_id", text(300), nullable=False),
    Column("payload", Json(dict[str, Any]), nullable=False),
    Column("context", Json(dict[str, str]), nullable=False),
    Column("created_at", Utc, nullable=False),
    Index("ix_outbox_lane", "lane", "id"),
    Index("ix_outbox_created", "created_at"),
)

# The conductor that publishes a partition of the outbox, and the end of its lease.
outbox_lanes = table(
    "outbox_lanes", Column("lane", sa.SmallInteger, primary_key=True, autoincrement=False),
    Column("owner", text(), nullable=False), Column("lease_until", Utc, nullable=False))

# Progress of the existence notifications of the last period.
usage_audits = table(
    "usage_audits",
    Column("period_ending", Utc, primary_key=True),
    # The id of the last reported server.
    Column("marker", sa.BigInteger, nullable=False),
    Column("finished", sa.Boolean, nullable=False),
)
