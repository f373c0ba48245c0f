"""Pages of servers by every sort key and filter, cut at every window, on PostgreSQL and MariaDB (two minutes)."""

from __future__ import annotations

import pytest

from tests.integration.db.test_db_list_pages import page_url  # noqa: F401
from tests.unit.conductor.database.test_list_pages import *  # noqa: F403

pytestmark = pytest.mark.slow
