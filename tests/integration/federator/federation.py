"""A federation of tests: the scheduler and the agents as processes, joined as users join them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import pytest

from nova.federator.client.tokens import bootstrap_config, create_token
from nova.federator.kube.client import Api
from tests.integration.federator.clusters import END_WITH_TESTS, Cluster, until

# The log line of a scheduler that begins to place, and a part of that of an agent that stops a fenced workload.
PLACES = "This scheduler holds the Lease nova-scheduler\n"
STOPS = "the federation control plane is unreachable for"


def _profile(log: pathlib.Path) -> list[str]:
    """Return options of Python that write a profile of the process, if NOVA_FEDERATOR_PROFILES names a directory."""
    directory = os.environ.get("NOVA_FEDERATOR_PROFILES")
    return ["-m", "cProfile", "-o", f"{directory}/{log.stem}.{time.monotonic_ns()}.prof"] if directory else []


def _wrong_clock(seconds: int) -> dict[str, str]:
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if not seconds or library is None:
        return {}
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


class Process:
    """A nova-federator process that can be killed, frozen and started again. ``clock``: seconds by which its wall
    clock is wrong, if the package libfaketime is installed. ``prefix``: a command that executes its arguments, such as
    nsenter."""

    def __init__(self, log: pathlib.Path, *arguments: str, clock: int = 0, prefix: Sequence[str] = ()) -> None:
        self.log, self._arguments, self._clock, self._prefix = log, arguments, clock, prefix
        self.start()

    def start(self) -> None:
        self._stopped = False
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*END_WITH_TESTS, *self._prefix, sys.executable, *_profile(self.log), "-m", "nova.cmd.federator",
                 *self._arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, **_wrong_clock(self._clock)})

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> bool:
        """Return True if the process ended by itself."""
        return not self._stopped and self._process.poll() is not None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process and return its exit code."""
        self._stopped = True
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        return self._process.wait(20)

    def output(self) -> str:
        return self.log.read_text(errors="replace")


class Federation:
    """A control plane with a scheduler, and members with agents."""

    def __init__(self, nova: Cluster, members: list[Cluster], directory: pathlib.Path, *options: str) -> None:
        """Start the processes. ``options``: of the scheduler."""
        self.nova, self.members, self.directory, self.options = nova, members, directory, options
        directory.mkdir(exist_ok=True)
        self.scheduler = self.start_scheduler()
        self.agents = {member.name: self.agent(member) for member in members}

    def start_scheduler(self, name: str = "scheduler") -> Process:
        """Start a scheduler. Its log is NAME.log."""
        return Process(self.directory / f"{name}.log", "scheduler", f"--kubeconfig={self.kubeconfig(self.nova)}",
                       f"--ca-cert={self.nova.local.pki / 'ca.crt'}", f"--ca-key={self.nova.local.pki / 'ca.key'}",
                       *self.options)

    def kubeconfig(self, cluster: Cluster) -> pathlib.Path:
        """Return the file with which the processes reach a cluster as its administrator."""
        return cluster.kubeconfig

    def server(self, member: Cluster) -> str:
        """Return the address at which the agent of a member reaches the control plane."""
        return self.nova.config.server

    def network(self, member: Cluster) -> Sequence[str]:
        """Return the command that runs the agent of a member in its network, or of the release in the directory
        NOVA_FEDERATOR_AGENTS; empty for an agent on this machine."""
        other = os.environ.get("NOVA_FEDERATOR_AGENTS")
        return ("env", "-C", other, f"PYTHONPATH={other}") if other else ()

    def agent(self, member: Cluster, name: str = "", token: str = "", *options: str, clock: int = 0) -> Process:
        """Start an agent with a token of its own. Its log is NAME.log. ``clock``: see Process."""
        name = name or member.name
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(bootstrap_config(self.nova.config, token or self.token(), self.server(member)).render("init"))
        return Process(self.directory / f"{name}.log", "agent", f"--cluster-name={name}",
                       f"--control-plane-kubeconfig={path}", f"--kubeconfig={self.kubeconfig(member)}", *options,
                       clock=clock, prefix=self.network(member))

    def token(self, cluster: str = "") -> str:
        async def create() -> str:
            async with Api(self.nova.config) as api:
                return await create_token(api, cluster)
        return asyncio.run(create())

    def ready(self, name: str) -> str:
        """Return the status of the condition Ready of a cluster, or an empty text."""
        for cluster in self.nova.get("clusters")["items"]:
            if cluster["metadata"]["name"] == name:
                conditions = cluster.get("status", {}).get("conditions", ())
                return next((entry["status"] for entry in conditions if entry["type"] == "Ready"), "")
        return ""

    def wait_ready(self) -> None:
        for member in self.members:
            until(lambda name=member.name: self.ready(name) == "True", 60)

    def __enter__(self) -> Self:
        """Wait until all clusters are connected."""
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def namespace(self, request: pytest.FixtureRequest) -> Iterator[str]:
        """Yield a namespace of the control plane that only one test uses. Its objects and all policies are removed
        afterwards."""
        name = f"t{zlib.crc32(request.node.nodeid.encode())}"
        self.nova.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield name
        self.nova.kubectl("delete", "schedulepolicies", "--all")
        self.nova.kubectl("delete", "namespace", name, "--wait=false")

    def stop(self) -> None:
        for process in (*self.agents.values(), self.scheduler):
            process.stop(signal.SIGKILL)


class SupervisedFederation(Federation):
    """A federation whose processes are started again when they end by themselves, as kubelets do. ``restarts``: their
    names."""

    def __init__(self, nova: Cluster, members: list[Cluster], directory: pathlib.Path, *options: str) -> None:
        self.restarts: list[str] = []
        super().__init__(nova, members, directory, *options)
        self._end = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def _supervise(self) -> None:
        """Run in a thread that outlives the processes that it starts: they end with it."""
        while not self._end.wait(0.2):
            self.supervise()

    def supervise(self) -> None:
        for process in (self.scheduler, *self.agents.values()):
            if process.ended():
                self.restarts.append(process.log.stem)
                process.start()

    def stop(self) -> None:
        self._end.set()
        self._supervisor.join(20)
        super().stop()


def policy(name: str, labels: dict[str, str], clusters: Any = None, **spec: Any) -> dict[str, Any]:
    """Return a SchedulePolicy for objects with these labels. ``clusters``: names, or None for all."""
    if clusters is not None:
        spec["clusterSelector"] = {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(clusters)}]}
    selectors = {"labelSelectors": [{"matchLabels": labels}]}
    return {"apiVersion": "policy.elotl.co/v1alpha1", "kind": "SchedulePolicy", "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceSelectors": selectors, **spec}}

