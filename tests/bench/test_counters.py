"""The benchmark's counters of statements and messages, on real servers."""

import amqp
import pytest
import sqlalchemy as sa

from tests.integration import databases
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import start_rabbitmq
from tools.bench.counters import Broker, Database
from tools.bench.world import broker_settings


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request):
    start, option = {"postgresql": (databases.start_postgresql, ("-c", "shared_preload_libraries=pg_stat_statements")),
                     "mariadb": (databases.start_mariadb, ())}[request.param]
    with start(*option) as running:
        yield running


def test_statements_and_transactions_are_counted_separately(server):
    url = server.new_database()
    engine = sa.create_engine(url)
    database = Database(server.kind, server.admin_url, sa.make_url(url).database)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE things (id INT)"))
    assert server.kind in database.version().lower()
    before = database.statements()
    for number in range(2):
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO things VALUES (:id)"), {"id": number})
            connection.execute(sa.text("UPDATE things SET id = id + 1"))
            connection.execute(sa.text("SELECT id FROM things WHERE id = :id"), {"id": number})
    with engine.connect() as connection:
        connection.execute(sa.text("DELETE FROM things"))
        connection.rollback()
    found = database.statements() - before
    engine.dispose()
    database.close()
    assert found.data == 7
    # PyMySQL sends a rollback when a connection returns to the pool, psycopg2 does not.
    assert found.transactions == {"postgresql": 3, "mariadb": 6}[server.kind]
    assert sum(found.texts.values()) == 7


def test_sqlite_has_no_statement_counter():
    database = Database("sqlite", None, "")
    assert database.statements() is None
    assert database.version().startswith("SQLite 3.")


def test_messages_are_counted_when_published_and_per_delivery():
    port = free_port()
    with start_rabbitmq(("rabbitmq_prometheus",), broker_settings(port)) as rabbit:
        address, _, vhost = rabbit.new_vhost().rpartition("@")[2].partition("/")
        broker = Broker(f"http://127.0.0.1:{port}/metrics")
        with amqp.Connection(address, userid="nova", password="nova", virtual_host=vhost) as connection:
            channel = connection.channel()
            channel.exchange_declare("all", "fanout", auto_delete=True)
            got = []
            for name in ("one", "two"):
                channel.queue_declare(name, auto_delete=True)
                channel.queue_bind(name, "all")
                channel.basic_consume(name, no_ack=True, callback=got.append)
            published, delivered = broker.published(), broker.delivered()
            for _ in range(5):
                channel.basic_publish(amqp.Message("hello"), exchange="all")
            while len(got) < 10:
                connection.drain_events(timeout=10)
            eventually(lambda: broker.published() - published == 5, 10, "5 messages were published")
            assert broker.delivered() - delivered == 10
