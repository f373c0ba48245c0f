"""Tables of embedded shares, and of the accesses of hosts to shares.

The shares of a server are in its row (instances.shares).
"""

import sqlalchemy as sa
from sqlalchemy import Column, Index, UniqueConstraint

from nova.db.sql.types import Utc, big_id, table, text

shares = table(
    "shares",
    Column("id", big_id(), primary_key=True),
    Column("uuid", text(36), nullable=False, unique=True),
    Column("project_id", text(), nullable=False),
    Column("name", text(), nullable=False),
    # The only host with the directory of the share; null: not created yet, or all hosts share it.
    Column("host", text()),
    Column("created_at", Utc, nullable=False),
    Index("ix_shares_project", "project_id", "id"),
)

# Accesses of hosts to shares. A row is written before the access is requested from the share service, and deleted after
# it is revoked. Servers of one host with the same share have a row each, and one access at the service.
share_accesses = table(
    "share_accesses",
    Column("id", big_id(), primary_key=True),
    Column("share_id", text(36), nullable=False),
    Column("host", text(), nullable=False),
    Column("instance_uuid", text(36), nullable=False),
    Column("leaving", sa.Boolean, nullable=False),
    Column("updated_at", Utc, nullable=False),
    UniqueConstraint("share_id", "host", "instance_uuid", name="uq_share_accesses_share_host_instance"),
    Index("ix_share_accesses_instance", "instance_uuid"),
)
