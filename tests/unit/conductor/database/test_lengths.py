"""Values too long for their column are invalid input on every database, SQLite included."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.servers import servers
from tests.unit.conductor.books import Books, server

WIDE = sorted((table.name, column.name) for table in tables.metadata.tables.values() for column in table.c
              if isinstance(column.type, sa.String) and column.type.length)


def _row(table: sa.Table) -> dict[str, Any]:
    """Return values that fit the columns of the table."""
    values: dict[str, Any] = {}
    for column in table.c:
        if isinstance(column.type, sa.String):
            values[column.name] = "x"
        elif isinstance(column.type, sa.Integer) and column.name != "id":
            values[column.name] = 1
    return values


def test_value_longer_than_its_column_is_invalid_input(core: Books) -> None:
    for name, column in WIDE:
        table = tables.metadata.tables[name]
        length = table.c[column].type.length
        values = {**_row(table), column: "x" * (length + 1)}
        for statement in (sa.insert(table).values(values), sa.update(table).values(values)):
            with pytest.raises(exception.InvalidInput, match=f"{column} may have at most {length} characters"):
                core.db.write(lambda connection, statement=statement: connection.execute(statement))


def test_filter_value_may_be_longer_than_its_column(core: Books) -> None:
    with pytest.raises(exception.InstanceNotFound):
        core.db.read(lambda connection: servers.get(connection, "x" * 1000))
    uuid = server(core, display_description="x" * 255).uuid
    core.db.write(lambda connection: servers.update(connection, "x" * 1000, {"display_name": "y"}))
    assert core.db.read(lambda connection: servers.get(connection, uuid)).display_name == "vm"


def test_too_long_value_in_any_inserted_row_is_invalid_input(core: Books) -> None:
    table = tables.quotas
    rows = [{"project_id": name, "user_id": "", "limits": {}} for name in ("a", "b" * 256)]
    with pytest.raises(exception.InvalidInput, match="project_id"):
        core.db.write(lambda connection: connection.execute(sa.insert(table), rows))
    assert not core.db.read(lambda connection: connection.execute(sa.select(table)).all())


def test_lengths_of_an_insert_in_batches_are_checked_once(core: Books) -> None:
    """SQLAlchemy sends the rows in batches, each of which is reported with the parameters of all rows."""
    measured = []

    class Text(str):
        __slots__ = ()

        def __len__(self) -> int:
            measured.append(self)
            return super().__len__()

    def note(*arguments: Any) -> None:
        batches.append(arguments[2])

    batches: list[str] = []
    rows = [{"project_id": Text(f"p{number}"), "user_id": "", "limits": {}} for number in range(2100)]
    insert = sa.insert(tables.quotas).returning(tables.quotas.c.project_id)
    sa.event.listen(core.db.engine, "before_cursor_execute", note)
    core.db.write(lambda connection: connection.execute(insert, rows))
    sa.event.remove(core.db.engine, "before_cursor_execute", note)
    assert len(batches) > 2
    assert len(measured) == len(rows)


def test_database_error_contains_no_parameter_values(core: Books, caplog: pytest.LogCaptureFixture) -> None:
    """Values may be passwords, user data, tokens."""
    row = sa.insert(tables.instances).values(uuid="u", user_data="c2VjcmV0", admin_pass="s3cr3t")
    with caplog.at_level("DEBUG"), pytest.raises(Exception, match="project_id") as caught:
        core.db.write(lambda connection: connection.execute(row))
    told = "".join(map(str, (caught.value, caught.value.__cause__, caught.value.__context__, caplog.text)))
    assert "INSERT INTO instances" in told
    assert "s3cr3t" not in told
    assert "c2VjcmV0" not in told
