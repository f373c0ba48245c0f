"""Steps of migrations that can be repeated: without transactional DDL, a migration may have stopped half-way."""

from typing import Any

import sqlalchemy as sa
from alembic import op

# Options of tables on MariaDB: texts are compared by their code points, as by other databases.
MARIADB: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def table(name: str, *columns: Any) -> None:
    """Create a table unless it exists."""
    if name not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(name, *columns, **MARIADB)


def index(name: str, of: str, *columns: str) -> None:
    """Create an index unless it exists. (To list the indexes first would take most of the time of a new schema.)"""
    op.create_index(name, of, list(columns), if_not_exists=True)


def no_index(name: str, of: str) -> None:
    """Drop an index if it exists."""
    op.drop_index(name, of, if_exists=True)


def column(of: str, new: sa.Column[Any]) -> None:
    """Add a column unless it exists."""
    if new.name not in {existing["name"] for existing in sa.inspect(op.get_bind()).get_columns(of)}:
        op.add_column(of, new)


def is_left_for_later(of: str) -> bool:
    """Return True if a new index would lock a table with rows: nova.db.maintenance.migrate creates it later."""
    connection = op.get_bind()
    return connection.dialect.name == "postgresql" and connection.scalar(
        sa.select(sa.literal(1)).select_from(sa.table(of)).limit(1)) is not None
