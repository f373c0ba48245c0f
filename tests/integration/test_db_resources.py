"""The conductor's resources on PostgreSQL and MariaDB: the same behaviour as on SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nova import conf
from nova.db import migrate
from tests.integration.databases import mariadb, postgresql  # noqa: F401
from tests.unit.conductor.books import Books
from tests.unit.conductor.conftest import settings  # noqa: F401
from tests.unit.conductor.test_flavors import *  # noqa: F403
from tests.unit.conductor.test_quotas import *  # noqa: F403


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def books(request: pytest.FixtureRequest) -> Iterator[Books]:
    conf.register()
    url = request.getfixturevalue(request.param).new_database()
    migrate.sync(url)
    made = Books(url)
    yield made
    made.db.close()


@pytest.fixture
def core(books: Books) -> Iterator[Books]:
    books.empty()
    books.sent.__init__()  # type: ignore[misc]
    books.counter.take()
    return books
