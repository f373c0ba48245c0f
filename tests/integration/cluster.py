"""A complete Nova as separate processes, as run by an operator: API, conductors, schedulers, computes.

::

    with Cluster(rabbitmq.new_vhost(), database_url) as nova:
        server_id = nova.api.boot("web")
        nova.kill("compute-1")
        nova.start("compute-1")
        nova.api.wait(server_id, "ACTIVE")
        nova.audit()

The processes are named api, conductor-1, scheduler-1, compute-1 and so on. All waits have timeouts, and all processes
are killed at the end. Their logs are copied to the directory NOVA_TEST_LOGS, if it is set.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import pytest
import requests

from tests.integration import forkserver
from tests.integration.client import Client
from tests.integration.processes import Process, eventually, free_port
from tests.paths import ROOT

Options = Mapping[str, Mapping[str, Any]]
# The running clusters of this test session; their logs are shown when a test fails.
RUNNING: list[Cluster] = []
# The commands of nova-manage that prepare the database of a cluster.
PREPARATIONS = (("db", "sync"), ("network", "create", "--name", "net", "--cidr", "10.77.0.0/22"))
# Seconds until all services have started on a loaded machine with two cores.
_START = 90.0


@dataclasses.dataclass(frozen=True)
class Place:
    """A compute host elsewhere: the prefix of its command lines, and options of nova.conf for its services only."""

    host: str
    prefix: Sequence[str]
    options: Options = dataclasses.field(default_factory=dict)


class Cluster:
    """A Nova deployment. ``options`` are further sections of nova.conf.

    ``places`` have a nova-compute and a nova-metadata each (compute-HOST, metadata-HOST) in addition to the
    ``computes`` of this machine. ``proxies`` are names of console proxies to run. The state_path is created in
    ``parent``. ``launcher`` is a command line that runs the service named by the argument after it, in place of the
    service's own program. ``forked``: services start as forks of one process, which is wrong for measurements of CPU
    time and memory and for a launcher that must run before Nova is imported.
    """

    def __init__(self, transport_url: str, database_url: str | None = None, *, computes: int = 1, conductors: int = 2,
                 schedulers: int = 2, options: Options | None = None, places: Sequence[Place] = (),
                 proxies: Sequence[str] = (), parent: str = "/tmp", launcher: Sequence[str] = (),
                 forked: bool = True) -> None:
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="nova-cluster-", dir=parent))
        self.directory.chmod(0o755)  # guests run as another user
        self.config = self.directory / "nova.conf"
        self.launcher = list(launcher)
        self.forked = forked
        self.transport_url = transport_url
        self.database_url = database_url or f"sqlite:///{self.directory}/nova.sqlite"
        port = int((options or {}).get("api", {}).get("port") or free_port())
        self.api = Client(f"http://127.0.0.1:{port}/v2.1")
        sections = _sections(self.directory, transport_url, self.database_url, port)
        for section, values in (options or {}).items():
            sections.setdefault(section, {}).update(values)
        _write_config(self.config, sections)
        self.processes: dict[str, Process] = {}
        # Names of the processes that should be running.
        self._wanted: set[str] = set()
        # (binary, host) of the services that send reports.
        self._reports: dict[str, tuple[str, str]] = {}
        for number in range(conductors):
            self._add(f"conductor-{number + 1}", "conductor")
        for number in range(schedulers):
            self._add(f"scheduler-{number + 1}", "scheduler")
        for number in range(computes):
            self._add(f"compute-{number + 1}", "compute")
        for place in places:
            for kind in ("compute", "metadata"):
                self._add(f"{kind}-{place.host}", kind, place)
        for name in proxies:
            self._add(name, f"console_proxies:{name}")
        self._add("api", "api")

    def __enter__(self) -> Self:
        RUNNING.append(self)
        try:
            self._prepare()
            conductors = [name for name in self.processes if name.startswith("conductor")]
            self.start(*conductors)
            # A call before a conductor has declared its queue waits for the RPC timeout.
            eventually(lambda: all("is ready" in self.processes[name].tail() for name in conductors), _START,
                       "the conductors are ready")
            self.start(*self.processes.keys() - conductors)
            self.wait_ready()
            self.flavor("tiny", ram=64, disk=1)
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
        if self in RUNNING:
            RUNNING.remove(self)
        kept = os.environ.get("NOVA_TEST_LOGS")
        if kept:
            shutil.copytree(self.directory, pathlib.Path(kept) / self.directory.name,
                            ignore=shutil.ignore_patterns("guests", "instances", "images", "*.sqlite*"))
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- processes -----------------------------------------------------------------------------------
    def kill(self, *names: str) -> None:
        """Send SIGKILL to these processes and their workers."""
        for name in names:
            self._wanted.discard(name)
            self.processes[name].kill()

    def start(self, *names: str) -> None:
        """Start these processes without waiting for them (see :meth:`wait_ready`)."""
        for name in names:
            self.processes[name].start()
            self._wanted.add(name)

    def start_missing(self) -> None:
        """Start all processes that are not running."""
        self.start(*(name for name, process in self.processes.items() if not process.running()))

    def stop(self, *names: str) -> None:
        """Stop these processes in order, by SIGTERM."""
        self._wanted.difference_update(names)
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name: self.processes[name].stop(), names))

    def freeze(self, name: str) -> None:
        """Freeze the process while it does not hold SQLite's lock, which would block all other processes."""
        eventually(lambda: self._frozen(name), 30, f"{name} is frozen", interval=0.05)

    def _frozen(self, name: str) -> bool:
        self.processes[name].freeze()
        if not self.database_url.startswith("sqlite:") or _can_be_written(self.directory / "nova.sqlite"):
            return True
        self.processes[name].thaw()
        return False

    def thaw(self, name: str) -> None:
        self.processes[name].thaw()

    def wait_ready(self, timeout: float = _START) -> None:
        """Wait until every process is registered and up, and every compute has reported its nodes."""
        eventually(lambda: self._missing() == set(), timeout, "all services are up", interval=0.2)

    def api_returns(self, timeout: float = 30.0) -> None:
        """Wait until the API answers a request that needs the database."""
        def ask() -> bool:
            try:
                return self.api.request("GET", "/flavors").status_code == 200
            except requests.RequestException:
                return False

        eventually(ask, timeout, "the API answers", interval=0.2)

    def _missing(self) -> set[str]:
        for name in self._wanted:
            if not self.processes[name].running():
                pytest.fail(f"{name} ended by itself:\n{self.processes[name].tail()}")
        expected = {self._reports[name] for name in self._wanted & self._reports.keys()}
        try:
            up = {(service["binary"], service["host"]) for service in self.api.get("/os-services")["services"]
                  if service["state"] == "up"}
            nodes = {("nova-compute", node["service"]["host"])
                     for node in self.api.get("/os-hypervisors/detail")["hypervisors"]}
        except (requests.RequestException, AssertionError) as error:
            return {f"the API: {error}"}
        return {host for binary, host in expected
                if (binary, host) not in up or (binary == "nova-compute" and (binary, host) not in nodes)}

    # --- nova-manage ---------------------------------------------------------------------------------
    def manage(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run nova-manage, which must succeed, and return its output."""
        return self.manage_all(arguments, timeout=timeout)

    def manage_all(self, *commands: Sequence[str], timeout: float = 120.0) -> str:
        """Run several nova-manage commands, which must succeed, in one process, and return their output."""
        config = ["--config-file", str(self.config)]
        program = ("import sys; from nova.cmd.manage import main; "
                   f"sys.exit(next(filter(None, map(main, {[[*config, *command] for command in commands]!r})), 0))")
        done = forkserver.run([sys.executable, "-c", program], environment(), timeout)
        assert done.returncode == 0, f"{commands}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def status(self, *arguments: str) -> str:
        """Run nova-status, which must report no failure, and return its output."""
        done = self._run("status", arguments, 60.0)
        assert done.returncode in (0, 1), f"nova-status: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def audit(self) -> None:
        """Check that nova-manage audit reports no inconsistent records and no running operations."""
        self.no_crashes()
        done = self._run("manage", ("audit",), 120.0)
        assert (done.returncode, done.stdout) == (0, ""), f"nova-manage audit:\n{done.stdout}{done.stderr[-3000:]}"

    def no_crashes(self) -> None:
        """Check that no process crashed in C code, which a restart by the supervisor would hide."""
        for name, process in self.processes.items():
            if process.log.exists() and b"Fatal Python error" in process.log.read_bytes():
                pytest.fail(f"{name} crashed:\n{process.log.read_text()[-6000:]}")

    def books_balance(self) -> bool:
        """Return True if nova-manage audit reports nothing."""
        done = self._run("manage", ("audit",), 120.0)
        return (done.returncode, done.stdout) == (0, "")

    def _run(self, program: str, arguments: Iterable[str], timeout: float) -> subprocess.CompletedProcess[str]:
        command = [*command_of(program), "--config-file", str(self.config), *arguments]
        return forkserver.run(command, environment(), timeout)

    def import_image(self, file: pathlib.Path, name: str, disk_format: str, **properties: str) -> str:
        """Add a file to the image directory and return the image id."""
        pairs = [item for key, value in properties.items() for item in ("--property", f"{key}={value}")]
        return self.manage("image", "import", str(file), "--name", name, "--disk-format", disk_format, *pairs).strip()

    def flavor(self, name: str, ram: int, disk: int) -> None:
        """Create a flavor with one CPU and its name as id. ``ram`` in MiB, ``disk`` in GiB."""
        self.api.post("/flavors", {"flavor": {"id": name, "name": name, "ram": ram, "vcpus": 1, "disk": disk}})

    # --- many servers --------------------------------------------------------------------------------
    def boot_many(self, count: int, name: str = "many") -> list[str]:
        """Boot ``count`` servers with separate requests, eight at a time."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda number: self.api.boot(f"{name}-{number}"), range(count)))

    def wait_settled(self, ids: Sequence[str], timeout: float) -> dict[str, Any]:
        """Wait until these servers have no running operation, and return them by id without the deleted ones."""
        def look() -> list[dict[str, Any]]:
            servers = {uuid: server for uuid, server in self.api.servers().items() if uuid in set(ids)}
            busy = [server for server in servers.values()
                    if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
            return [] if busy else [servers]  # a non-empty list, also if no server is left

        return dict(eventually(look, timeout, "all servers have settled", interval=0.3)[0])

    def all_active(self, ids: Sequence[str], timeout: float) -> None:
        """Check that all these servers become ACTIVE."""
        servers = self.wait_settled(ids, timeout)
        others = {uuid: (server["status"], server.get("fault")) for uuid, server in servers.items()
                  if server["status"] != "ACTIVE"}
        assert not others, f"{len(others)} of {len(ids)} servers did not become ACTIVE: {others}"
        assert set(servers) == set(ids)

    def delete_all(self, timeout: float = 60.0, at_once: bool = False) -> None:
        """Delete all servers and wait until they are deleted. ``at_once`` also deletes servers that could be
        restored."""
        ids = list(self.api.servers())
        for uuid in ids:
            # A server that was deleted before may be missing or just be reclaimed.
            if at_once:
                response = self.api.request("POST", f"/servers/{uuid}/action", {"forceDelete": None})
            else:
                response = self.api.request("DELETE", f"/servers/{uuid}")
            assert response.status_code in (202, 204, 404), response.text
        self.api.wait_gone(ids, timeout)

    def restore(self, timeout: float | None = None) -> None:
        """Restart all services and wait until they are up; with a ``timeout`` also until there is no server."""
        self.start_missing()
        self.wait_ready()
        if timeout is not None:
            self.delete_all(timeout)

    def logs(self) -> list[tuple[str, str]]:
        """Return (title, end of the log) of each process."""
        return [(f"log of {name}", process.tail()) for name, process in self.processes.items()]

    def _add(self, name: str, kind: str, place: Place | None = None) -> None:
        own = self.directory / f"{name}.conf"
        place = place or Place(name, ())
        _write_config(own, {**place.options, "DEFAULT": {"host": place.host, **place.options.get("DEFAULT", {})}})
        if kind in ("conductor", "scheduler", "compute"):
            self._reports[name] = (f"nova-{kind}", place.host)
        program = [*self.launcher, kind] if self.launcher else command_of(kind)
        self.processes[name] = Process(
            name, [*place.prefix, *program, "--config-file", str(self.config), "--config-file", str(own)],
            self.directory / f"{name}.log", env=environment(), forked=self.forked and not place.prefix)

    def _prepare(self) -> None:
        """Create the tables, and the network and image that every test needs to boot."""
        content = self.directory / "image"
        content.write_bytes(b"\0" * 512)
        # One interpreter for the three commands, because importing Nova takes longer than the commands.
        printed = self.manage_all(
            *PREPARATIONS, ("image", "import", str(content), "--name", "plain", "--disk-format", "raw"))
        self.api.image_id = printed.split()[-1]


def _can_be_written(file: pathlib.Path) -> bool:
    with contextlib.closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def _sections(directory: pathlib.Path, transport_url: str, database_url: str, port: int) -> dict[str, Any]:
    """Return sections of nova.conf with short intervals, so that waits of minutes in production take seconds."""
    return {
        "DEFAULT": {
            "transport_url": transport_url, "state_path": directory, "report_interval": 1, "service_down_time": 10,
            "rpc_response_timeout": 10, "compute_driver": "fake", "debug": False,
            # Other deployments may use the same libvirt.
            "instance_name_template": f"test{os.getpid()}-%08x"},
        "database": {"connection": database_url},
        "api": {"listen": "127.0.0.1", "port": port, "workers": 1, "auth_strategy": "noauth"},
        "conductor": {"workers": 1, "lease": 4, "recovery_interval": 1},
        "scheduler": {"workers": 1, "refresh_interval": 5},
        "network": {"driver": "none"},
        "image": {"driver": "directory"},
        "fake": {"directory": directory / "guests"},
        "quota": dict.fromkeys(("instances", "cores", "ram"), -1),
    }


def _write_config(path: pathlib.Path, sections: Options) -> None:
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in values.items())]
    path.write_text("\n".join(lines) + "\n")


def command_of(name: str) -> list[str]:
    module, _colon, function = name.partition(":")
    return [sys.executable, "-c",
            f"import sys; from nova.cmd.{module} import {function or 'main'} as main; sys.exit(main())"]


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
