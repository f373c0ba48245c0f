"""The interface of providers, which stop and start whole workload clusters.

A provider is a class with an entry point in the group ``nova.federator.providers``. The name of the entry point is
``spec.provider`` of its clusters. The class is called with the environment variables of the scheduler, and raises
Invalid if it is not configured.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from nova.common.errors import ReportedError

NodeGroups = Mapping[str, Mapping[str, Any]]  # name of a node group -> its sizes, see status.nodeGroupsConfigs


class ProviderError(ReportedError):
    """A provider could not carry out a call. The call is repeated after a delay."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of a call. ``name``: of the Cluster object. The fields from ``provider`` to ``version`` are reported
    by the agent: do not stop or delete anything because of them. ``node_groups``: the sizes before standby.
    ``template``: for a new cluster, the cluster to copy. ``kubeconfig``: lets the agent of a created cluster join."""

    name: str
    provider: str = ""
    kubernetescluster: str = ""
    region: str = ""
    zone: str = ""
    version: str = ""
    node_groups: NodeGroups = {}
    template: str = ""
    kubeconfig: str = ""


class Provider(Protocol):
    """Calls end when the change is complete, or fail with ProviderError. They may be cancelled after a deadline, and
    are repeated after failures and restarts: a call must succeed if its result exists already."""

    async def describe(self, target: Target) -> NodeGroups:
        """Return the node groups of a running cluster with their sizes."""
        ...

    async def suspend(self, target: Target) -> None:
        """Stop all nodes of a cluster. Its objects stay."""
        ...

    async def resume(self, target: Target) -> None:
        """Start the nodes of a suspended cluster, in groups of the former sizes."""
        ...

    async def delete(self, target: Target) -> None:
        """Delete a cluster with all its objects."""
        ...

    async def create(self, target: Target) -> None:
        """Create a cluster, and an agent in it that joins under the name of the cluster. If this provider has created
        it already, make sure that it runs. Fail if another cluster has this name: users choose names by annotation, and
        Nova may delete the created cluster later."""
        ...
