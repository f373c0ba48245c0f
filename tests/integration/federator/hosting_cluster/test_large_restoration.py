"""Backup and restoration of a control plane with three members of etcd and 10,000 objects. Promise P11.

A hosting cluster of three nodes and a workload cluster, described in hosting.py. Takes about fifteen minutes:
tools/run-tests.sh federator -k test_large_restoration
"""

from __future__ import annotations

import asyncio
import functools
import json
import pathlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

from nova.common.errors import Invalid
from nova.federator.api.objects import holds
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import load
from nova.federator.local.binaries import Binaries
from tests.integration.federator import clusters
from tests.integration.federator.clusters import deployment, until
from tests.integration.federator.federation import policy
from tests.integration.federator.hosting_cluster import hosting
from tests.integration.federator.hosting_cluster.test_operation import Operator

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(2400)]

NAMESPACE = "elotl"
LABELS = {"large": "yes"}
COUNT = 10_000
GROUPS = 100
_HOSTING, _WORKLOAD = hosting.CONTEXTS[:2]
_AT_HOSTING = (f"--hosting-cluster-context={_HOSTING}", f"--namespace={NAMESPACE}")
_FOLLOWED = 600.0  # seconds until the workload cluster has all copies
_CONFIGMAPS = "/api/v1/namespaces/large/configmaps"


@pytest.fixture
def operator(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[Operator]:
    directory = cluster_directory / "large"
    directory.mkdir()
    try:
        running = hosting.start(directory, hosting.CONTEXTS[:2])
    except Invalid as error:
        pytest.skip(error.message)
    try:
        with hosting.load_balancer(running[0]):
            hosting.add_volumes(running[0], directory)
            operator = Operator(binaries, running, directory)
            operator.novactl("install", "control-plane", "test", f"--context={_HOSTING}", "--replicas=3",
                             "--timeout=900")
            operator.novactl("install", "agent", _WORKLOAD, f"--context={_WORKLOAD}")
            until(lambda: operator.ready() == "True", timeout=180)
            yield operator
    finally:
        clusters.remove(running)


def config_map(number: int, text: str = "first") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"text": text * 40}, "metadata": {
        "name": f"conf-{number}", "namespace": "large", "labels": {**LABELS, "group": f"g{number % GROUPS}"}}}


async def change(operator: Operator, created: Iterable[int], edited: Iterable[int], deleted: Iterable[int]) -> None:
    """Change ConfigMaps of the control plane, 16 at the same time."""
    limit = asyncio.Semaphore(16)

    async def run(request: Callable[[], Awaitable[object]]) -> None:
        async with limit:
            while True:
                try:
                    await request()
                except ApiError as error:
                    if 0 < error.status < 500 and not error.conflict:
                        raise
                    if not error.conflict:  # etcd elects another leader on a busy machine
                        await asyncio.sleep(1.0)
                        continue
                return
    async with Api(load([operator.kubeconfig]), timeout=60.0) as api:
        requests = [functools.partial(api.create, _CONFIGMAPS, config_map(number)) for number in created]
        requests += [functools.partial(api.patch, f"{_CONFIGMAPS}/conf-{number}", {
            "data": config_map(number, "second")["data"]}) for number in edited]
        await asyncio.gather(*map(run, requests), *(run(functools.partial(
            api.remove, f"{_CONFIGMAPS}/conf-{number}")) for number in deleted))


def copies(operator: Operator) -> dict[str, tuple[str, str]]:
    """Return UID and text of the copies in the workload cluster."""
    async def read() -> list[Any]:
        async with Api(operator.workload.config) as api:
            return (await api.list(_CONFIGMAPS, labelSelector="large=yes"))["items"]
    return {item["metadata"]["name"]: (item["metadata"]["uid"], item["data"]["text"]) for item in asyncio.run(read())}


def etcdctl(operator: Operator, member: int, *arguments: str) -> Any:
    """Return what a member of etcd answers."""
    output = operator.hosting.kubectl(
        "exec", "-n", NAMESPACE, f"etcd-{member}", "--", "etcdctl", "--cacert=/etc/etcd/pki/ca.crt", "-w", "json",
        "--cert=/etc/etcd/pki/server.crt", "--key=/etc/etcd/pki/server.key", *arguments)
    return json.loads(output)[0]


def pods(operator: Operator) -> set[str]:
    """Return the pods of the Deployment web that are ready."""
    items = operator.workload.get("pods", "-n", "large", "-l", "app=web")["items"]
    return {item["metadata"]["uid"] for item in items if holds(item["status"], "Ready")}


def contents(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: text for name, (_uid, text) in found.items()}


def test_ten_thousand_objects_of_three_members_are_restored(operator: Operator, tmp_path: pathlib.Path) -> None:
    """The restored data are older than what agents and schedulers have seen, by thousands of changes. Copies that did
    not change meanwhile are not created again, and pods run on. All members of etcd have the same data."""
    file, web = tmp_path / "nova.db", deployment("web", 2, "large", LABELS | {"group": "web"})
    placed = policy("large", LABELS, [_WORKLOAD], groupBy={"labelKey": "group"})
    begin = time.monotonic()
    operator.nova("create", "namespace", "large")
    asyncio.run(change(operator, range(COUNT), (), ()))
    print(f"{COUNT} objects were created in {time.monotonic() - begin:.0f} s")
    objects = tmp_path / "objects"  # afterwards, so that each group is written once
    objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [placed, web]}))
    operator.nova("apply", "-f", str(objects))
    expected = {f"conf-{number}": "first" * 40 for number in range(COUNT)}
    until(lambda: contents(copies(operator)) == expected, _FOLLOWED, 2.0)
    until(lambda: len(pods(operator)) == 2, 120)
    before, running = copies(operator), pods(operator)
    operator.novactl("backup", str(file), *_AT_HOSTING)
    print(f"The backup has {file.stat().st_size >> 20} MiB")
    changed, created, deleted = range(1000), range(COUNT, COUNT + 1000), range(1000, 2000)
    asyncio.run(change(operator, created, changed, deleted))
    later = {**expected, **{f"conf-{number}": "second" * 40 for number in changed},
             **{f"conf-{number}": "first" * 40 for number in created}}
    for number in deleted:
        del later[f"conf-{number}"]
    until(lambda: contents(copies(operator)) == later, _FOLLOWED, 2.0)
    begin = time.monotonic()
    operator.novactl("restore", str(file), *_AT_HOSTING)
    restored = time.monotonic()
    until(lambda: contents(copies(operator)) == expected, _FOLLOWED, 2.0)
    print(f"Restored in {restored - begin:.0f} s, the copies {time.monotonic() - restored:.0f} s later")
    after = copies(operator)
    assert {name for name in after if after[name][0] != before[name][0]} == {f"conf-{number}" for number in deleted}
    assert pods(operator) == running, "pods were started again"
    assert "× " not in operator.novactl("status", *_AT_HOSTING[:1])
    until(lambda: operator.ready() == "True", timeout=120)
    revision = etcdctl(operator, 0, "endpoint", "status")["Status"]["header"]["revision"]
    hashes = [etcdctl(operator, number, "endpoint", "hashkv", f"--rev={revision}")["HashKV"] for number in range(3)]
    assert len({(entry["hash"], entry["compact_revision"]) for entry in hashes}) == 1, hashes
