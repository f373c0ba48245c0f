"""Checks of invariants: each lists its subjects, examines some of them, and locks one of them."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables

# Runs in the transaction that found it, which has the subject locked.
Repair = Callable[[sa.Connection], object]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A contradiction among rows. ``key``: its subject's; ``subject`` names that in words where the key does not.

    ``repair`` None: an operator decides.
    """

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
    """An invariant of subjects that are known by a key (a uuid, a project), each of them by itself."""

    # Rows checked in one transaction: fewer where each has many related rows.
    page_size = 500

    @abc.abstractmethod
    def subjects(self) -> Sequence[sa.Select[Any]]:
        """Return statements of one column each that together select the keys of all subjects. They are built once."""

    @abc.abstractmethod
    def examine(self, connection: sa.Connection, keys: Sequence[str]) -> Iterator[Finding]:
        """Return what is wrong with these subjects, each finding with the key of its subject.

        Each statement reads the rows of these subjects only, so that it stays short.
        """

    @abc.abstractmethod
    def lock(self, connection: sa.Connection, key: str) -> None:
        """Hold the subject still until the transaction ends: whatever changes it waits.

        Rows are locked in the order that operations lock them: actions, nodes, quota, instances.
        """

    def page(self, connection: sa.Connection, after: str, limit: int) -> list[str]:
        """Return the keys of the next subjects in order, at most ``limit``."""
        return list(connection.scalars(self._page_statement, {"after": after, "limit": limit}))

    @functools.cached_property
    def _page_statement(self) -> sa.Select[Any]:
        """The statement for the first ``limit`` values after ``after`` of all sources; it reads no source further."""
        after, limit = sa.bindparam("after", type_=sa.String), sa.bindparam("limit", type_=sa.Integer)
        parts = []
        for source in self.subjects():
            column = source.selected_columns[0]
            first = source.where(column > after).distinct().order_by(column).limit(limit).subquery()
            parts.append(sa.select(first.c[0].label("subject")))
        together = sa.union(*parts).subquery()
        return sa.select(together.c.subject).order_by(together.c.subject).limit(limit)


def alive(connection: sa.Connection, uuids: Sequence[str], *columns: sa.Column[Any]) -> dict[str, Any]:
    """uuid -> these columns of the instances among these that are not deleted."""
    table = tables.instances
    rows = connection.execute(sa.select(table.c.uuid, *columns).where(
        table.c.uuid.in_(uuids), table.c.deleted == sa.false()))
    return {row.uuid: row for row in rows}


def hold(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> None:
    """Lock the rows of which this is true, in the order of their ids."""
    connection.execute(sa.select(table.c.id).where(where).order_by(table.c.id).with_for_update()).all()


def put(table: sa.Table, where: sa.ColumnElement[bool], **values: Any) -> Repair:
    """The repair that writes ``values`` there."""
    return run(sa.update(table).where(where).values(**values))


def run(statement: Any) -> Repair:
    """The repair that a statement is."""
    def repair(connection: sa.Connection) -> None:
        connection.execute(statement)

    return repair
