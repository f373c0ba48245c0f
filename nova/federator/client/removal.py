"""Removal of a workload cluster from Nova."""

import asyncio
import time
from collections.abc import Callable

from nova.common.errors import NotKnown, ReportedError
from nova.federator.api.names import CLUSTER_GROUP, ORPHAN, VERSION, cluster_namespace
from nova.federator.kube.client import Api, ApiError
from nova.federator.store import schedules


async def remove_cluster(nova: Api, name: str, orphan: bool, timeout: float, report: Callable[[str], None]) -> None:
    """Delete a Cluster and wait until it is removed. Its workloads first move to other clusters. If ``orphan`` is set,
    the copies stay in the cluster instead. Raises NotKnown or ApiError. Raises ReportedError after ``timeout`` seconds;
    the removal continues in the background."""
    path = f"/apis/{CLUSTER_GROUP}/{VERSION}/clusters/{name}"
    try:
        if orphan:
            await nova.patch(path, {"metadata": {"annotations": {ORPHAN: "true"}}})
        await nova.delete(path)
    except ApiError as error:
        if error.missing:
            raise NotKnown(f"Cluster {name} does not exist.") from None
        raise
    deadline, previous = time.monotonic() + timeout, -1
    while True:
        try:
            await nova.get(path)
        except ApiError as error:
            if error.missing:
                report(f"Cluster {name} is removed.")
                return
            raise
        left = len((await nova.list(schedules.path_of(cluster_namespace(name))))["items"])
        if left != previous:
            report(f"Cluster {name}: {left} groups are left")
            previous = left
        if time.monotonic() > deadline:
            raise ReportedError(f"Cluster {name} still has {left} groups after {timeout:.0f} s. The removal continues;"
                                " 'kubectl nova explain' shows why no other cluster can take a group.")
        await asyncio.sleep(1.0)
