"""IPv6 and VXLAN in networks, versions of the updates sent to hosts, interfaces with several addresses."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from nova.db.sql.types import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_PAGE = 500
_INSTANCES = sa.table("instances", sa.column("id", sa.BigInteger), sa.column("network_info", sa.Text))


def upgrade() -> None:
    # A database without transactions for DDL may have been left in the middle.
    _add("networks", sa.Column("vni", sa.Integer))
    _add("networks", sa.Column("cidr_v6", text(64)))
    _add("networks", sa.Column("gateway_v6", text(64)))
    _add("networks", sa.Column("ipv6_mode", text(32), nullable=False, server_default="slaac"))
    _add("fixed_ips", sa.Column("version", sa.SmallInteger, nullable=False, server_default="4"))
    _index("networks", "uq_networks_vni", "vni", unique=True)
    _index("fixed_ips", "ix_fixed_ips_unused", "network_uuid", "version", "instance_uuid", "updated_at", "id")
    if "ix_fixed_ips_free" in _indexes("fixed_ips"):
        op.drop_index("ix_fixed_ips_free", "fixed_ips")
    _make("network_hosts", sa.Column("network_uuid", text(36), primary_key=True),
          sa.Column("host", text(), primary_key=True), sa.Column("address", text(64), nullable=False))
    _index("network_hosts", "ix_network_hosts_host", "host")
    _make("versions", sa.Column("name", text(300), primary_key=True),
          sa.Column("version", sa.BigInteger, nullable=False))
    convert_interfaces(op.get_bind())


def convert_interfaces(connection: sa.Connection) -> None:
    """Interfaces had one address of version 4; now they have a list of addresses."""
    last = 0
    while True:
        page = connection.execute(
            sa.select(_INSTANCES).where(_INSTANCES.c.id > last, _INSTANCES.c.network_info != "[]")
            .order_by(_INSTANCES.c.id).limit(_PAGE)).all()
        changed = [{"this": row.id, "info": json.dumps([_with_list(vif) for vif in json.loads(row.network_info)])}
                   for row in page if '"fixed_ips"' not in row.network_info]
        if changed:
            connection.execute(sa.update(_INSTANCES).where(_INSTANCES.c.id == sa.bindparam("this"))
                               .values(network_info=sa.bindparam("info")), changed)
        if len(page) < _PAGE:
            return
        last = page[-1].id


def _with_list(vif: dict[str, Any]) -> dict[str, Any]:
    fixed = {name: vif.pop(name) for name in ("address", "prefix", "cidr", "gateway", "dns") if name in vif}
    return {**vif, "fixed_ips": [{**fixed, "mode": "dhcp"}] if fixed else []}


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _make(table: str, *columns: sa.Column[Any]) -> None:
    if not sa.inspect(op.get_bind()).has_table(table):
        op.create_table(table, *columns, **_MYSQL)


def _indexes(table: str) -> set[str | None]:
    return {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}


def _index(table: str, name: str, *columns: str, unique: bool = False) -> None:
    if name not in _indexes(table):
        op.create_index(name, table, list(columns), unique=unique)
