"""A cluster of etcd, kube-apiserver and further parts as processes on this machine, in a directory of its own.

The directory contains certificates (pki/), data (etcd/), kubeconfig files, ports.json, records of processes (run/) and
their output (log/). A start is idempotent: parts that run with the same command stay, all other parts are (re)started.
"""

import asyncio
import contextlib
import fcntl
import functools
import logging
import pathlib
import random
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import aiohttp
import msgspec

from nova.common import files
from nova.common.errors import Invalid, Refused, ReportedError, os_error_text
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig, load
from nova.federator.local.binaries import Binaries
from nova.federator.local.fake_nodes import NodeOptions
from nova.federator.local.pki import Authority, token_keys
from nova.federator.local.processes import Processes, Usage

LOG = logging.getLogger(__name__)
NOVA_CONTROLLERS = ("garbagecollector", "namespace", "serviceaccount-token")
_PORTS = range(20000, 30000)  # below the ports that the kernel assigns to outgoing connections
_POLL = 0.05  # seconds between two checks while a cluster starts
_CHECK = 1.0  # seconds between two checks of a running cluster
_LONGEST_DELAY = 30.0  # longest delay before a part that ends again and again is restarted, in seconds
_STABLE = 60.0  # seconds after which a restarted part counts as healthy: its delay begins anew
_SUSPENDED = "suspended"  # file that marks a cluster in standby
_SERVICE_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
                  "kubernetes.default.svc.cluster.local", "10.0.0.1")


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a cluster, and their settings.

    ``nova``: a control plane of Nova, which runs no workload and only three controllers (NOVA_CONTROLLERS).
    ``controllers``, ``scheduler``, ``nodes``: run kube-controller-manager, kube-scheduler, and simulated nodes.
    ``fsync``: False is faster and loses data if the machine crashes. ``small``: smaller heaps for a little more CPU.
    ``port``: of the API server; 0 chooses a free port at the first start. ``hosts``: further names and addresses by
    which clients reach the API server. ``prefix``: a command that executes its arguments, such as nsenter.
    """

    nova: bool = False
    controllers: bool = False
    scheduler: bool = False
    nodes: NodeOptions | None = None
    fsync: bool = True
    small: bool = False
    address: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


class Part(NamedTuple):
    """A process of a cluster."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Ports(msgspec.Struct, frozen=True):
    api: int
    etcd: int
    peer: int


