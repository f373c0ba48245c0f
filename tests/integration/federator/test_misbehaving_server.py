"""API servers that misbehave, of the control plane and of the clusters: nothing is lost, nothing is created twice.

Bad input of issue 27: 410 during a watch, 429, wrong resource versions, truncated answers, answers that are lost after
the write was executed.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.config import Kubeconfig
from nova.federator.kube.informer import Informer
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.faulty import ANSWERS, WATCHES, FaultyServer
from tests.integration.federator.federation import Federation, policy

_SECONDS = 20.0  # of faults
_COUNT = 6  # Deployments of each kind
_CONVERGED = 120.0  # seconds after the faults
LABELS = {"app": "faulty"}


class FaultyFederation(Federation):
    """A federation whose scheduler and agents reach all API servers through proxies."""

    def __init__(self, nova: Cluster, members: list[Cluster], directory: pathlib.Path, seed: int) -> None:
        self.proxies = {cluster.name: FaultyServer(cluster, seed + number)
                        for number, cluster in enumerate((nova, *members))}
        super().__init__(nova, members, directory)

    def kubeconfig(self, cluster: Cluster) -> pathlib.Path:
        path = self.directory / f"{cluster.name}.proxy"
        config = msgspec.structs.replace(cluster.config, server=self.proxies[cluster.name].url)
        path.write_text(config.render("proxy"))
        path.chmod(0o600)
        return path

    def server(self, member: Cluster) -> str:
        return self.proxies[self.nova.name].url

    def misbehave(self, faults: bool) -> None:
        for proxy in self.proxies.values():
            proxy.faults = faults

    def stop(self) -> None:
        super().stop()
        for proxy in self.proxies.values():
            proxy.close()


@pytest.fixture(params=[1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 31))])
def federation(request: pytest.FixtureRequest, control_plane: Cluster, members: list[Cluster],
               tmp_path: pathlib.Path) -> Iterator[FaultyFederation]:
    with FaultyFederation(control_plane, members[:2], tmp_path / "federation", request.param * 100) as running:
        yield running


@pytest.fixture
def namespace(federation: FaultyFederation, request: pytest.FixtureRequest) -> Iterator[str]:
    with federation.namespace(request) as name:
        yield name


def test_watches_continue_with_other_credentials(control_plane: Cluster) -> None:
    """Agents change credentials when their certificate is renewed, and connect again after an interruption."""
    async def follow() -> None:
        async with Api(control_plane.config) as api:
            informer: Informer[Object] = Informer(api, "/api/v1/namespaces", lambda obj: obj)
            task = asyncio.create_task(informer.run())
            try:
                await asyncio.wait_for(informer.synced.wait(), 30)
                for number in range(3):
                    await api.use(control_plane.config)
                    await api.ensure("/api/v1/namespaces", {"metadata": {"name": f"after-{number}"}})
                    async with asyncio.timeout(20):
                        while f"after-{number}" not in informer.objects:
                            await asyncio.sleep(0.05)
                assert informer.lists == 1, "the watch was resumed"
            finally:
                task.cancel()
    asyncio.run(follow())


def test_a_watch_whose_error_is_never_completed_ends() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\n{")
        await reader.read()

    async def watch() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        config = Kubeconfig(server=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(10), server, Api(config, timeout=1.0) as api:
            async for _event in api.watch("/api/v1/pods", "1"):
                pass
    with pytest.raises(ApiError, match="timed out"):
        asyncio.run(watch())


def copies(member: Cluster, namespace: str) -> dict[str, tuple[int, str]]:
    """Return replicas and UID of the Deployments of a namespace that are not being deleted."""
    return {item["metadata"]["name"]: (item["spec"]["replicas"], item["metadata"]["uid"])
            for item in member.get("deployments", "-n", namespace)["items"]
            if "deletionTimestamp" not in item["metadata"]}


def test_nothing_is_lost_by_misbehaving_servers(federation: FaultyFederation, namespace: str) -> None:
    """Moves, edits and deletions reach their end, and copies that should stay are never created again."""
    first, second = federation.members
    names = [f"{kind}-{number}" for kind in ("stays", "moves", "grows", "ends") for number in range(_COUNT)]
    federation.nova.apply(policy("faulty", LABELS, [first.name]))
    federation.nova.apply(*(deployment(name, 1, namespace, LABELS) for name in names))
    until(lambda: len(copies(first, namespace)) == len(names))
    before = copies(first, namespace)
    federation.misbehave(True)
    _edit(federation, namespace, second.name)
    federation.misbehave(False)

    def expected() -> Any:
        mine, other = copies(first, namespace), copies(second, namespace)
        kept = {name: mine[name][0] for name in mine}
        return kept == {name: 3 if name.startswith("grows") else 1
                        for name in names if name.startswith(("stays", "grows"))} and {
            name: other[name][0] for name in other} == dict.fromkeys(
                [name for name in names if name.startswith(("moves", "new"))] + ["new-0", "new-1"], 1)
    until(expected, _CONVERGED)
    after = copies(first, namespace)
    assert {name: after[name][1] for name in after} == {name: before[name][1] for name in after}, "created again"
    until(lambda: all(item.get("status", {}).get("readyReplicas") == item["spec"]["replicas"]
                      for item in federation.nova.get("deployments", "-n", namespace)["items"]), _CONVERGED)
    until(lambda: sum(entry["kind"] == "Deployment" and entry["namespace"] == namespace
                      for item in federation.nova.get("schedules", "-A")["items"]
                      for entry in item["spec"]["objects"]) == 3 * _COUNT + 2, _CONVERGED)
    drawn = {fault for proxy in federation.proxies.values() for fault in proxy.counts}
    assert len(drawn) >= len(ANSWERS + WATCHES) - 2, f"only {drawn}"


def _edit(federation: FaultyFederation, namespace: str, target: str) -> None:
    """Move, scale, delete and create Deployments in random order while the servers misbehave."""
    nova, deadline = federation.nova, time.monotonic() + _SECONDS
    steps = [("annotate", f"deployment/moves-{number}", f"nova.elotl.co/cluster={target}") for number in range(_COUNT)]
    steps += [("scale", f"deployment/grows-{number}", "--replicas=3") for number in range(_COUNT)]
    steps += [("delete", f"deployment/ends-{number}", "--wait=false") for number in range(_COUNT)]
    random.Random(len(steps)).shuffle(steps)
    for step in steps:
        nova.kubectl(*step, "-n", namespace)
    for number in range(2):
        nova.apply(deployment(f"new-{number}", 1, namespace, annotations={"nova.elotl.co/cluster": target}))
    while time.monotonic() < deadline:
        time.sleep(0.5)
        assert federation.scheduler.output().count("Traceback") == 0, federation.scheduler.output()[-3000:]
