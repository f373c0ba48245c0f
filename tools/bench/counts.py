"""Messages on the bus and SQL statements of a boot, a stop and a delete, by the counters of broker and database.

One client acts, one server after the other, so nothing is gathered that comes separately elsewhere. What the services
say whether anything happens or not (heartbeats, looks for expired leases) is measured on the idle suite and
subtracted; so is what asking whether the servers are done costs.
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

# Seconds after which nothing of an operation is still on its way.
_SETTLE = 2.0
_POLL = 0.25
_PATIENCE = 60.0
_ASKED = 25


def measure(world: World, amounts: Amounts) -> dict[str, Any]:
    """Per boot, stop and delete; statements are null where the database does not count (SQLite)."""
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

        boot()  # rows that a project gets once
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
    """Counts what is done, less what happens anyway."""

    def __init__(self, world: World, idle: float) -> None:
        self._counters = world.counters()
        self._asked = 0
        time.sleep(_SETTLE)
        self._idle = self._during(lambda: time.sleep(idle))
        with world.connect() as connection:
            self._ask(connection, "status=BUILD")
            self._asking = self._during(lambda: [self._ask(connection, "status=BUILD") for _ in range(_ASKED)])

    def background(self) -> dict[str, Any]:
        """What the idle suite does in a second."""
        idle, statements = self._idle, self._idle.statements
        return {"idle_messages_per_s": round(idle.published / idle.seconds, 2),
                "idle_statements_per_s": round(statements.data / idle.seconds, 2) if statements else None}

    def count(self, name: str, many: int, act: Callable[[], None], wait: Callable[[], None]) -> dict[str, Any]:
        """What one of the ``many`` that ``act`` does costs."""
        self._asked = 0

        def all_of_it() -> None:
            act()
            wait()
            time.sleep(_SETTLE)

        found = self._during(all_of_it)
        asked = self._asked

        def each(pick: Callable[[Counted], float]) -> float:
            idle = pick(self._idle) / self._idle.seconds
            asking = (pick(self._asking) - idle * self._asking.seconds) / _ASKED
            return round((pick(found) - idle * found.seconds - asking * asked) / many, 2)

        results: dict[str, Any] = {
            f"messages_per_{name}": each(lambda counted: counted.published),
            f"deliveries_per_{name}": each(lambda counted: counted.delivered),
            f"statements_per_{name}": None, f"transactions_per_{name}": None}
        if found.statements is not None:
            results |= {
                f"statements_per_{name}": each(lambda counted: _of(counted, "data")),
                f"transactions_per_{name}": each(lambda counted: _of(counted, "transactions")),
                f"texts_per_{name}": {text: round(calls / many, 2) for text, calls
                                      in found.statements.texts.most_common() if calls * 2 >= many}}
        print(f"  {name:7} {results[f'messages_per_{name}']} messages, {results[f'statements_per_{name}']} statements, "
              f"{results[f'transactions_per_{name}']} transactions", flush=True)
        return results

    def wait(self, connection: Connection, busy: str) -> None:
        """Until no server is in this state any more."""
        end = time.monotonic() + _PATIENCE
        while self._ask(connection, busy):
            if time.monotonic() > end:
                raise Unexpected(f"Servers are still busy: {busy}")
            time.sleep(_POLL)

    def _ask(self, connection: Connection, busy: str) -> bool:
        self._asked += 1
        return bool(connection.get(f"/servers?limit=1&{busy}")["servers"])

    def _during(self, act: Callable[[], Any]) -> Counted:
        self._counters.start()
        act()
        return self._counters.stop()


def _of(counted: Counted, name: str) -> float:
    return float(getattr(counted.statements, name))


