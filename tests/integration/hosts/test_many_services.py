"""Several services of each kind are stopped, started and reloaded while clients boot and delete servers.

No operation is lost: a stopping service finishes its requests, and no request is answered with a 5xx status.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import requests
import sqlalchemy as sa

from tests.integration.client import Client
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit

_SETTLE = 60.0
# A conductor refuses requests after 5 s without the database; requests under way may see a shorter outage.
_DATABASE_TIMEOUT = 4.0


class ManyCluster(Cluster):
    """A cluster with two APIs on different ports, with two workers each."""

    def __init__(self, transport_url: str, database_url: str) -> None:
        options = {"fake": {"latency": "spawn:0.2,destroy:0.05"}, "api": {"workers": 2},
                   "DEFAULT": {"rpc_response_timeout": 25},
                   "conductor": {"workers": 2, "lease": 20}, "scheduler": {"workers": 2}}
        super().__init__(transport_url, database_url, computes=2, conductors=2, schedulers=2, options=options)
        port = free_port()
        self.urls = [self.api.url, f"http://127.0.0.1:{port}/v2.1"]
        self._add("api2", "api")
        with (self.directory / "api2.conf").open("a") as file:
            file.write(f"[api]\nport = {port}\n")

    def workers(self, name: str) -> list[psutil.Process]:
        return psutil.Process(self.processes[name].pid).children()

    def terminate(self, name: str) -> float:
        """Send SIGTERM and return the seconds until the service exits by itself."""
        process, started = psutil.Process(self.processes[name].pid), time.monotonic()
        self._wanted.discard(name)
        process.terminate()
        eventually(lambda: not self.processes[name].running(), 60, f"{name} ends")
        return time.monotonic() - started


    def start_and_wait(self, name: str) -> None:
        """Start the service and wait until it is ready."""
        log = self.processes[name].log
        before = log.stat().st_size
        self.start(name)
        said = "is ready" if "-" in name else "Listening"
        eventually(lambda: said in log.read_bytes()[before:].decode(), 60, f"{name} is running")
        time.sleep(0.3)  # until its second worker is ready


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, postgresql: Server) -> Iterator[ManyCluster]:
    with ManyCluster(rabbitmq.new_vhost(), postgresql.new_database()) as made:
        yield made


@pytest.fixture
def nova(cluster: ManyCluster) -> Iterator[ManyCluster]:
    """The cluster. Restores all services after the test and checks for tracebacks in the logs."""
    ends = {name: process.log.stat().st_size for name, process in cluster.processes.items()}
    yield cluster
    cluster.restore(_SETTLE)
    cluster.audit()
    said = {name: process.log.read_bytes()[ends[name]:].decode() for name, process in cluster.processes.items()}
    assert {name: text for name, text in said.items() if "Traceback" in text} == {}


class Clients:
    """Clients that boot and delete servers until stopped. They switch to the other API when a connection is refused.

    ``bad``: unexpected 5xx responses. ``unavailable``: requests refused because the database was down for more than 5
    s. ``lost``: connections closed without a response.
    """

    def __init__(self, nova: ManyCluster, count: int = 4) -> None:
        self.kept: list[str] = []
        self.deleted: list[str] = []
        self.bad: list[str] = []
        self.unavailable: list[str] = []
        self.outage = 0.0  # duration of the database outage, in seconds
        self.lost: list[str] = []
        self.slowest = 0.0
        self._nova = nova
        self._end = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(count)
        self._work = [self._pool.submit(self._run, number) for number in range(count)]

    def end(self) -> None:
        self._end.set()
        for work in self._work:
            work.result(60)
        self._pool.shutdown()

    def _run(self, number: int) -> None:
        clients = [Client(url) for url in self._nova.urls]
        turn = itertools.count(number)
        for round_ in itertools.count():
            if self._end.is_set():
                return
            answer = self._ask(clients, turn, "POST", "/servers", {"server": {
                "name": f"many-{number}-{round_}", "flavorRef": "tiny", "imageRef": self._nova.api.image_id,
                "networks": "auto"}})
            if answer is None or answer.status_code != 202:
                continue
            uuid = answer.json()["server"]["id"]
            self._ask(clients, turn, "GET", f"/servers/{uuid}")
            if round_ % 2:
                # a DELETE without a response guarantees nothing
                if self._ask(clients, turn, "DELETE", f"/servers/{uuid}") is not None:
                    self.deleted.append(uuid)
            else:
                self.kept.append(uuid)
            time.sleep(0.5)

    def _ask(self, clients: list[Client], turn: Iterator[int], method: str, path: str,
             body: object = None) -> requests.Response | None:
        for _try in range(20):
            client, started = clients[next(turn) % len(clients)], time.monotonic()
            try:
                answer = client.request(method, path, body)
            except requests.ConnectionError as error:
                if "refused" not in str(error):
                    self.lost.append(f"{method} {path}: {error}")
                    return None
                time.sleep(0.05)
                continue
            self.slowest = max(self.slowest, time.monotonic() - started)
            if answer.status_code == 503 and "The database is not available." in answer.text:
                self.unavailable.append(f"{method} {path}")
                return None
            if answer.status_code >= 500:
                self.bad.append(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
            return answer
        pytest.fail("no API takes connections")


@contextlib.contextmanager
def busy(nova: ManyCluster) -> Iterator[Clients]:
    """Run clients during the block, then check that all accepted requests were carried out."""
    clients = Clients(nova)
    try:
        eventually(lambda: len(clients.kept) > 4, 30, "the clients are at work")
        yield clients
    finally:
        clients.end()
    print(f"kept {len(clients.kept)}, deleted {len(clients.deleted)}, slowest answer {clients.slowest:.1f} s")
    assert clients.bad == []
    assert clients.unavailable == [] or clients.outage > _DATABASE_TIMEOUT
    nova.all_active(clients.kept, _SETTLE)
    nova.api.wait_gone(clients.deleted, _SETTLE)


def replace(nova: ManyCluster, *names: str) -> Callable[[], None]:
    def disturb() -> None:
        for name in names:
            print(f"{name} ended in {nova.terminate(name):.1f} s")
            nova.start_and_wait(name)

    return disturb


@pytest.mark.parametrize("names", [
    # The next test restarts these, too.
    pytest.param(("conductor-1", "conductor-2", "conductor-1"), marks=pytest.mark.slow),
    pytest.param(("scheduler-1", "scheduler-2"), marks=pytest.mark.slow),
    pytest.param(("api", "api2"), marks=pytest.mark.slow), ("compute-1", "compute-2"),
], ids=lambda names: names[0].partition("-")[0])
def test_restarting_services_in_turn_loses_no_request(nova: ManyCluster, names: tuple[str, ...]) -> None:
    with busy(nova) as clients:
        replace(nova, *names)()
    assert clients.lost == []


def test_restarting_services_concurrently_loses_no_request(nova: ManyCluster) -> None:
    with busy(nova) as clients, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for work in [pool.submit(replace(nova, *names)) for names in (
                ("conductor-1", "conductor-2"), ("scheduler-1", "scheduler-2"), ("api", "api2"))]:
            work.result(120)
    assert clients.lost == []


def test_killed_workers_are_replaced(nova: ManyCluster) -> None:
    """Only the response of a killed API worker is lost."""
    with busy(nova) as clients:
        for name in ("api", "api2"):
            victim = nova.workers(name)[0]
            victim.kill()
            eventually(lambda name=name, victim=victim: len(
                {worker.pid for worker in nova.workers(name)} - {victim.pid}) == 2, 20, "another worker has started")
            assert b"was killed by SIGKILL" in nova.processes[name].log.read_bytes()
            time.sleep(0.5)
    assert len(clients.lost) <= 2 * 4


@pytest.mark.parametrize("name", ["api", "conductor-1", pytest.param("scheduler-1", marks=pytest.mark.slow)])
def test_reload_replaces_workers_without_lost_requests(nova: ManyCluster, name: str) -> None:
    before = {worker.pid for worker in nova.workers(name)}
    with busy(nova) as clients:
        os.kill(nova.processes[name].pid, signal.SIGHUP)
        eventually(lambda: not {worker.pid for worker in nova.workers(name)} & before
                   and len(nova.workers(name)) == 2, 30, "all workers are replaced")
        time.sleep(1)
    assert clients.lost == []


def test_stopping_api_closes_keep_alive_connections_in_order(nova: ManyCluster) -> None:
    client = Client(nova.urls[1])
    assert client.request("GET", "/flavors").headers.get("Connection") != "close"
    psutil.Process(nova.processes["api2"].pid).terminate()
    nova._wanted.discard("api2")
    answers = []
    with contextlib.suppress(requests.ConnectionError):
        for _number in range(200):
            answers.append(client.request("GET", "/flavors"))
            time.sleep(0.02)
    assert {answer.status_code for answer in answers} == {200}
    assert answers[-1].headers.get("Connection") == "close"
    eventually(lambda: not nova.processes["api2"].running(), 20, "the API ends")


def slowly(nova: ManyCluster, latency: str) -> None:
    """Set the latency of the fake hypervisors, effective from their next start."""
    text = nova.config.read_text()
    nova.config.write_text("\n".join(
        f"latency = {latency}" if line.startswith("latency = ") else line for line in text.split("\n")))


@pytest.fixture
def slow_hypervisors(nova: ManyCluster) -> Iterator[None]:
    before = nova.config.read_text()
    slowly(nova, "spawn:4,destroy:0.05")
    replace(nova, "compute-1", "compute-2")()
    nova.wait_ready()
    yield
    nova.config.write_text(before)
    nova.start_missing()
    replace(nova, "compute-1", "compute-2")()


@pytest.mark.usefixtures("slow_hypervisors")
def test_stopped_compute_finishes_running_builds_and_resumes_the_others(nova: ManyCluster) -> None:
    ids = nova.boot_many(30)
    names = ("compute-1", "compute-2")
    time.sleep(2)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        seconds = list(pool.map(nova.terminate, names))
    print(f"the computes ended in {seconds} s")
    assert max(seconds) < 15, "nova-compute waited for orders that had not started"
    servers = nova.api.servers()
    assert {"ACTIVE", "BUILD"} == {servers[uuid]["status"] for uuid in ids}
    nova.start(*names)
    nova.all_active(ids, _SETTLE)


@pytest.mark.usefixtures("slow_hypervisors")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_second_signal_stops_a_service_at_once(nova: ManyCluster, number: signal.Signals) -> None:
    ids = nova.boot_many(4)
    time.sleep(1)
    process = nova.processes["compute-1"]
    family = [psutil.Process(process.pid), *nova.workers("compute-1")]
    nova._wanted.discard("compute-1")
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert process.running()
    os.kill(process.pid, number)
    left = psutil.wait_procs(family, 2)[1]  # a worker that has ended may wait for init, its new parent
    assert [worker for worker in left if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE] == []
    nova.start("compute-1")
    nova.all_active(ids, _SETTLE)


def test_another_conductor_resumes_operations_of_a_stopped_conductor(nova: ManyCluster, tmp_path: pathlib.Path) -> None:
    """Builds without a scheduler wait in the conductor, whose lease is 20 s."""
    schedulers = ("scheduler-1", "scheduler-2")
    nova.stop(*schedulers, "conductor-2")
    ids = nova.boot_many(12)
    nova.start_and_wait("conductor-2")
    nova.terminate("conductor-1")
    nova.start(*schedulers)
    started = time.monotonic()
    nova.all_active(ids, 18)
    print(f"active {time.monotonic() - started:.1f} s after the conductor ended")


def test_processes_share_no_connection(nova: ManyCluster) -> None:
    """A connection opened before the fork of workers would deliver replies to the wrong worker."""
    for name, process in nova.processes.items():
        family = [psutil.Process(process.pid), *nova.workers(name)]
        ends = collections.Counter((one.laddr, one.raddr) for member in family for one in member.net_connections("inet")
                                   if one.status == psutil.CONN_ESTABLISHED)
        assert len(ends) >= len(family) - 1, f"{name} is not connected"
        assert set(ends.values()) == {1}, f"processes of {name} share a connection"


# --- the database ----------------------------------------------------------------------------------------
def test_dropped_database_connections_are_reopened_without_lost_requests(nova: ManyCluster, postgresql: Server) -> None:
    engine = sa.create_engine(postgresql.admin_url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
    dropped = 0
    with busy(nova) as clients:
        for _round in range(3):
            with engine.connect() as connection:
                dropped += len(connection.execute(sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                    "AND datname = :name"), {"name": sa.make_url(nova.database_url).database}).all())
            time.sleep(1)
    assert dropped > 10
    assert clients.lost == []


def test_database_restart_loses_no_request(nova: ManyCluster, postgresql: Server) -> None:
    with busy(nova) as clients:
        started = time.monotonic()
        postgresql.kill()
        time.sleep(1)
        postgresql.restart()
        clients.outage = time.monotonic() - started
        time.sleep(3)
    assert clients.lost == []


# --- status of services ----------------------------------------------------------------------------------
def test_service_list_shows_every_worker(nova: ManyCluster) -> None:
    def listed() -> dict[tuple[str, str], set[int]]:
        return {(service["binary"], service["host"]): {load["pid"] for load in service["load"] or []}
                for service in json.loads(nova.manage("service", "list", "--json"))}

    expected = {(f"nova-{name.partition('-')[0].removesuffix('2')}", name): {
        worker.pid for worker in nova.workers(name)} for name in nova.processes}
    with busy(nova):
        eventually(lambda: listed() == expected, 30, "all workers are listed", interval=1)
        print(nova.manage("service", "list"))
    shown = {service["binary"] for service in nova.api.get("/os-services")["services"]}
    assert shown == {"nova-compute", "nova-conductor", "nova-scheduler"}
