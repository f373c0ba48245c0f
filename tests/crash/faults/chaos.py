"""Faults of a storm: processes, the broker, messages, the database, clocks.

Every fault heals: when :meth:`Chaos.run` returns, killed processes run again and frozen ones continue. Only clocks stay
wrong.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import requests
import sqlalchemy as sa

from nova.db import tables
from tests.crash.faults import clockwork, relay
from tests.crash.storm import Fault, Plan
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# Rows that operations of different servers share; transactions that lock them in another order may deadlock.
_SHARED = (tables.inventories, tables.compute_nodes, tables.quota_usages)
# Seconds until an evacuated host counts as up again during other faults.
_RETURNS = 90.0


class Chaos:
    """The executor of the faults of a plan. ``note`` is called with a line per fault, ``evacuate`` with a down host."""

    def __init__(self, nova: Cluster, rabbit: Rabbit, transport_url: str, server: Server | None,
                 note: Callable[[str], None], evacuate: Callable[[str], None]) -> None:
        self.nova = nova
        self.rabbit = rabbit
        self.messages = Messages(transport_url)
        self.server = server
        self._note = note
        self._evacuate = evacuate

    def run(self, plan: Plan) -> None:
        """Run all sequences of faults in parallel to their ends."""
        with concurrent.futures.ThreadPoolExecutor(len(plan.faults)) as pool:
            for future in [pool.submit(self._inject, faults) for faults in plan.faults]:
                future.result()

    def _inject(self, faults: list[Fault]) -> None:
        for fault in faults:
            time.sleep(fault.pause)
            self._note(f"FAULT {fault}")
            getattr(self, "_" + fault.kind.split("+")[0].split("-")[0])(fault)
            self._note(f"healed {fault}")

    # --- processes -----------------------------------------------------------------------------------
    def _kill(self, fault: Fault) -> None:
        names = fault.victim.split("+")
        self.nova.kill(*names)
        time.sleep(fault.seconds)
        self.nova.start(*names)

    def _term(self, fault: Fault) -> None:
        names = fault.victim.split("+")
        self.nova.stop(*names)
        self.nova.start(*names)

    def _freeze(self, fault: Fault) -> None:
        self.nova.freeze(fault.victim)
        time.sleep(fault.seconds)
        self.nova.thaw(fault.victim)

    def _down(self, fault: Fault) -> None:
        """Keep a dead host forced down, as an operator would, until it has removed its evacuated guests."""
        self.nova.kill(fault.victim)
        if self._declared(fault.victim, down=True):
            self._evacuate(fault.victim)
        time.sleep(fault.seconds)
        self.nova.start(fault.victim)
        eventually(lambda: self._declared(fault.victim, down=False), _RETURNS, f"{fault.victim} is reported as up",
                   interval=0.5)

    def _declared(self, host: str, down: bool) -> bool:
        """Force the host down or up; return False if it is refused or the API or conductors are unavailable."""
        try:
            found = self.nova.api.get(f"/os-services?binary=nova-compute&host={host}")["services"][0]
            response = self.nova.api.request("PUT", f"/os-services/{found['id']}", {"forced_down": down})
        except (requests.RequestException, AssertionError):
            return False
        self._note(f"{host} is {'down' if down else 'up'}: {response.status_code} {response.text[:120]}")
        return response.status_code == 200

    def _clock(self, fault: Fault) -> None:
        clockwork.jump(self.nova, fault.victim, float(fault.kind.removeprefix("clock")))

    # --- the broker and its messages -------------------------------------------------------------------
    def _broker(self, fault: Fault) -> None:
        self.rabbit.kill()
        time.sleep(fault.seconds)
        self.rabbit.start()

    def _purge(self, fault: Fault) -> None:
        self._meddle(fault, self.messages.lose)

    def _double(self, fault: Fault) -> None:
        self._meddle(fault, self.messages.double)

    def _shuffle(self, fault: Fault) -> None:
        self._meddle(fault, self.messages.shuffle)

    def _meddle(self, fault: Fault, how: Callable[[str, float], int]) -> None:
        try:
            self._note(f"{how(fault.victim, fault.seconds)} messages of {fault.victim} met {fault.kind}")
        except (OSError, amqp.AMQPError) as error:
            self._note(f"the broker is away: {type(error).__name__}")

    # --- the database ----------------------------------------------------------------------------------
    def _database(self, fault: Fault) -> None:
        assert self.server is not None
        self.server.kill()
        time.sleep(fault.seconds)
        self.server.restart()

    def _cut(self, fault: Fault) -> None:
        """Cut all connections repeatedly, so that some transactions are interrupted."""
        assert self.server is not None
        until = time.monotonic() + fault.seconds
        while time.monotonic() < until:
            self._note(f"{cut_connections(self.server, self.nova.database_url)} connections of the database cut")
            time.sleep(0.4)

    def _deadlocks(self, fault: Fault) -> None:
        self._note(f"{provoke_deadlocks(self.nova.database_url, fault.seconds)} transactions of ours were in the way")

    def _locks(self, fault: Fault) -> None:
        """Hold the write lock of the SQLite file for a while, as another writer would."""
        file = sa.make_url(self.nova.database_url).database
        connection = sqlite3.connect(str(file), timeout=30, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(fault.seconds)
        connection.execute("ROLLBACK")
        connection.close()


class Messages:
    """Faults of the messages between the exchange and a service's queue, as on a bad network."""

    def __init__(self, transport_url: str) -> None:
        self._url = transport_url

    def lose(self, queue: str, seconds: float) -> int:
        """Purge the queue and drop new messages to it for up to a second; return the number of lost messages."""
        with relay.connect(self._url) as connection:
            channel = connection.channel()
            lost = int(channel.queue_purge(queue))
            try:
                return lost + len(list(self._taken(channel, queue, min(seconds, 1.0), instead=True)))
            finally:
                channel.queue_bind(queue, relay.EXCHANGE, queue)

    def double(self, queue: str, seconds: float) -> int:
        """Deliver every message of the next ``seconds`` a second time, later and in another order."""
        with relay.connect(self._url) as connection:
            channel = connection.channel()
            copies = list(self._taken(channel, queue, seconds))
            self._deliver(channel, queue, copies, copies=True)
            return len(copies)

    def shuffle(self, queue: str, seconds: float) -> int:
        """Hold the messages of the next ``seconds``, then deliver them in another order, some of them twice."""
        with relay.connect(self._url) as connection:
            channel = connection.channel()
            try:
                held = list(self._taken(channel, queue, min(seconds, 1.5), instead=True))
            finally:
                channel.queue_bind(queue, relay.EXCHANGE, queue)
            self._deliver(channel, queue, held)
            self._deliver(channel, queue, held[::2], copies=True)
            return len(held)

    def _taken(self, channel: Any, queue: str, seconds: float, instead: bool = False) -> Iterator[Any]:
        """Return messages sent to the queue within ``seconds``; ``instead``: the queue does not receive them."""
        own = channel.queue_declare("", exclusive=True).queue
        channel.queue_bind(own, relay.EXCHANGE, queue)
        if instead:
            channel.queue_unbind(queue, relay.EXCHANGE, queue)
        time.sleep(seconds)
        if instead:
            channel.queue_bind(queue, relay.EXCHANGE, queue)
        channel.queue_unbind(own, relay.EXCHANGE, queue)
        while (message := channel.basic_get(own, no_ack=True)) is not None:
            yield message

    def _deliver(self, channel: Any, queue: str, messages: list[Any], copies: bool = False) -> None:
        for message in random.sample(messages, len(messages)):
            relay.deliver(channel, queue, message, copy=copies)


