"""Bus messages and SQL statements per boot, stop and delete, from the counters of broker and database.

A single client processes one server after another, so that no requests are batched. Periodic work (heartbeats, checks
for expired leases) is measured on the idle suite and subtracted, and so is the cost of polling the servers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tools.bench.amounts import Amounts
from tools.bench.counters import Counted
from tools.bench.load import Connection, Unexpected
from tools.bench.world import World

# Seconds after which all messages of an operation have arrived.
_SETTLE = 2.0
_POLL = 0.25
_TIMEOUT = 60.0
_POLLS = 25


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Return the counts per boot, stop and delete; statements are None if the database does not count (SQLite)."""
    counts, many = Counts(world, amounts.idle), amounts.counted
    with world.connect() as connection:
        ids: list[str] = []

        def boot() -> None:
            for number in range(many):
                answer = connection.expect(202, "POST", "/servers", world.server_body(f"count-{number}"))
                ids.append(str(json.loads(answer)["server"]["id"]))

        def stop() -> None:
            for server_id in ids:
                connection.expect(202, "POST", f"/servers/{server_id}/action", b'{"os-stop": null}')

        def delete() -> None:
            for server_id in ids:
                connection.expect(204, "DELETE", f"/servers/{server_id}")

        boot()  # warm-up: creates the rows that a project needs once
        counts.wait(connection, "status=BUILD")
        delete()
        counts.wait(connection, "task_state=deleting")
        ids.clear()
        results = counts.background()
        for name, act, busy in (("boot", boot, "status=BUILD"), ("stop", stop, "task_state=powering-off"),
                                ("delete", delete, "task_state=deleting")):
            results |= counts.count(name, many, act, lambda busy=busy: counts.wait(connection, busy))
    return results


class Counts:
    """Counts per operation, corrected for periodic work and polling."""

    def __init__(self, world: World, idle: float) -> None:
        self._counters = world.counters()
        self._polls = 0
        time.sleep(_SETTLE)
        self._idle = self._during(lambda: time.sleep(idle))
        with world.connect() as connection:
            self._poll(connection, "status=BUILD")
            self._polling = self._during(lambda: [self._poll(connection, "status=BUILD") for _ in range(_POLLS)])

    def background(self) -> dict[str, Any]:
        """Return the messages and statements per second of the idle suite."""
        idle, statements = self._idle, self._idle.statements
        return {"idle_messages_per_s": round(idle.published / idle.seconds, 2),
                "idle_statements_per_s": round(statements.data / idle.seconds, 2) if statements else None}

    def count(self, name: str, many: int, act: Callable[[], None], wait: Callable[[], None]) -> dict[str, Any]:
        """Return the counts per operation for ``act``, which runs ``many`` operations."""
        self._polls = 0

        def run() -> None:
            act()
            wait()
            time.sleep(_SETTLE)

        total = self._during(run)
        polls = self._polls

        def per_operation(pick: Callable[[Counted], float]) -> float:
            idle = pick(self._idle) / self._idle.seconds
            polling = (pick(self._polling) - idle * self._polling.seconds) / _POLLS
            return round((pick(total) - idle * total.seconds - polling * polls) / many, 2)

        results: dict[str, Any] = {
            f"messages_per_{name}": per_operation(lambda counted: counted.published),
            f"deliveries_per_{name}": per_operation(lambda counted: counted.delivered),
            f"statements_per_{name}": None, f"transactions_per_{name}": None}
        if total.statements is not None:
            results |= {
                f"statements_per_{name}": per_operation(lambda counted: _of(counted, "data")),
                f"transactions_per_{name}": per_operation(lambda counted: _of(counted, "transactions")),
                f"texts_per_{name}": {text: round(calls / many, 2) for text, calls
                                      in total.statements.texts.most_common() if calls * 2 >= many}}
        print(f"  {name:7} {results[f'messages_per_{name}']} messages, {results[f'statements_per_{name}']} statements, "
              f"{results[f'transactions_per_{name}']} transactions", flush=True)
        return results

    def wait(self, connection: Connection, busy: str) -> None:
        """Wait until no server is in this state. Raises Unexpected after a minute."""
        end = time.monotonic() + _TIMEOUT
        while self._poll(connection, busy):
            if time.monotonic() > end:
                raise Unexpected(f"Servers are still busy: {busy}")
            time.sleep(_POLL)

    def _poll(self, connection: Connection, busy: str) -> bool:
        self._polls += 1
        return bool(connection.get(f"/servers?limit=1&{busy}")["servers"])

    def _during(self, act: Callable[[], Any]) -> Counted:
        self._counters.start()
        act()
        return self._counters.stop()


def _of(counted: Counted, name: str) -> float:
    return float(getattr(counted.statements, name))


