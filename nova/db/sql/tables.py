"""The metadata of all tables, and their common columns."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Table

from nova.db.sql.types import Utc

metadata = sa.MetaData()


def table(name: str, *items: Any) -> Table:
    return Table(name, metadata, *items)


def times() -> tuple[Column[Any], Column[Any]]:
    return Column("created_at", Utc, nullable=False), Column("updated_at", Utc)
