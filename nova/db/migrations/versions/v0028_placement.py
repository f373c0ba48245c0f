"""Data of the Placement API: external providers, their consumers and aggregates, and registered names."""

import sqlalchemy as sa

from nova.db.migrations.schema import column, index, table
from nova.db.sql.types import Json, Utc, text

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    column("providers", sa.Column("external", sa.Boolean(), nullable=False, server_default=sa.false()))
    column("providers", sa.Column("generation", sa.BigInteger(), nullable=False, server_default="0"))
    column("providers", sa.Column("extra_traits", Json(list[str])))
    # The tables have few rows per host, so no index is left for later.
    index("ix_providers_name", "providers", "name")
    index("ix_inventories_resource_class", "inventories", "resource_class", "provider_uuid")
    index("ix_allocations_project", "allocations", "project_id", "user_id")
    table(
        "consumers",
        sa.Column("uuid", text(36), primary_key=True),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("type", text(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
    )
    table(
        "provider_aggregates",
        sa.Column("aggregate_uuid", text(36), primary_key=True),
        sa.Column("provider_uuid", text(36), primary_key=True),
    )
    index("ix_provider_aggregates_provider_uuid", "provider_aggregates", "provider_uuid")
    table(
        "placement_names",
        sa.Column("kind", text(16), primary_key=True),
        sa.Column("name", text(), primary_key=True),
    )
