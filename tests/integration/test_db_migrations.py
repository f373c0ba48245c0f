"""The migrations on PostgreSQL and MariaDB."""

from __future__ import annotations

import pytest

from tests.unit.conductor.test_migrations import *  # noqa: F403


@pytest.fixture(params=["postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).new_database())
