"""Networks, addresses, default rules and DNS names of the legacy parts of the API."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import column, index, table
from nova.db.sql.types import big_id, text

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column("networks", sa.Column("dhcp_end", text(64)))
    column("networks", sa.Column("host", text()))
    column("fixed_ips", sa.Column("reserved", sa.Boolean(), nullable=False, server_default=sa.false()))
    table(
        "security_group_default_rules",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("protocol", text(8)),
        sa.Column("from_port", sa.Integer()),
        sa.Column("to_port", sa.Integer()),
        sa.Column("cidr", text(64)),
    )
    table(
        "dns_domains",
        sa.Column("domain", text(), primary_key=True),
        sa.Column("scope", text(16), nullable=False),
        sa.Column("availability_zone", text()),
        sa.Column("project_id", text()),
    )
    table(
        "dns_entries",
        sa.Column("domain", text(), primary_key=True),
        sa.Column("name", text(), primary_key=True),
        sa.Column("project_id", text()),
        sa.Column("type", text(8), nullable=False),
        sa.Column("address", text(64), nullable=False),
    )
    index("ix_dns_entries_address", "dns_entries", "domain", "address")
