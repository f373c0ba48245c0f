"""Pages of servers by several sort keys, with the collation and NULL order of PostgreSQL and MariaDB."""

from __future__ import annotations

import pytest

from tests.unit.conductor.database.test_list_pages import (  # noqa: F401
    cut_pages,
    test_pages_by_several_sort_keys_continue_after_the_marker,
    two_projects,
)


@pytest.fixture(scope="module", params=["postgresql", pytest.param("mariadb", marks=pytest.mark.slow)])
def page_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param).new_database())
