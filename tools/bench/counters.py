"""Counters of messages and statements, read from the broker and the database."""

from __future__ import annotations

import collections
import dataclasses
import re
import time
import urllib.request
from typing import Any

import sqlalchemy as sa

_TRANSACTION = re.compile(r"\s*(begin|start transaction|commit|rollback|savepoint|release|set session)", re.IGNORECASE)


class Broker:
    """Message counters of RabbitMQ, read from its Prometheus plugin (always-on counters of the node)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def published(self) -> int:
        """Return the number of messages published so far: one per request, reply, cast or fanout."""
        return self._sum("rabbitmq_global_messages_received_total")

    def delivered(self) -> int:
        """Return the number of messages delivered to consumers so far: a fanout counts once per consumer."""
        return self._sum("rabbitmq_global_messages_delivered_consume_auto_ack_total",
                         "rabbitmq_global_messages_delivered_consume_manual_ack_total")

    def _sum(self, *names: str) -> int:
        with urllib.request.urlopen(self._url, timeout=10) as answer:  # noqa: S310
            text = answer.read().decode()
        values = re.findall(rf"^(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return int(sum(float(value) for value in values))


@dataclasses.dataclass
class Statements:
    """Counts of data statements, transactions (COMMIT and ROLLBACK) and, if available, data statements by text."""

    data: int = 0
    transactions: int = 0
    texts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __sub__(self, other: Statements) -> Statements:
        return Statements(self.data - other.data, self.transactions - other.transactions, self.texts - other.texts)


class Database:
    """Statement counters of a database server. SQLite has none: :meth:`statements` returns None."""

    def __init__(self, kind: str, admin_url: str | None, name: str) -> None:
        self._kind, self._name = kind, name
        # A permanent connection: a pool would send additional statements.
        self._connection = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT").connect() if admin_url else None
        if kind == "postgresql":
            self._all("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def statements(self) -> Statements | None:
        """Return the counts so far: data statements exclude BEGIN, COMMIT and similar; transactions count at their end.

        With MariaDB, the ROLLBACK that clients send when a connection returns to their pool counts as well.
        """
        if self._kind == "postgresql":
            return self._postgresql()
        return self._mariadb() if self._kind == "mariadb" else None

    def _postgresql(self) -> Statements:
        counts = Statements()
        for query, calls in self._all(
                "SELECT s.query, s.calls FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
                "WHERE d.datname = :name", name=self._name):
            if _TRANSACTION.match(query):
                counts.transactions += calls if re.match(r"\s*(commit|rollback\s*$)", query, re.IGNORECASE) else 0
            else:
                counts.data += calls
                text = re.sub(r"^PREPARE \w+(\(.*?\))? AS ", "", query)
                counts.texts[" ".join(text.split())[:160]] += calls
        return counts

    def _mariadb(self) -> Statements:
        counts = {name[4:].lower(): int(value) for name, value in self._all("SHOW GLOBAL STATUS LIKE 'Com\\_%'")}
        data = ("select", "insert", "insert_select", "update", "update_multi", "delete", "delete_multi", "replace",
                "replace_select")
        return Statements(sum(counts[name] for name in data), counts["commit"] + counts["rollback"],
                          collections.Counter({name: counts[name] for name in data if counts[name]}))

    def version(self) -> str:
        if self._connection is None:
            import sqlite3
            return f"SQLite {sqlite3.sqlite_version}"
        text = str(self._all("SELECT version()")[0][0])
        return text.partition(" (")[0] if self._kind == "postgresql" else f"MariaDB {text}"

    def _all(self, statement: str, **values: Any) -> list[Any]:
        assert self._connection is not None
        result = self._connection.execute(sa.text(statement), values)
        return list(result) if result.returns_rows else []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection.engine.dispose()


@dataclasses.dataclass
class Counted:
    """Counts of a period of ``seconds``."""

    seconds: float
    published: float
    delivered: float
    statements: Statements | None


class Counters:
    """The counters of broker and database, read together."""

    def __init__(self, broker: Broker, database: Database) -> None:
        self._broker, self._database = broker, database
        self.start()

    def start(self) -> None:
        self._statements, self._began = self._database.statements(), time.monotonic()
        self._published, self._delivered = self._broker.published(), self._broker.delivered()

    def stop(self) -> Counted:
        published, delivered = self._broker.published(), self._broker.delivered()
        seconds, statements = time.monotonic() - self._began, self._database.statements()
        return Counted(seconds, published - self._published, delivered - self._delivered,
                       statements - self._statements if statements and self._statements else None)