class LocalCluster:
    """A cluster on this machine. Raises Invalid if programs are missing or the directory is unusable."""

    def __init__(self, directory: pathlib.Path, name: str, options: ClusterOptions | None = None,
                 binaries: Binaries | None = None) -> None:
        self.directory, self.name = directory.absolute(), name
        self.options = options or ClusterOptions()
        self.binaries = binaries or Binaries()
        self.processes = Processes(self.directory, self.options.prefix)
        self.kubeconfig = self.directory / "kubeconfig"
        self.pki = self.directory / "pki"
        self._waiting_for = ""

    @property
    def etcd_client(self) -> str:
        """Return the address of etcd for clients."""
        return f"https://127.0.0.1:{self._ports.etcd}"

    @property
    def etcd_peer(self) -> str:
        """Return the address of etcd for other members."""
        return f"https://127.0.0.1:{self._ports.peer}"

    @property
    def config(self) -> Kubeconfig:
        """Return the credentials of an administrator. Raises Invalid before the first start."""
        return load([self.kubeconfig])

    async def start(self, timeout: float = 60.0) -> None:
        """Start the parts that do not run, and wait until the API server, controllers and nodes are ready.

        A failed or cancelled start stops the parts that it started, and removes the directory if it was new. Raises
        ReportedError with the last output of the failed part, and Refused while another process starts the cluster.
        """
        new = not self.directory.exists()
        started: list[str] = []
        begin = time.monotonic()
        try:
            with self._lock():
                try:
                    async with asyncio.timeout(timeout):
                        await self._start(started)
                except BaseException:
                    await self._undo(started, new)
                    raise
        except BaseException as error:
            if new and not isinstance(error, Refused):
                shutil.rmtree(self.directory, ignore_errors=True)
            if isinstance(error, TimeoutError):
                raise ReportedError(f"Cluster {self.name} was not ready within {timeout:.0f} s."
                                    f" {self._waiting_for}.") from None
            if isinstance(error, OSError):
                raise Invalid(f"Cannot start cluster {self.name} in {self.directory}: {os_error_text(error)}") from None
            raise
        LOG.info("Cluster %s is ready at %s after %.1f s", self.name, self.config.server, time.monotonic() - begin)

    async def stop(self, kill: bool = False) -> None:
        """Stop exactly the recorded processes, clients before servers. ``kill``: stop all immediately by SIGKILL."""
        if not self.directory.exists():
            return
        await self.processes.stop(["supervisor"])
        await self.stop_parts(kill)
        LOG.info("Cluster %s is stopped", self.name)

    async def stop_parts(self, kill: bool = False) -> None:
        """Stop the recorded processes except the supervisor, which restarts them unless the cluster is suspended."""
        names = {*self.processes.names(), *self._part_names()} - {"supervisor"}
        with self._lock():
            clients = sorted(names - {"kube-apiserver", "etcd"})
            for group in ([*clients, "kube-apiserver", "etcd"],) if kill else (clients, ["kube-apiserver"], ["etcd"]):
                await self.processes.stop(group, kill=kill)

    @property
    def suspended(self) -> bool:
        """Return True if the supervisor must not restart the cluster."""
        return (self.directory / _SUSPENDED).exists() or not self.directory.exists()

    def mark_suspended(self, suspended: bool) -> None:
        if suspended:
            files.replace(self.directory / _SUSPENDED, "")
        else:
            files.remove(str(self.directory / _SUSPENDED))

    async def remove(self) -> None:
        """Stop the cluster and delete its directory, with all objects. Succeeds if there is none."""
        await self.stop(kill=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    async def supervise(self) -> None:
        """Restart parts that end, until cancelled. A part that ends again and again is restarted after growing delays.
        :meth:`stop` in another process first sends SIGTERM to the process that supervises."""
        delays: dict[str, float] = {}
        due: dict[str, float] = {}
        self.processes.record_self("supervisor")
        try:
            while True:
                await asyncio.sleep(_CHECK)
                if self.suspended:
                    continue
                self.processes.rotate_logs()
                now = time.monotonic()
                for name, part in self._parts().items():
                    if self.processes.record(name):
                        if now > due.get(name, now) + _STABLE:
                            delays.pop(name, None)
                        continue
                    if now < due.get(name, 0.0):
                        continue
                    delays[name] = min(delays.get(name, 0.5) * 2, _LONGEST_DELAY)
                    due[name] = now + delays[name]
                    with contextlib.suppress(Refused), self._lock():
                        LOG.warning("%s of cluster %s exited, restarting it; its log: %s", name, self.name,
                                    self.processes.log(name))
                        self.processes.start(name, part.command, part.environment)
        finally:
            self.processes.forget("supervisor")

    def usage(self) -> dict[str, Usage]:
        """Return the CPU time and memory of the parts that run."""
        return {name: usage for name in self._part_names() if (usage := self.processes.usage(name))}

    async def _start(self, started: list[str]) -> None:
        self._waiting_for = "No process was started"
        self.pki.mkdir(mode=0o700, exist_ok=True)
        await self._prepare()
        self._write_credentials()
        parts = self._parts()
        servers = ("etcd", "kube-apiserver")
        for name in servers:
            await self._start_part(name, parts[name], started)
        await self._wait_for_api(servers)
        await self._start_others({name: part for name, part in parts.items() if name not in servers}, started)
        async with Api(self.config) as api:
            if self.options.controllers and not self.options.nova:
                await self._wait_for(api, "/api/v1/namespaces/default/serviceaccounts/default", parts)
            if self.options.nodes:
                for number in range(self.options.nodes.count):
                    await self._wait_for(api, f"/api/v1/nodes/{self.options.nodes.prefix}{number}", parts)
        self._check_running(parts)

    async def _prepare(self) -> None:
        """Prepare the environment of the processes before they start. Idempotent."""

    async def _start_others(self, parts: Mapping[str, Part], started: list[str]) -> None:
        """Start the clients of the API server."""
        for name, part in parts.items():
            await self._start_part(name, part, started)

    async def _undo(self, started: list[str], new: bool) -> None:
        """Stop the parts that a failed start has started. ``new``: the directory will be removed."""
        await self.processes.stop(started, kill=new)

    async def _start_part(self, name: str, part: Part, started: list[str]) -> None:
        if self.processes.current(name, part.command, part.environment):
            return
        await self.processes.stop([name])  # it has other settings, or an interrupted start left it
        started.append(name)
        self.processes.start(name, part.command, part.environment)

    async def _wait_for_api(self, names: tuple[str, ...]) -> None:
        """Wait until the API server serves, with its default roles in place."""
        config = self.config
        self._waiting_for = f"kube-apiserver is not ready; log: {self.processes.log('kube-apiserver')}"
        connector = aiohttp.TCPConnector(ssl=config.tls() or False)
        limit = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
            while True:
                self._check_running(names)
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{config.server}/readyz") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(_POLL)

    async def _wait_for(self, api: Api, path: str, parts: Mapping[str, Part]) -> None:
        self._waiting_for = f"{path} does not exist"
        while True:
            self._check_running(parts)
            with contextlib.suppress(ApiError):
                await api.get(path)
                return
            await asyncio.sleep(_POLL)

    def _check_running(self, names: Mapping[str, Part] | tuple[str, ...]) -> None:
        for name in names:
            if not self.processes.record(name):
                raise ReportedError(f"{name} of cluster {self.name} ended while the cluster was starting. Its last"
                                    f" output: {self.processes.log_tail(name)}")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        files.private_directory(self.directory)
        with (self.directory / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused(f"Another process starts or stops cluster {self.name} in {self.directory}.") from None
            yield

    @functools.cached_property
    def _ports(self) -> Ports:
        """Return the stored ports, or choose free ones. They never change: kubeconfig files of clients contain them."""
        path = self.directory / "ports.json"
        try:
            ports = msgspec.json.decode(path.read_bytes(), type=Ports)
        except (FileNotFoundError, msgspec.MsgspecError):
            ports = Ports(*_free_ports(3))
        ports = msgspec.structs.replace(ports, api=self.options.port or ports.api)
        files.replace(path, msgspec.json.encode(ports))
        return ports

    def _write_credentials(self) -> None:
        """Create authorities and token keys at the first start, and issue certificates at each start."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.options.address, self.options.address)
        server = f"https://{f'[{host}]' if ':' in host else host}:{self._ports.api}"
        authority = Authority(self.pki, "ca", f"kubernetes-ca-{self.name}")
        hosts = [*dict.fromkeys((*_SERVICE_NAMES, "127.0.0.1", host, *self.options.hosts))]
        authority.issue("apiserver", "kube-apiserver", hosts=hosts, client=False)
        store = Authority(self.pki, "etcd-ca", f"etcd-ca-{self.name}")  # clients of etcd can read all data
        store.issue("etcd", "kube-etcd", hosts=("localhost", "127.0.0.1"))
        store.issue("apiserver-etcd-client", "kube-apiserver-etcd-client")
        token_keys(self.pki)
        users = {"kubeconfig": ("admin", "system:masters"),
                 "kube-controller-manager.kubeconfig": ("system:kube-controller-manager", ""),
                 "kube-scheduler.kubeconfig": ("system:kube-scheduler", "")}
        for file, (user, group) in users.items():
            certificate, key = authority.issue(user.removeprefix("system:"), user, group)
            config = Kubeconfig(server=server, ca=authority.pem, certificate=certificate, key=key, context=self.name)
            files.replace(self.directory / file, config.render(user))

    def _part_names(self) -> list[str]:
        return ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "fake-nodes"]

    def _parts(self) -> dict[str, Part]:
        options = self.options
        environment = {"GOGC": "50"} if options.small else {}
        parts = {"etcd": Part(self._etcd(), environment), "kube-apiserver": Part(self._api_server(), environment)}
        if options.controllers or options.nova:
            parts["kube-controller-manager"] = Part(self._controller_manager(), environment)
        if options.scheduler:
            parts["kube-scheduler"] = Part((self.binaries.path("kube-scheduler"), *self._logins("kube-scheduler")),
                                           environment)
        if options.nodes:
            parts["fake-nodes"] = Part((sys.executable, "-m", "nova.federator.local.fake_nodes", "--kubeconfig",
                                        str(self.kubeconfig), *options.nodes.arguments()))
        return parts

    def _etcd(self) -> tuple[str, ...]:
        client, peer = (f"https://127.0.0.1:{port}" for port in (self._ports.etcd, self._ports.peer))
        files = ("--cert-file", "--key-file", "--trusted-ca-file")
        values = [str(self.pki / name) for name in ("etcd.crt", "etcd.key", "etcd-ca.crt")]
        return (self.binaries.path("etcd"), "--name=etcd", f"--data-dir={self.directory / 'etcd'}",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=etcd={peer}",
                "--client-cert-auth", "--peer-client-cert-auth",
                *(f"{flag}={value}" for flag, value in zip(files, values, strict=True)),
                *(f"--peer-{flag[2:]}={value}" for flag, value in zip(files, values, strict=True)),
                "--log-level=warn", *(() if self.options.fsync else ("--unsafe-no-fsync",)))

    def _api_server(self) -> tuple[str, ...]:
        pki = self.pki
        nova = ("--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection",
                "--enable-bootstrap-token-auth") if self.options.nova else ()
        return (
            self.binaries.path("kube-apiserver"), f"--etcd-servers=https://127.0.0.1:{self._ports.etcd}",
            f"--etcd-cafile={pki}/etcd-ca.crt", f"--etcd-certfile={pki}/apiserver-etcd-client.crt",
            f"--etcd-keyfile={pki}/apiserver-etcd-client.key",
            f"--bind-address={self.options.address}", f"--secure-port={self._ports.api}",
            *self._advertising(), "--service-cluster-ip-range=10.0.0.0/24",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={pki}/sa.key", f"--service-account-key-file={pki}/sa.pub",
            "--authorization-mode=RBAC", "--allow-privileged=true", "--profiling=false",
            *(("--feature-gates=APIPriorityAndFairness=false",) if self.options.small else ()), *nova)

    def _advertising(self) -> tuple[str, ...]:
        """Return options that publish no API server address in the cluster: its pods are simulated and need none."""
        return ("--advertise-address=198.51.100.1", "--endpoint-reconciler-type=none")

    def _controller_manager(self) -> tuple[str, ...]:
        pki = self.pki
        controllers = ",".join(NOVA_CONTROLLERS if self.options.nova else ("*",))
        return (
            self.binaries.path("kube-controller-manager"), *self._logins("kube-controller-manager"),
            f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
            "--use-service-account-credentials=true", f"--controllers={controllers}",
            "--concurrent-deployment-syncs=10", "--concurrent-replicaset-syncs=10")

    def _logins(self, part: str) -> tuple[str, ...]:
        """Return the options of a component that is a client of the API server. It opens no ports. Its default limit of
        20 requests per second would delay statuses by many seconds."""
        path = self.directory / f"{part}.kubeconfig"
        return (f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}",
                "--leader-elect=false", "--kube-api-qps=300", "--kube-api-burst=600", "--bind-address=127.0.0.1",
                "--secure-port=0", "--port=0")


def _free_ports(count: int) -> list[int]:
    """Return random ports on which no process listens, so that parallel callers rarely choose the same ports."""
    free: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, 500):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            free.append(port)
        if len(free) == count:
            return free
    raise Invalid(f"No free ports between {_PORTS.start} and {_PORTS.stop}.")
