"""The suite under test: separate processes, a private RabbitMQ and database, and the intervals of production."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import socket
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

import nova
from tests.integration import databases
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit, start_rabbitmq
from tools.bench.counters import Broker, Counters, Database
from tools.bench.load import Connection

NODES = 100
FLAVORS = 5
SERVICES = ("api", "conductor", "scheduler", "compute")
# Seconds within which a service must start, even on a busy machine.
_TIMEOUT = 180.0
_PROJECT = "b" * 32
_HEADERS = {"X-Roles": "admin", "OpenStack-API-Version": "compute 2.104"}


@dataclasses.dataclass(frozen=True)
class Setup:
    """The configuration of the suite. ``nodes``: nodes of each of the ``computes``. ``durable``: the database syncs
    every commit to disk, as in production.
    """

    database: str = "postgresql"
    api_workers: int = 2
    conductor_workers: int = 2
    scheduler_workers: int = 1
    computes: int = 1
    nodes: int = NODES
    networks: str = "none"
    durable: bool = True
    options: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


class World:
    """A running suite; use :func:`start`."""

    def __init__(self, setup: Setup, rabbit: Rabbit, server: databases.Server | None, database_url: str | None,
                 nova_cluster: Cluster, broker: Broker) -> None:
        self.setup, self.nova, self.broker = setup, nova_cluster, broker
        self._rabbit, self._server = rabbit, server
        self.database_url = database_url or f"sqlite:///{nova_cluster.directory}/nova.sqlite"
        name = sa.make_url(self.database_url).database or ""
        self.database = Database(setup.database, server.admin_url if server else None, name)
        self.address = sa.make_url(nova_cluster.api.url)
        self.image_id = nova_cluster.api.image_id

    def roots(self) -> dict[str, list[int]]:
        """Return the main processes of the services, the broker and the database, by name."""
        pids = {name: [process.pid for key, process in self.nova.processes.items() if key.startswith(name)]
                 for name in SERVICES}
        pids["rabbitmq"] = [self._rabbit.pid]
        if self._server is not None:
            pids["database"] = [self._server.process.pid]
        return pids

    def process(self, service: str) -> Any:
        """Return the first process of a service, with its workers."""
        processes = self.nova.processes
        return processes["api"] if service == "api" else processes[f"{service}-1"]

    def counters(self) -> Counters:
        return Counters(self.broker, self.database)

    def connect(self, project: str = _PROJECT) -> Connection:
        """Return a new connection to the API as administrator of a project (default: that of the benchmark)."""
        return Connection(str(self.address.host), int(self.address.port or 0), self.headers(project))

    @staticmethod
    def headers(project: str = _PROJECT) -> dict[str, str]:
        """Return the request headers with the credentials of a project."""
        return {"X-Auth-Token": f"bench:{project}", **_HEADERS}

    def server_body(self, name: str, networks: str | None = None) -> bytes:
        """Return the body of POST /servers; ``networks``: instead of those of the setup."""
        return json.dumps({"server": {"name": name, "flavorRef": "tiny", "imageRef": self.image_id,
                                      "networks": networks or self.setup.networks}}).encode()

    def furnish(self) -> None:
        """Create the flavors of a typical cloud."""
        for number in range(FLAVORS - 1):
            self.nova.flavor(f"m1.{number}", ram=512 << number, disk=1 + number)

    def stop_all(self) -> None:
        """Stop all services in order; broker and database stay."""
        self.nova.stop(*self.nova.processes)

    def start_all(self) -> None:
        """Start all services and wait until they are ready."""
        conductor = self.start_service("conductor")
        # wait_ready detects a process that has ended.
        eventually(lambda: conductor() or not self.process("conductor").running(), _TIMEOUT,
                   "the conductors are ready", interval=0.02)
        for name in SERVICES:
            if name != "conductor":
                self.start_service(name)
        self.nova.wait_ready(_TIMEOUT)

    def start_service(self, service: str) -> Callable[[], bool]:
        """Start a service; return a function that returns True once all its workers have logged that they are ready."""
        process = self.process(service)
        offset = process.log.stat().st_size if process.log.exists() else 0
        workers = {"api": self.setup.api_workers, "conductor": self.setup.conductor_workers,
                   "scheduler": self.setup.scheduler_workers}.get(service, 1)
        self.nova.start(process.name)

        def ready() -> bool:
            with process.log.open("rb") as file:
                file.seek(offset)
                return file.read().count(b"is ready") >= workers

        return ready

    def environment(self) -> dict[str, Any]:
        """Return a description of the machine and the software."""
        last_minute, last_five, _fifteen = os.getloadavg()
        return {
            "cores": os.cpu_count(), "cpu": _cpu_model(), "memory_gb": round(memory_gb(), 1),
            "load_average_at_start": [round(last_minute, 2), round(last_five, 2)], "system": platform.platform(),
            "python": platform.python_version(), "nova": nova.__version__, "database": self.setup.database,
            "database_version": self.database.version(), "setup": dataclasses.asdict(self.setup),
            "host": socket.gethostname()}


def intervals() -> dict[str, dict[str, Any]]:
    """Return the intervals of production, since the cost of idling is measured as well."""
    return {"DEFAULT": {"report_interval": 10, "service_down_time": 60, "rpc_response_timeout": 60},
            "conductor": {"lease": 30, "recovery_interval": 5}, "scheduler": {"refresh_interval": 60}}


def broker_settings(port: int) -> str:
    """Return settings of RabbitMQ that serve its existing counters at this port without further collection."""
    return (f"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {port}\n"
            "management_agent.disable_metrics_collector = true\ncollect_statistics_interval = 60000\n")


@contextlib.contextmanager
def start(setup: Setup) -> Iterator[World]:
    """Start the suite and yield it when ready; remove it at the end."""
    port = free_port()
    options = intervals()
    # All clients have the same address.
    options["api"] = {"workers": setup.api_workers, "connections_per_client": 5000, "max_connections": 5000}
    options["conductor"]["workers"] = setup.conductor_workers
    options["scheduler"]["workers"] = setup.scheduler_workers
    options["fake"] = {"nodes": setup.nodes}
    for section, values in setup.options.items():
        options.setdefault(section, {}).update(values)
    with contextlib.ExitStack() as stack:
        rabbit = stack.enter_context(start_rabbitmq(("rabbitmq_prometheus",), broker_settings(port)))
        server = _database(stack, setup)
        url = server.new_database() if server else None
        cluster = stack.enter_context(Cluster(
            rabbit.new_vhost(), url, conductors=1, schedulers=1, computes=setup.computes, options=options,
            forked=False))
        world = World(setup, rabbit, server, url, cluster, Broker(f"http://127.0.0.1:{port}/metrics"))
        stack.callback(world.database.close)
        world.furnish()
        yield world


def _database(stack: contextlib.ExitStack, setup: Setup) -> databases.Server | None:
    if setup.database == "postgresql":
        return stack.enter_context(databases.start_postgresql(
            "-c", "shared_preload_libraries=pg_stat_statements", "-c", "pg_stat_statements.max=10000",
            "-c", f"fsync={'on' if setup.durable else 'off'}", "-c", "shared_buffers=256MB"))
    if setup.database == "mariadb":
        return stack.enter_context(databases.start_mariadb(
            f"--innodb-flush-log-at-trx-commit={1 if setup.durable else 2}", "--innodb-buffer-pool-size=256M"))
    return None


def _cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
