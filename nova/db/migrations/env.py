"""Environment script of alembic; the connection comes from nova.db.maintenance.migrate."""

from typing import Any, Literal

from alembic import context

from nova.db import tables
from nova.db.sql.types import Json, Utc


def _render(kind: str, item: Any, _autogen: Any) -> str | Literal[False]:
    """Render column types of Nova without the Python type inside, which is not part of the schema."""
    if kind == "type" and isinstance(item, Json):
        return "Json(object)"
    if kind == "type" and isinstance(item, Utc):
        return "Utc()"
    return False


# The caller commits, so that an upgrade makes all its steps or none (on databases with transactional DDL).
context.configure(connection=context.config.attributes["connection"], target_metadata=tables.metadata,
                  transactional_ddl=True, render_item=_render)
context.run_migrations()
