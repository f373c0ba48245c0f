"""The conductor's resources on PostgreSQL and MariaDB: the same behaviour as on SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nova import conf
from nova.db import migrate
from tests.integration.databases import mariadb, postgresql  # noqa: F401
from tests.unit.conductor.books import Books
from tests.unit.conductor.conftest import settings  # noqa: F401
from tests.unit.conductor.test_aggregates import *  # noqa: F403
from tests.unit.conductor.test_flavors import *  # noqa: F403
from tests.unit.conductor.test_networks import *  # noqa: F403
from tests.unit.conductor.test_nodes import *  # noqa: F403
from tests.unit.conductor.test_quotas import *  # noqa: F403
from tests.unit.conductor.test_security_groups import *  # noqa: F403
from tests.unit.conductor.test_services import *  # noqa: F403
from tests.unit.conductor.test_user_resources import *  # noqa: F403


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def books(request: pytest.FixtureRequest) -> Iterator[Books]:
    conf.register()
    url = request.getfixturevalue(request.param).new_database()
    migrate.sync(url)
    made = Books(url)
    yield made
    made.db.close()


@pytest.fixture
def core(books: Books) -> Books:
    books.reset()
    return books
