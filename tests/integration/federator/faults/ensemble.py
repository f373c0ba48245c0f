"""A control plane with three members of etcd and two API servers, in which parts are killed and frozen."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientError, web

from nova.federator.kube.client import Api
from nova.federator.local.cluster import LocalCluster, Part, _free_ports
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster, until
from tests.integration.federator.faulty import FaultyServer
from tests.integration.federator.federation import Process, SupervisedFederation

MEMBERS = ("etcd", "etcd-2", "etcd-3")
SERVERS = ("kube-apiserver", "kube-apiserver-2")  # of the agents, and of the scheduler
_UNCOUNTED = {"leases", "events", "clusters", "clusterreports"}


class Ensemble(LocalCluster):
    """A control plane. The agents use the first API server, the scheduler the second one."""

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory, "nova", clusters.CONTROL_PLANE)
        self._clients: dict[str, int] = {}
        self._peers: dict[str, int] = {}
        self._second = 0

    async def _prepare(self) -> None:
        if not self._clients:
            *ports, self._second = _free_ports(2 * len(MEMBERS) - 1)
            self._clients = dict(zip(MEMBERS, (self._ports.etcd, *ports[:2]), strict=True))
            self._peers = dict(zip(MEMBERS, (self._ports.peer, *ports[2:]), strict=True))

    @property
    def second_server(self) -> str:
        return f"https://127.0.0.1:{self._second}"

    def leader(self) -> str:
        """Return the name of the etcd member that leads, or an empty text if there is none."""
        states = {}
        for name in MEMBERS:
            for entry in self._etcdctl(name, "endpoint", "status"):
                states[entry["Status"]["header"]["member_id"]] = name, entry["Status"].get("leader", 0)
        return next((states[leader][0] for _name, leader in states.values() if leader in states), "")

    def _etcdctl(self, name: str, *arguments: str) -> list[dict[str, Any]]:
        result = subprocess.run(
            [self.binaries.path("etcdctl"), f"--endpoints=https://127.0.0.1:{self._clients[name]}",
             f"--cacert={self.pki}/etcd-ca.crt", f"--cert={self.pki}/apiserver-etcd-client.crt",
             f"--key={self.pki}/apiserver-etcd-client.key", "--command-timeout=1s", "--dial-timeout=1s", "-w", "json",
             *arguments], capture_output=True, text=True, timeout=10, check=False, env={"ETCDCTL_API": "3"})
        answer = json.loads(result.stdout) if result.returncode == 0 else []
        return answer if isinstance(answer, list) else []

    async def _start_part(self, name: str, part: Part, started: list[str]) -> None:
        await super()._start_part(name, part, started)
        if name == "etcd":
            for member in MEMBERS[1:]:
                await super()._start_part(member, self._parts()[member], started)

    async def _start_others(self, parts: Mapping[str, Part], started: list[str]) -> None:
        """Wait also until the second API server is ready."""
        await super()._start_others(parts, started)
        async with Api(msgspec.structs.replace(self.config, server=self.second_server)) as api:
            await self._wait_for(api, "/api/v1/namespaces/kube-system", parts)

    def _part_names(self) -> list[str]:
        return [*super()._part_names(), *MEMBERS[1:], SERVERS[1]]

    def _parts(self) -> dict[str, Part]:
        parts = super()._parts()
        etcd, server = parts["etcd"], parts["kube-apiserver"]
        for name in MEMBERS:
            client, peer = (f"https://127.0.0.1:{ports[name]}" for ports in (self._clients, self._peers))
            members = ",".join(f"{member}=https://127.0.0.1:{port}" for member, port in self._peers.items())
            parts[name] = _changed(etcd, {
                "--name": name, "--data-dir": str(self.directory / name), "--initial-cluster": members,
                "--listen-client-urls": client, "--advertise-client-urls": client, "--listen-peer-urls": peer,
                "--initial-advertise-peer-urls": peer})
        store = ",".join(f"https://127.0.0.1:{port}" for port in self._clients.values())
        parts["kube-apiserver"] = _changed(server, {"--etcd-servers": store})
        parts[SERVERS[1]] = _changed(server, {"--etcd-servers": store, "--secure-port": str(self._second)})
        return parts

    def send(self, names: Iterable[str], number: int) -> None:
        for name in names:
            self.processes.signal(name, number)

    def restart(self, names: Iterable[str]) -> None:
        """Start parts that have ended. Members of etcd join their peers with the data that they had."""
        for name in names:
            if not self.processes.record(name):
                part = self._parts()[name]
                self.processes.start(name, part.command, part.environment)


def _changed(part: Part, options: dict[str, str]) -> Part:
    """Return a part with other values of options that it has."""
    command = [f"{name}={options[name]}" if (name := word.partition("=")[0]) in options else word
               for word in part.command]
    assert len([word for word in command if word.partition("=")[0] in options]) == len(options)
    return part._replace(command=tuple(command))


class Strike(NamedTuple):
    """A fault: ``parts`` receive the signal ``number``, and run again after ``seconds``."""

    parts: tuple[str, ...]
    number: int
    seconds: float


class Trigger:
    """Counts the writes of scheduler and agents, and strikes at a certain one. Renewals of Leases, events and reports
    on clusters do not count. ``recoveries``: struck parts, and when they run again."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble, self.writes = ensemble, 0
        self.recoveries: list[tuple[float, tuple[str, ...]]] = []
        self._due: tuple[int, Strike] | None = None
        self._lock = threading.Lock()

    def arm(self, write: int, strike: Strike) -> None:
        """Strike before the server receives a write, counted from now on; the first one is 1."""
        with self._lock:
            self.writes, self._due = 0, (write, strike)

    def disarm(self) -> bool:
        """Return False if the strike has happened."""
        with self._lock:
            due, self._due = self._due, None
            return due is not None

    def count(self, request: web.BaseRequest) -> None:
        if request.method in ("GET", "HEAD") or _UNCOUNTED.intersection(request.path.split("/")):
            return
        with self._lock:
            self.writes += 1
            if self._due is None or self.writes < self._due[0]:
                return
            strike, self._due = self._due[1], None
        self.strike(strike)

    def strike(self, strike: Strike) -> None:
        self.ensemble.send(strike.parts, strike.number)
        self.recoveries.append((time.monotonic() + strike.seconds, strike.parts))


