"""A federation on this machine: a control plane with its scheduler, and workload clusters with their agents."""

import asyncio
import logging
import os
import pathlib
import shutil
import sys
import time

import msgspec
import yaml

from nova.common import files
from nova.common.errors import Invalid, ReportedError
from nova.federator.api.names import CLUSTER_GROUP, VERSION
from nova.federator.api.objects import holds
from nova.federator.client import manifests
from nova.federator.client.backup import check
from nova.federator.client.tokens import bootstrap_config, create_token
from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig
from nova.federator.local.cluster import ClusterOptions, LocalCluster
from nova.federator.local.fake_nodes import NodeOptions
from nova.federator.local.processes import Processes
from nova.federator.local.whole import WholeCluster
from nova.federator.scheduling.standby import VARIABLES

LOG = logging.getLogger(__name__)
DIRECTORY = "NOVA_LOCAL_DIRECTORY"  # environment variable of the scheduler, for the provider of local clusters
_CHECK = 1.0  # seconds between two checks of the processes
_LONGEST_DELAY = 30.0  # longest delay before a process that ends again and again is restarted, in seconds
_READY_TIMEOUT = 120.0  # seconds in which all clusters must connect
_ETCDCTL_TIMEOUT = 60.0  # timeout of a call of etcdctl, in seconds
_RESTORE_SPACE = 256 << 20  # bytes that a restoration needs for logs of etcd, in addition to the snapshot
_FIRST_INDEX = 101  # WholeCluster.index of the first cluster with real pods


