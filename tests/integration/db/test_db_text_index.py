"""The text index of servers on PostgreSQL and MariaDB."""

from __future__ import annotations

import pytest

from tests.unit.conductor.database.test_text_index import *  # noqa: F403


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def index_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).new_database())
