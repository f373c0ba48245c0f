"""Scheduling: allocations contain the root provider, server groups can be locked, hosts have identities; claims of
NUMA cells and PCI devices.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from nova.db.sql.types import Json, text

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _columns() -> dict[str, list[sa.Column[Any]]]:
    def parts() -> list[sa.Column[Any]]:
        return [sa.Column("numa_topology", Json(object)), sa.Column("pci_devices", Json(object))]

    return {
        "allocations": [sa.Column("root_uuid", text(36)), *parts()],
        "instances": parts(),
        "compute_nodes": [*parts(), sa.Column("fitted", sa.Boolean, nullable=False, server_default=sa.false())],
        "services": [sa.Column("identity", text(36))],
        "server_groups": [sa.Column("held", sa.BigInteger, nullable=False, server_default="0")],
    }


def upgrade() -> None:
    # A database without transactions for DDL may have been left in the middle.
    inspector = sa.inspect(op.get_bind())
    for table, columns in _columns().items():
        existing = {column["name"] for column in inspector.get_columns(table)}
        for column in columns:
            if column.name not in existing:
                op.add_column(table, column)
    for table, name, unique in (("allocations", "root_uuid", False), ("services", "identity", True)):
        if f"ix_{table}_{name}" not in {index["name"] for index in inspector.get_indexes(table)}:
            op.create_index(f"ix_{table}_{name}", table, [name], unique=unique)
