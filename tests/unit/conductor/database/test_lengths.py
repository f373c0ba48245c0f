"""Values too long for their column are bad input, on SQLite as on other databases."""

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
    """Values that fit."""
    values: dict[str, Any] = {}
    for column in table.c:
        if isinstance(column.type, sa.String):
            values[column.name] = "x"
        elif isinstance(column.type, sa.Integer) and column.name != "id":
            values[column.name] = 1
    return values


def test_no_column_takes_more_than_it_has_room_for(core: Books) -> None:
    for name, column in WIDE:
        table = tables.metadata.tables[name]
        length = table.c[column].type.length
        values = {**_row(table), column: "x" * (length + 1)}
        for statement in (sa.insert(table).values(values), sa.update(table).values(values)):
            with pytest.raises(exception.InvalidInput, match=f"{column} may have at most {length} characters"):
                core.db.write(lambda connection, statement=statement: connection.execute(statement))


def test_what_is_looked_for_may_be_as_long_as_it_likes(core: Books) -> None:
    with pytest.raises(exception.InstanceNotFound):
        core.db.read(lambda connection: servers.get(connection, "x" * 1000))
    uuid = server(core, display_description="x" * 255).uuid
    core.db.write(lambda connection: servers.update(connection, "x" * 1000, {"display_name": "y"}))
    assert core.db.read(lambda connection: servers.get(connection, uuid)).display_name == "vm"


def test_one_of_many_rows_that_does_not_fit_is_found(core: Books) -> None:
    table = tables.quotas
    rows = [{"project_id": name, "user_id": "", "limits": {}} for name in ("a", "b" * 256)]
    with pytest.raises(exception.InvalidInput, match="project_id"):
        core.db.write(lambda connection: connection.execute(sa.insert(table), rows))
    assert not core.db.read(lambda connection: connection.execute(sa.select(table)).all())


def test_an_error_of_the_database_repeats_no_values(core: Books, caplog: pytest.LogCaptureFixture) -> None:
    """Values may be passwords, user data, tokens."""
    row = sa.insert(tables.instances).values(uuid="u", user_data="c2VjcmV0", admin_pass="s3cr3t")
    with caplog.at_level("DEBUG"), pytest.raises(Exception, match="project_id") as caught:
        core.db.write(lambda connection: connection.execute(row))
    told = "".join(map(str, (caught.value, caught.value.__cause__, caught.value.__context__, caplog.text)))
    assert "INSERT INTO instances" in told
    assert "s3cr3t" not in told
    assert "c2VjcmV0" not in told
