"""Base of consistency checks. A check lists keys of records, examines a page of them, and locks one record."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables

# A repair that writes rows is called with the connection of the transaction that confirmed the finding and locks the
# record. A repair that sends a request to a host or service is called without arguments, outside of transactions.
Repair = Callable[..., object]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A contradiction among rows. ``key``: key of the record; ``subject``: its description if the key does not name
    it. ``repair`` None: an operator must decide."""

    kind: str
    key: str
    detail: str
    _: dataclasses.KW_ONLY
    subject: str = ""
    repair: Repair | None = None
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject or self.key}: {self.detail}" + (" (repaired)" if self.repaired else "")


class Check(abc.ABC):
    """An invariant of records, each identified by a key (a uuid, a project) and checked on its own."""

    # Number of records per transaction: a small number if each record has many related rows.
    page_size = 500
    table = tables.instances  # the table whose uuids are the keys
    subjects: Sequence[sa.Select[Any]]  # statements of one column each that together select the keys of all records

    @abc.abstractmethod
    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        """Return the findings for these records. Each statement reads the rows of these records only, so that it
        stays short."""

    def lock(self, connection: sa.Connection, key: str) -> None:
        """Lock the record until the transaction ends, so that changes of it wait: by default the row of ``table``.
        Rows are locked in the order of operations: actions, nodes, quota, instances."""
        hold(connection, self.table, self.table.c.uuid == key)

    def page(self, connection: sa.Connection, after: str, limit: int) -> list[str]:
        """Return the keys of the next records in order, at most ``limit``."""
        return list(connection.scalars(self._page_statement, {"after": after, "limit": limit}))

    @functools.cached_property
    def _page_statement(self) -> sa.Select[Any]:
        """Return the statement that selects the first ``limit`` keys after ``after`` among all ``subjects``. It reads
        at most ``limit`` keys of each of them."""
        after, limit = sa.bindparam("after", type_=sa.String), sa.bindparam("limit", type_=sa.Integer)
        parts = []
        for source in self.subjects:
            column = source.selected_columns[0]
            first = source.where(column > after).distinct().order_by(column).limit(limit).subquery()
            parts.append(sa.select(first.c[0].label("subject")))
        together = sa.union(*parts).subquery()
        return sa.select(together.c.subject).order_by(together.c.subject).limit(limit)


def alive(connection: sa.Connection, uuids: Sequence[str], *columns: sa.Column[Any]) -> dict[str, Any]:
    """Return the row (uuid and ``columns``) of each instance that is not deleted, by uuid."""
    table = tables.instances
    rows = connection.execute(sa.select(table.c.uuid, *columns).where(
        table.c.uuid.in_(uuids), table.c.deleted == sa.false()))
    return {row.uuid: row for row in rows}


def hold(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> None:
    """Lock the rows that fulfil the condition, in the order of their ids."""
    connection.execute(sa.select(table.c.id).where(where).order_by(table.c.id).with_for_update()).all()


def put(table: sa.Table, where: sa.ColumnElement[bool], **values: Any) -> Repair:
    """Return a repair that writes ``values``."""
    return run(sa.update(table).where(where).values(**values))


def run(statement: Any) -> Repair:
    """Return a repair that runs a statement."""
    return lambda connection: connection.execute(statement)
