"""Lists of a million servers: the time of one request over HTTP, on each database."""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
import time
from typing import Any

from nova.api.compute.servers import servers_list
from nova.db.sql.engine import Database
from tools.bench import million_rows, world
from tools.bench.amounts import Amounts
from tools.bench.load import Connection
from tools.bench.world import Setup

# Requests of each list; servers of a page.
_TIMES, _LIMIT = 5, 100
# Milliseconds above which a list is printed at once: the target for an expression that nothing matches.
_SLOW = 300.0
_ALL = f"/servers?all_tenants=1&limit={_LIMIT}"


def lists(live: int, deleted: int) -> dict[str, str]:
    """Return the path of each list by its name."""
    day = million_rows.created_at(live + deleted, deleted // 2)
    after = day + datetime.timedelta(days=1)
    filters = ["status=ERROR", "status=ACTIVE", "task_state=rebooting", "tags=rare", "tags=none",
               "not-tags=web", "user_id=user-0000007",
               "host=host-0000007", f"image={million_rows.uuid_of(7)}", "locked=true", "ip=10.0.1.7", "ip6=fd00",
               "name=server-00", "name=server-0.*77$", "name=(nothing|nobody)", "reservation_id=r-77"]
    filters += [f"sort_key={key}" for key in servers_list._SORT_KEYS]
    filters += ["sort_key=display_name&sort_dir=asc&sort_key=created_at&sort_dir=desc",
                "sort_key=host&sort_key=display_name", "sort_key=availability_zone&sort_key=display_name",
                "sort_key=vm_state&sort_dir=asc&sort_key=launched_at&sort_dir=desc",
                "sort_key=locked_by&sort_key=task_state&sort_key=key_name&sort_key=display_name"]
    paths = {"plain": _ALL, **{query: f"{_ALL}&{query}" for query in filters},
             **{f"deleted=1&{query}": f"{_ALL}&deleted=1&{query}" for query in filters}}
    paths["changes-since"] = f"{_ALL}&changes-since={day:%Y-%m-%dT%H:%M:%SZ}"
    for query in ("", "status=error", "user_id=user-0000007", "migration_type=live-migration", "host=host-0000005",
                 f"changes-since={day:%Y-%m-%dT%H:%M:%SZ}"):
        paths[f"migrations {query}"] = f"/os-migrations?limit={_LIMIT}&{query}"
    paths["usage of an old day"] = (f"/os-simple-tenant-usage?start={day:%Y-%m-%dT%H:%M:%S}"
                                    f"&end={after:%Y-%m-%dT%H:%M:%S}&limit={_LIMIT}")
    paths["actions"] = f"/servers/{million_rows.uuid_of(live + deleted - 1)}/os-instance-actions"
    return paths


def measure(setup: Setup, amounts: Amounts) -> dict[str, Any]:
    """Return ``million``: list -> database -> milliseconds (the median), and ``million_worst_ms``."""
    live, deleted = amounts.million
    times_by_list: dict[str, dict[str, float]] = {}
    for database in amounts.databases:
        with world.start(dataclasses.replace(setup, database=database)) as running:
            running.stop_all()
            began = time.monotonic()
            filled = Database(running.database_url)
            million_rows.fill(filled.engine, live, deleted)
            million_rows.index_texts(filled)
            filled.close()
            print(f"  {database}: {live} live and {deleted} deleted servers in {time.monotonic() - began:.0f} s",
                  flush=True)
            running.start_all()
            with running.connect() as connection:
                for name, path in lists(live, deleted).items():
                    ms = times_by_list.setdefault(name, {})[database] = _milliseconds(connection, path)
                    if ms > _SLOW:
                        print(f"  {database}: {name} took {ms} ms", flush=True)
    for name, times in sorted(times_by_list.items(), key=lambda item: -max(item[1].values())):
        print(f"  {name:60}" + "".join(f"{database} {ms:8.1f} ms  " for database, ms in times.items()), flush=True)
    return {"million": times_by_list, "million_worst_ms": max(max(times.values()) for times in times_by_list.values())}


def _milliseconds(connection: Connection, path: str) -> float:
    """Return the median time; infinity if the list is refused because it takes too long."""
    times = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        status, _body = connection.request("GET", path)
        times.append((time.perf_counter() - began) * 1000 if status == 200 else math.inf)
    return round(statistics.median(times), 2)
