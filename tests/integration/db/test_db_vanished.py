"""Transactions while the database server vanishes without closing its connections (power loss, failover)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from nova import exception
from nova.db.sql.engine import Database
from tests.integration.databases import Server
from tests.integration.network.linuxnet_lab import sh
from tests.integration.port_relay import PortRelay

_SPACE, _ADDRESS = "nova-test-vanish", "198.18.77.2"
_SLEEP = {"postgresql": "SELECT pg_sleep(300)", "mariadb": "SELECT SLEEP(300)"}
# Seconds in which every transaction must end; without a limit the system needs 15 minutes to two hours.
_BOUND = 60.0


@pytest.fixture
def address() -> Iterator[str]:
    """Return an address in a network namespace of its own."""
    sh("ip", "netns", "add", _SPACE)
    try:
        sh("ip", "link", "add", "nova-vanish", "type", "veth", "peer", "name", "eth0", "netns", _SPACE)
        sh("ip", "addr", "add", "198.18.77.1/24", "dev", "nova-vanish")
        sh("ip", "link", "set", "nova-vanish", "up")
        sh("ip", "-n", _SPACE, "addr", "add", f"{_ADDRESS}/24", "dev", "eth0")
        sh("ip", "-n", _SPACE, "link", "set", "eth0", "up")
        yield _ADDRESS
    finally:
        sh("ip", "link", "delete", "nova-vanish", check=False)  # an open socket may keep the namespace
        sh("ip", "netns", "delete", _SPACE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_transactions_end_soon_after_the_database_server_vanished(
        kind: str, address: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    relay = PortRelay(_SPACE, address, server.port)
    url = sa.make_url(server.new_database()).set(host=address, port=server.port, query={})
    database = Database(url.render_as_string(hide_password=False), max_retries=0)
    errors: list[Exception] = []
    begun = threading.Event()

    def run(statement: str) -> None:
        def transaction(connection: sa.Connection) -> None:
            begun.set()
            connection.execute(sa.text(statement))

        try:
            database.read(transaction)
        except exception.ServiceUnavailable as error:
            errors.append(error)

    idle = database.engine.connect()
    threads = [threading.Thread(target=run, args=(statement,), daemon=True) for statement in (_SLEEP[kind], "SELECT 1")]
    try:
        threads[0].start()
        assert begun.wait(10)
        threading.Event().wait(1.0)  # the server acknowledges the statement
        idle.close()
        sh("ip", "-n", _SPACE, "link", "set", "eth0", "down")
        threads[1].start()  # on the idle connection
    finally:
        for thread in threads:
            thread.join(_BOUND)
        relay.close()
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert len(errors) == 2
