"""The metadata of all tables, and their common columns."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Table

from nova.db.sql.types import Utc

metadata = sa.MetaData()


def table(name: str, *items: Any) -> Table:
    return Table(name, metadata, *items, mysql_engine="InnoDB", mysql_charset="utf8mb4", mysql_collate="utf8mb4_bin")


def times() -> tuple[Column[Any], Column[Any]]:
    return Column("created_at", Utc, nullable=False), Column("updated_at", Utc)
