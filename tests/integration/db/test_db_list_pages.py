"""Pages of servers by several sort keys, on PostgreSQL and MariaDB with their own order of texts and nulls."""

from __future__ import annotations

import pytest

from tests.unit.conductor.database.test_list_pages import (  # noqa: F401
    cut_pages,
    test_pages_by_several_sort_keys_continue_where_the_last_one_ended,
    two_projects,
)


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def page_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).new_database())
