"""Partitions between agents and the control plane, and proof that workloads never run in two clusters."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
import threading
import time
from typing import Any

from nova.federator.kube.client import Api, ApiError
from tests.integration.federator.clusters import Cluster, until
from tests.integration.federator.federation import Federation, Process


class Relay:
    """A TCP relay to a port of this machine. While it is cut, all packets wait, as in a network that loses them."""

    def __init__(self, port: int) -> None:
        self.open = threading.Event()
        self.open.set()
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inner, _address = self._listener.accept()
                threading.Thread(target=self._connect, args=(inner,), daemon=True).start()

    def _connect(self, inner: socket.socket) -> None:
        self.open.wait()
        try:
            outer = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            inner.close()
            return
        for source, sink in ((inner, outer), (outer, inner)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.open.wait()
                sink.sendall(data)
        self.open.wait()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.open.clear()

    def heal(self) -> None:
        self.open.set()

    def close(self) -> None:
        self.open.set()
        self._listener.close()


_CLOCKS = (-420, 420, 0)  # seconds by which the clocks of the members' agents are wrong


class CuttableFederation(Federation):
    """A federation whose agents have wrong clocks and reach the control plane through relays."""

    def __init__(self, nova: Cluster, members: list[Cluster], directory: pathlib.Path, prefix: str) -> None:
        self.prefix = prefix
        self.relays = {member.name: Relay(int(nova.config.server.rpartition(":")[2])) for member in members}
        super().__init__(nova, members, directory)

    def server(self, member: Cluster) -> str:
        return f"https://127.0.0.1:{self.relays[member.name].port}"

    def agent(self, member: Cluster, name: str = "", token: str = "", *options: str, clock: int = 0) -> Process:
        return super().agent(member, name or f"{self.prefix}-{member.name}", token, f"--namespace={self.prefix}",
                             *options, clock=clock or _CLOCKS[self.members.index(member)])

    def clusters(self) -> list[str]:
        return [f"{self.prefix}-{member.name}" for member in self.members]

    def wait_ready(self) -> None:
        for name in self.clusters():
            until(lambda name=name: self.ready(name) == "True", 90)

    def stop(self) -> None:
        super().stop()
        for relay in self.relays.values():
            relay.close()


class Witness:
    """Counts the pods of a namespace in all members, ten times per second, by the label app. ``overlaps``: pods of an
    app that were seen in two members at the same time."""

    def __init__(self, members: list[Cluster], namespace: str) -> None:
        self.members, self.namespace = members, namespace
        self.overlaps: list[str] = []
        self.running: dict[str, dict[str, int]] = {}  # app -> member -> pods
        self.samples = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_arguments: object) -> None:
        self._end.set()
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            apis = [await stack.enter_async_context(Api(member.config)) for member in self.members]
            first: dict[str, int] | None = None
            while not self._end.is_set():
                with contextlib.suppress(ApiError):
                    if first is None:
                        first = await self._pods(apis[0])
                    second = await self._pods(apis[1])
                    again = await self._pods(apis[0])
                    self._compare(first, second, again)
                    first = again
                    self.samples += 1
                await asyncio.sleep(0.1)

    def _compare(self, first: dict[str, int], second: dict[str, int], again: dict[str, int]) -> None:
        """A pod overlaps if it was seen in a member before and after a pod was seen in the other one."""
        for app in second.keys() & first.keys() & again.keys():
            self.overlaps.append(f"{app}: {first[app]} and {again[app]} pods in {self.members[0].name}, {second[app]}"
                                 f" in {self.members[1].name} at {time.monotonic():.1f}")
        self.running = {app: {name: count for name, count in (
            (self.members[0].name, again.get(app, 0)), (self.members[1].name, second.get(app, 0))) if count}
            for app in again.keys() | second.keys()}

    async def _pods(self, api: Api) -> dict[str, int]:
        counts: dict[str, int] = {}
        page = await api.list(f"/api/v1/namespaces/{self.namespace}/pods")
        for pod in page["items"]:
            if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
                continue
            app = _app(pod)
            counts[app] = counts.get(app, 0) + 1
        return counts


def _app(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get("app"))
