"""[database]statement_timeout applies to every connection of a conductor."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from nova import bus, conf
from nova.conductor.service import ConductorService
from tests.unit.conductor.books import Books
from tests.unit.conductor.database.test_statement_limits import ENDLESS, cancelled_once


def test_statement_timeout_option_limits_statements_of_the_conductor(
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
