"""What the broker and the database count themselves."""

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
    """Messages through RabbitMQ, by its Prometheus plugin (always-on counters of the node)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def published(self) -> int:
        """Messages that clients have published so far: one for a request, its answer, a cast or a fanout each."""
        return self._sum("rabbitmq_global_messages_received_total")

    def delivered(self) -> int:
        """Messages that consumers have got so far: a fanout counts once for each of them."""
        return self._sum("rabbitmq_global_messages_delivered_consume_auto_ack_total",
                         "rabbitmq_global_messages_delivered_consume_manual_ack_total")

    def _sum(self, *names: str) -> int:
        with urllib.request.urlopen(self._url, timeout=10) as answer:  # noqa: S310
            text = answer.read().decode()
        values = re.findall(rf"^(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return int(sum(float(value) for value in values))


@dataclasses.dataclass
class Statements:
    """Data statements, transactions (COMMIT and ROLLBACK commands), and the former by text where known."""

    data: int = 0
    transactions: int = 0
    texts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __sub__(self, other: Statements) -> Statements:
        return Statements(self.data - other.data, self.transactions - other.transactions, self.texts - other.texts)


class Database:
    """Statements that a server has executed for one database. SQLite counts none: :meth:`statements` is None."""

    def __init__(self, kind: str, admin_url: str | None, name: str) -> None:
        self._kind, self._name = kind, name
        # One connection for good: a pool would send statements of its own.
        self._connection = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT").connect() if admin_url else None
        if kind == "postgresql":
            self._all("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    def statements(self) -> Statements | None:
        """BEGIN, COMMIT and the like are not data statements; a transaction counts by its end.

        MariaDB's clients also send a ROLLBACK when a connection goes back to their pool, and it counts.
        """
        if self._kind == "postgresql":
            return self._postgresql()
        return self._mariadb() if self._kind == "mariadb" else None

    def _postgresql(self) -> Statements:
        found = Statements()
        for query, calls in self._all(
                "SELECT s.query, s.calls FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
                "WHERE d.datname = :name", name=self._name):
            if _TRANSACTION.match(query):
                found.transactions += calls if re.match(r"\s*(commit|rollback\s*$)", query, re.IGNORECASE) else 0
            else:
                found.data += calls
                found.texts[" ".join(query.split())[:160]] += calls
        return found

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
    """What happened within ``seconds``."""

    seconds: float
    published: float
    delivered: float
    statements: Statements | None


class Counters:
    """Both, read together."""

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