class _Proxy(FaultyServer):
    """A proxy that passes on dead servers as closed connections."""

    def __init__(self, cluster: Cluster, address: str, trigger: Trigger) -> None:
        self.trigger = trigger
        super().__init__(cluster, 0, address)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.trigger.count(request)
        try:
            return await super()._handle(request)
        except (ClientError, OSError) as error:
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPBadGateway from error


class StruckFederation(SupervisedFederation):
    """A federation whose scheduler and agents reach the control plane through proxies."""

    def __init__(self, nova: Cluster, members: list[Cluster], directory: pathlib.Path) -> None:
        directory.mkdir(exist_ok=True)
        assert isinstance(nova.local, Ensemble)
        self.ensemble = nova.local
        self.trigger = Trigger(nova.local)
        self._for_agents = _Proxy(nova, nova.config.server, self.trigger)
        self._for_scheduler = _Proxy(nova, nova.local.second_server, self.trigger)
        super().__init__(nova, members, directory)

    def kubeconfig(self, cluster: Cluster) -> pathlib.Path:
        if cluster is not self.nova:
            return cluster.kubeconfig
        path = self.directory / "scheduler.kubeconfig"
        path.write_text(msgspec.structs.replace(self.nova.config, server=self._for_scheduler.url).render("proxy"))
        path.chmod(0o600)
        return path

    def server(self, member: Cluster) -> str:
        return self._for_agents.url

    def agent(self, member: Cluster, name: str = "", token: str = "", *options: str, clock: int = 0) -> Process:
        """Start an agent with credentials of its own: the proxy closes connections of the other control plane's."""
        return super().agent(member, name, token, "--namespace=struck", *options, clock=clock)

    def wait_ready(self) -> None:
        for member in self.members:
            until(lambda name=member.name: self.ready(name) == "True", 150)

    def supervise(self) -> None:
        """Restart also members of etcd and API servers, and end strikes."""
        super().supervise()
        for recovery in list(self.trigger.recoveries):
            if time.monotonic() >= recovery[0]:
                self.trigger.recoveries.remove(recovery)
                self.ensemble.send(recovery[1], signal.SIGCONT)
        struck = {name for _due, parts in self.trigger.recoveries for name in parts}
        self.ensemble.restart(name for name in (*MEMBERS, *SERVERS) if name not in struck)

    def stop(self) -> None:
        super().stop()
        self._for_agents.close()
        self._for_scheduler.close()
