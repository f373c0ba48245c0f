"""[database]statement_timeout reaches every connection of a conductor."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from nova import bus, conf
from nova.conductor.service import ConductorService
from tests.unit.conductor.books import Books
from tests.unit.conductor.database.test_statement_limits import ENDLESS, cancelled_once


def test_what_a_conductor_asks_is_limited_by_the_option(
        core: Books, database_url: str, settings: Callable[..., None], tmp_path: pathlib.Path) -> None:
    settings("connection", database_url, "database")
    settings("statement_timeout", 1, "database")
    settings("state_path", str(tmp_path))
    transport = bus.transport.messaging.get_rpc_transport(conf.CONF, url="fake://")
    service = ConductorService(transport)
    for database in (service.core.db, service._beats_db):
        cancelled_once(database, ENDLESS)
        database.close()
    transport.cleanup()