# --- the database --------------------------------------------------------------------------------------------
def cut_connections(server: Server, database_url: str) -> int:
    """Terminate all connections of the database; return their number."""
    name = sa.make_url(database_url).database
    engine = sa.create_engine(server.admin_url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if server.kind == "postgresql":
            cut = connection.scalars(sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}).all()
            return len(cut)
        found = connection.scalars(sa.text("SELECT id FROM information_schema.processlist WHERE db = :name"),
                                   {"name": name}).all()
        for number in found:
            with contextlib.suppress(sa.exc.DBAPIError):  # already ended
                connection.exec_driver_sql(f"KILL {number}")
        return len(found)


def provoke_deadlocks(database_url: str, seconds: float) -> int:
    """Lock shared rows in random order for ``seconds``; return the number of transactions that the database aborted.

    The database aborts Nova's transactions about as often.
    """
    engine = sa.create_engine(database_url, poolclass=sa.pool.NullPool, isolation_level="READ COMMITTED")
    until, victims, lock = time.monotonic() + seconds, 0, threading.Lock()

    def lock_rows(number: int) -> None:
        nonlocal victims
        chance = random.Random(number)
        while time.monotonic() < until:
            try:
                with engine.begin() as connection:
                    for table in chance.sample(_SHARED, len(_SHARED)):
                        connection.execute(sa.select(table).with_for_update())
                        time.sleep(0.05)
            except sa.exc.DBAPIError:
                with lock:
                    victims += 1
            time.sleep(0.05)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(lock_rows, number) for number in range(2)]:
            future.result()
    return victims