class LocalFederation:
    """The clusters of a directory. ``members``: minimum number of workload clusters; existing ones stay. ``whole``: new
    members run real pods (needs root); otherwise their nodes are simulated."""

    def __init__(self, directory: pathlib.Path, members: int = 0, whole: bool = False, port: int = 0) -> None:
        self.directory = directory.absolute()
        existing = sorted(path.name for path in self.directory.glob("*workload-*") if path.is_dir())
        names = existing + [f"kind-workload-{number}" for number in range(1, members + 1)
                            if f"kind-workload-{number}" not in existing]
        kinds = {name: (self.directory / name / "whole").exists() if name in existing else whole for name in names}
        hosts = tuple(f"10.200.{_FIRST_INDEX + number}.1" for number in range(max(len(names), 16)))
        self.nova = LocalCluster(self.directory / "nova", "nova", ClusterOptions(
            nova=True, small=True, port=port, address="0.0.0.0" if any(kinds.values()) else "127.0.0.1", hosts=hosts))
        self.members = [self._member(name, number, kinds[name]) for number, name in enumerate(names)]
        self.processes = Processes(self.directory)
        self.kubeconfig = self.directory / "kubeconfig"

    def _member(self, name: str, number: int, whole: bool) -> LocalCluster:
        if whole:
            return WholeCluster(self.directory / name, name, _FIRST_INDEX + number, ClusterOptions(small=True))
        return LocalCluster(self.directory / name, name, ClusterOptions(
            controllers=True, scheduler=True, nodes=NodeOptions(count=2), small=True))

    async def start(self) -> None:
        """Start the processes that do not run, and wait until all clusters are connected. Raises ReportedError."""
        files.private_directory(self.directory)
        clusters = [self.nova, *self.members]
        await asyncio.gather(*(cluster.start(180.0) for cluster in clusters))
        for member in self.members:
            if isinstance(member, WholeCluster):
                files.replace(member.directory / "whole", "")
        async with Api(self.nova.config) as nova:
            await manifests.apply(nova, manifests.custom_resources())
            for member in self.members:
                await self._write_bootstrap(nova, member)
            files.replace(self.kubeconfig, self._merged())
            for member in self.members:
                member.mark_suspended(False)
            for name, command in self._commands().items():
                await self._start_process(name, command)
            await self._wait_connected(nova)

    async def _write_bootstrap(self, nova: Api, member: LocalCluster) -> None:
        """Write the kubeconfig with which an agent joins, unless the file exists already."""
        path = member.directory / "init.kubeconfig"
        if not path.exists():
            config = bootstrap_config(self._reached_from(member), await create_token(nova, member.name))
            files.replace(path, config.render("nova-agent"))

    def _reached_from(self, member: LocalCluster) -> Kubeconfig:
        config = self.nova.config
        if isinstance(member, WholeCluster):
            port = config.server.rpartition(":")[2]
            return msgspec.structs.replace(config, server=f"https://{member.gateway}:{port}")
        return config

    async def start_agent(self, member: str) -> None:
        """Start the agent of a member, unless it runs."""
        name = self.agent_of(member)
        await self._start_process(name, self._commands()[name])

    @staticmethod
    def agent_of(member: str) -> str:
        """Return the name of the agent's process."""
        return f"nova-agent-{member}"

    async def _start_process(self, name: str, command: tuple[str, ...]) -> None:
        environment = {} if name != "nova-scheduler" else {DIRECTORY: str(self.directory), **{
            variable: os.environ[variable] for variable in VARIABLES if variable in os.environ}}
        if not self.processes.current(name, command, environment):
            await self.processes.stop([name])
            self.processes.start(name, command, environment)

    def _commands(self) -> dict[str, tuple[str, ...]]:
        program = (sys.executable, "-m", "nova.cmd.federator")
        commands: dict[str, tuple[str, ...]] = {"nova-scheduler": (
            *program, "scheduler", f"--kubeconfig={self.nova.kubeconfig}", f"--ca-cert={self.nova.pki / 'ca.crt'}",
            f"--ca-key={self.nova.pki / 'ca.key'}")}
        for member in self.members:
            commands[self.agent_of(member.name)] = (
                *program, "agent", f"--cluster-name={member.name}", f"--kubeconfig={member.kubeconfig}",
                f"--control-plane-kubeconfig={member.directory / 'init.kubeconfig'}")
        return commands

    async def _wait_connected(self, nova: Api) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT
        waiting = {member.name for member in self.members}
        while waiting:
            page = await nova.list(f"/apis/{CLUSTER_GROUP}/{VERSION}/clusters")
            waiting -= {cluster["metadata"]["name"] for cluster in page["items"]
                        if holds(cluster.get("status"), "Ready")}
            if waiting and time.monotonic() > deadline:
                name = min(waiting)
                raise ReportedError(f"Cluster {name} is not connected after {_READY_TIMEOUT:.0f} s. The last output of"
                                    f" its agent: {self.processes.log_tail(self.agent_of(name))}")
            await asyncio.sleep(0.2)

    def _merged(self) -> str:
        """Return a kubeconfig with a context for each cluster. The current context is that of the control plane."""
        merged: dict[str, object] = {"apiVersion": "v1", "kind": "Config", "current-context": "nova", "preferences": {}}
        sections: dict[str, list[object]] = {"clusters": [], "contexts": [], "users": []}
        for cluster in (self.nova, *self.members):
            document = yaml.safe_load(msgspec.structs.replace(cluster.config, context=cluster.name).render(
                f"{cluster.name}-admin"))
            for section, entries in sections.items():
                entries += document[section]
        text: str = yaml.safe_dump({**merged, **sections}, sort_keys=False)
        return text

    async def stop(self) -> None:
        """Stop all processes. The data stay, so the next start continues with them."""
        await self.processes.stop(["supervisor"])
        await self.processes.stop(name for name in self.processes.names() if name != "supervisor")
        await asyncio.gather(*(cluster.stop() for cluster in (*self.members, self.nova)))

    async def remove(self) -> None:
        """Stop all processes and delete everything."""
        await self.stop()
        await asyncio.gather(*(cluster.remove() for cluster in (*self.members, self.nova)))
        for path in (self.kubeconfig, *self.directory.glob("log/*"), *self.directory.glob("run/*")):
            files.remove(str(path))
        for path in (self.directory / "log", self.directory / "run", self.directory):
            if path.is_dir():
                path.rmdir()

    async def backup(self, target: pathlib.Path) -> None:
        """Store a consistent copy of the data of the running control plane in a file of mode 0600. Raises
        ReportedError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".new-{target.name}")
        await self._etcdctl("snapshot", "save", str(draft))
        draft.chmod(0o600)
        draft.replace(target)

    async def restore(self, source: pathlib.Path) -> None:
        """Replace the data of the control plane by a copy. The control plane stops when the new data are complete;
        workload clusters run on. The replaced data stay in the folder ``etcd-replaced`` until the next restoration.
        Raises Invalid, ReportedError."""
        check(source)
        files.private_directory(self.directory)
        data = self.nova.directory / "etcd"
        fresh, old = data.with_name("etcd-restored"), data.with_name("etcd-replaced")
        shutil.rmtree(fresh, ignore_errors=True)
        if shutil.disk_usage(self.directory).free < (needed := source.stat().st_size + _RESTORE_SPACE):
            raise Invalid(f"A restoration needs {needed >> 20} MiB of free space in {self.directory}.")
        peer = self.nova.etcd_peer
        try:
            await self._etcdctl("snapshot", "restore", str(source), f"--data-dir={fresh}", "--name=etcd",
                                f"--initial-cluster=etcd={peer}", f"--initial-advertise-peer-urls={peer}")
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        await self.processes.stop(["supervisor"])
        await self.processes.stop(["nova-scheduler"])
        await self.nova.stop()
        if data.exists():  # otherwise an interrupted restoration has renamed the folder already
            shutil.rmtree(old, ignore_errors=True)
            data.rename(old)
        fresh.rename(data)

    async def _etcdctl(self, *arguments: str) -> None:
        pki = self.nova.pki
        process = await asyncio.create_subprocess_exec(
            self.nova.binaries.path("etcdctl"), f"--endpoints={self.nova.etcd_client}", f"--cacert={pki}/etcd-ca.crt",
            f"--cert={pki}/apiserver-etcd-client.crt", f"--key={pki}/apiserver-etcd-client.key", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _ETCDCTL_TIMEOUT)
        except TimeoutError:
            process.kill()
            raise ReportedError(f"etcdctl {arguments[1]} did not end within {_ETCDCTL_TIMEOUT:.0f} s.") from None
        if process.returncode:
            raise ReportedError(f"etcdctl {arguments[1]} failed: {output.decode(errors='replace').strip()[-500:]}")

    async def supervise(self) -> None:
        """Restart processes that end, until cancelled."""
        self.processes.record_self("supervisor")
        try:
            async with asyncio.TaskGroup() as tasks:
                for cluster in (self.nova, *self.members):
                    tasks.create_task(cluster.supervise())
                tasks.create_task(self._supervise())
        finally:
            self.processes.forget("supervisor")

    async def _supervise(self) -> None:
        delays: dict[str, float] = {}
        while True:
            await asyncio.sleep(_CHECK)
            self.processes.rotate_logs()
            for name, command in self._commands().items():
                if name in self._stopped() or self.processes.record(name):
                    continue
                delays[name] = min(delays.get(name, 0.5) * 2, _LONGEST_DELAY)
                LOG.warning("Process %s exited, restarting it in %.0f s; its log: %s",
                            name, delays[name], self.processes.log(name))
                await asyncio.sleep(delays[name])
                if not (name in self._stopped() or self.processes.record(name)):
                    await self._start_process(name, command)

    def _stopped(self) -> set[str]:
        """Return the agents of members in standby, which are not restarted."""
        return {self.agent_of(member.name) for member in self.members if member.suspended}

    def start_supervisor(self) -> None:
        """Start a process that supervises this federation, unless it runs already."""
        if not self.processes.record("supervisor"):
            self.processes.start("supervisor", (sys.executable, "-m", "nova.cli.federation.main", "up", "--supervise",
                                                f"--directory={self.directory}"))

    def running(self) -> dict[str, bool]:
        """Return for each component of the control plane (title in the output of status) whether it runs."""
        parts = self.nova.processes
        return {"API Server": parts.record("kube-apiserver") is not None,
                "Kube-controller-manager": parts.record("kube-controller-manager") is not None,
                "ETCD": parts.record("etcd") is not None,
                "Nova scheduler": self.processes.record("nova-scheduler") is not None}


def stored(directory: pathlib.Path) -> LocalFederation:
    """Return the federation of a directory. Raises Invalid if there is none."""
    if not (directory / "nova").is_dir():
        raise Invalid(f"{directory} has no federation: run 'novactl up' first.")
    return LocalFederation(directory)


