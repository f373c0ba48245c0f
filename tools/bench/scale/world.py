"""A suite whose single nova-compute simulates a fleet: scenario, start and inspection."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
import yaml

from tests.integration import databases
from tests.integration.cluster import Cluster
from tests.integration.processes import Process, free_port
from tests.integration.rabbit import Rabbit, start_rabbitmq
from tools.bench import cpu
from tools.bench.counters import Broker, Counters, Database
from tools.bench.load import Connection, Unexpected
from tools.bench.world import broker_settings, intervals, memory_gb

CONDUCTORS = 2
_HEADERS = {"X-Auth-Token": f"scale:{'5' * 32}", "X-Roles": "admin", "OpenStack-API-Version": "compute 2.104"}
_SELECTED = re.compile(r"Selected hosts for (\d+) x \S+: .*\((\d+) nodes, ([\d.]+) ms\)")


def scenario(nodes: int, hosts: int) -> dict[str, Any]:
    """Return the scenario of ``nodes`` nodes on ``hosts`` service hosts: four kinds of hardware in two zones.

    A tenth of the hosts fails occasionally; builds are retried on other hosts.
    """
    hosts = min(hosts, nodes)
    kinds: list[tuple[str, float, dict[str, Any]]] = [
        ("general", 0.6, {"traits": ["HW_CPU_X86_AVX2"], "aggregates": ["zone-1"]}),
        ("memory", 0.2, {"memory_mb": 1048576, "traits": ["HW_CPU_X86_AVX2", "CUSTOM_LARGE"],
                         "aggregates": ["zone-2", "large"]}),
        ("accelerated", 0.1, {"inventories": {"CUSTOM_FPGA": 4}, "traits": ["CUSTOM_FPGA_CARD"],
                              "aggregates": ["zone-2"]}),
        ("old", 0.1, {"vcpus": 32, "memory_mb": 262144, "latency": {"spawn": 0.01}, "failure": {"spawn": 0.01},
                      "aggregates": ["zone-1"]})]
    groups, left, nodes_left = [], hosts, nodes
    for name, share, more in kinds:
        count = left if name == "old" else min(left, max(1, round(hosts * share)))
        nodes_per_host = max(1, round(nodes_left / left)) if left else 0
        if count:
            groups.append({"name": name, "hosts": count, "nodes": nodes_per_host, **more})
        left, nodes_left = left - count, nodes_left - count * nodes_per_host
    aggregates = {"zone-1": {"availability_zone": "zone-1"}, "zone-2": {"availability_zone": "zone-2"},
                  "large": {"metadata": {"memory": "large"}}}
    used = {name for group in groups for name in group["aggregates"]}
    return {"groups": groups, "aggregates": {name: aggregates[name] for name in sorted(used)}}


@dataclasses.dataclass
class World:
    """The running processes; see :func:`start`."""

    cluster: Cluster
    rabbit: Rabbit
    server: databases.Server
    engine: sa.Engine
    broker: Broker
    database: Database

    def process(self, name: str) -> Process:
        return self.cluster.processes[name]

    def roots(self) -> dict[str, list[int]]:
        """Return the main processes by name; conductors are grouped."""
        pids_by_name: dict[str, list[int]] = {}
        for name, process in self.cluster.processes.items():
            if process.running():
                pids_by_name.setdefault(name.partition("-")[0], []).append(process.pid)
        return {**pids_by_name, "rabbitmq": [self.rabbit.pid], "database": [self.server.process.pid]}

    def rss(self) -> dict[str, float]:
        """Return the resident memory of each process in MiB (conductors: the largest)."""
        return {name: max(cpu.memory(pid)["worker_rss"] for pid in pids)
                for name, pids in self.roots().items() if name not in ("database", "rabbitmq")}

    def counters(self) -> Counters:
        return Counters(self.broker, self.database)

    def connect(self) -> Connection:
        address = sa.make_url(self.cluster.api.url)
        return Connection(str(address.host), int(address.port or 0), _HEADERS)

    def api_answers(self) -> bool:
        try:
            with self.connect() as connection:
                return connection.request("GET", "/flavors")[0] == 200
        except OSError:
            return False

    def query(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.text(statement)))

    def count(self, what: str) -> int:
        return int(self.query(f"SELECT count(*) FROM {what}")[0][0])  # noqa: S608

    def states(self) -> dict[str, int]:
        """Return the number of existing servers by vm_state."""
        return dict(self.query("SELECT vm_state, count(*) FROM instances WHERE NOT deleted GROUP BY vm_state"))

    def under_way(self) -> int:
        return self.count("actions WHERE outcome IS NULL")

    def database_mb(self) -> float:
        return round(int(self.query("SELECT pg_database_size(current_database())")[0][0]) / 1024**2, 1)

    def tables_mb(self) -> dict[str, float]:
        """Return the sizes of the largest tables with their indexes in MB."""
        return {name: round(int(size) / 1024**2, 1) for name, size in self.query(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND relnamespace = "
            "'public'::regnamespace ORDER BY 2 DESC LIMIT 6")}

    def until(self, what: str, done: Any, deadline: float, pause: float = 0.2) -> float:
        """Wait until ``done()`` is true; return the seconds. Raises Unexpected at the deadline."""
        began = time.monotonic()
        while not done():
            for name, process in self.cluster.processes.items():
                if process._process is not None and not process.running():
                    raise Unexpected(f"{name} ended by itself:\n{process.tail()}")
            if time.monotonic() > deadline:
                raise Unexpected(f"Out of time while waiting until {what}")
            time.sleep(pause)
        return time.monotonic() - began

    def said(self, name: str, what: str, since: int = 0) -> bool:
        return what in log_after(self.process(name), since)


def log_size(process: Process) -> int:
    return process.log.stat().st_size if process.log.exists() else 0


def log_after(process: Process, since: int) -> str:
    """Return the log of a process after the first ``since`` bytes."""
    if not process.log.exists():
        return ""
    with process.log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")


def selects(text: str) -> dict[int, list[float]]:
    """Return scheduling times in ms by number of servers of the request, from the log of the scheduler."""
    times: dict[int, list[float]] = {}
    for count, _nodes, took in _SELECTED.findall(text):
        times.setdefault(int(count), []).append(float(took))
    return times


@contextlib.contextmanager
def start(fleet: dict[str, Any], network: str | None) -> Iterator[World]:
    """Start broker, database, conductors and API; scheduler and compute are started later. Removed at the end."""
    port = free_port()
    options = intervals()
    options["conductor"]["workers"] = 1
    with contextlib.ExitStack() as stack:
        rabbit = stack.enter_context(start_rabbitmq(("rabbitmq_prometheus",), broker_settings(port)))
        server = stack.enter_context(databases.start_postgresql(
            "-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.max=10000",
            "-c", "fsync=on", "-c", "shared_buffers=512MB", "-c", "max_wal_size=2GB"))
        url = server.new_database()
        cluster = Cluster(rabbit.new_vhost(), url, conductors=CONDUCTORS, schedulers=1, computes=1, options=options,
                          forked=False)
        stack.callback(cluster._clear)
        path = pathlib.Path(cluster.directory) / "fleet.yaml"
        path.write_text(yaml.safe_dump(fleet, sort_keys=False))
        with cluster.config.open("a") as file:
            file.write(f"[fake]\nscenario = {path}\n")
        cluster.manage("db", "sync")
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        name = sa.make_url(url).database or ""
        world = World(cluster, rabbit, server, engine, Broker(f"http://127.0.0.1:{port}/metrics"),
                      Database("postgresql", server.admin_url, name))
        conductors = [name for name in cluster.processes if name.startswith("conductor")]
        cluster.start(*conductors)
        world.until("the conductors are ready", lambda: all(world.said(name, "is ready") for name in conductors),
                    time.monotonic() + 60)
        cluster.start("api")
        world.until("the API answers", world.api_answers, time.monotonic() + 60)
        _furnish(world, network)
        yield world


def _furnish(world: World, network: str | None) -> None:
    """Create the resources for boots: an image, a flavor, optionally a network."""
    cluster = world.cluster
    if network:
        cluster.manage("network", "create", "--name", "net", "--cidr", network)
    content = cluster.directory / "image"
    content.write_bytes(b"\0" * 512)
    cluster.api.image_id = cluster.import_image(content, "plain", "raw")
    cluster.flavor("tiny", ram=64, disk=1)


def make_aggregates(world: World, fleet: dict[str, Any]) -> int:
    """Create the aggregates of the scenario with their hosts over the API; return the number of hosts added."""
    from nova.virt.fake import scenario as fake_scenario

    described = fake_scenario.parse(fleet)
    added = 0
    with world.connect() as connection:
        for name, wanted in described.aggregates.items():
            body = {"name": name}
            if wanted.availability_zone:
                body["availability_zone"] = wanted.availability_zone
            made = _post(connection, "/os-aggregates", {"aggregate": body})["aggregate"]
            action = f"/os-aggregates/{made['id']}/action"
            if wanted.metadata:
                _post(connection, action, {"set_metadata": {"metadata": wanted.metadata}})
            for host in described.hosts_of_aggregate(name):
                _post(connection, action, {"add_host": {"host": host}})
                added += 1
    return added


def _post(connection: Connection, path: str, body: Any) -> Any:
    import json

    status, content = connection.request("POST", path, json.dumps(body).encode())
    if status not in (200, 202):
        raise Unexpected(f"POST {path}: {status} {content[:500]!r}")
    return json.loads(content)


def machine() -> str:
    return f"{os.cpu_count()} cores, {memory_gb():.0f} GiB"
