"""A recorder of SQL statements, for tests of costs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from oslo_context import context as oslo_context

from nova.db.sql.engine import Database


class StatementCounter:
    """A recorder of the statements of databases, by request."""

    def __init__(self, *databases: Database) -> None:
        self._recorded: list[tuple[str | None, str]] = []
        for database in databases:
            sa.event.listen(database.engine, "before_cursor_execute", self._record)

    def _record(self, _connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        current = oslo_context.get_current()
        if not statement.startswith("BEGIN"):
            self._recorded.append((current.request_id if current else None, statement))

    def take(self) -> list[str]:
        """Return all statements since the previous call."""
        taken, self._recorded = self._recorded, []
        return [statement for _request_id, statement in taken]

    def of(self, request_id: str) -> list[str]:
        """Return the statements of a request, in their order."""
        return [statement for recorded, statement in self._recorded if recorded == request_id]
