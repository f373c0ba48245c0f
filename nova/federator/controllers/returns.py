"""Returns of groups to a preferred cluster: once it has been reachable for a while, and one group at a time."""

from collections.abc import Collection, Mapping

from nova.federator.controllers.clusters import Clusters
from nova.federator.store.schedules import Schedule


class Returns:
    """Groups of ordered policies that move to another cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.waiting: dict[str, set[str]] = {}  # preferred cluster -> groups that may return there later
        self._moving: dict[str, str] = {}  # cluster -> group that moves there

    def held_back(self, group: str) -> set[str]:
        """Return the clusters that a group with a usable placement must not prefer now."""
        return self.clusters.unsettled() | {cluster for cluster, moving in self._moving.items() if moving != group}

    def record(self, group: str, targets: Collection[str], placed: Mapping[str, Mapping[int, Schedule]]) -> None:
        """Record whether a group moves: its old share exists, or its new share is not ready. Old shares in unreachable
        clusters do not count, nor those being deleted once the new share is ready."""
        ready = all(cluster in placed and all(part.ready for part in placed[cluster].values()) for cluster in targets)
        leaving = [part for cluster, parts in placed.items() if cluster not in targets
                   and self.clusters.reachable(cluster) for part in parts.values()]
        moves = not all(part.deleting for part in leaving) or (
            not ready and bool(leaving or group in self._moving.values()))
        self._moving = {cluster: moving for cluster, moving in self._moving.items() if moving != group}
        if moves:
            self._moving |= {cluster: group for cluster in targets if cluster not in self._moving}

    def forget(self, group: str) -> None:
        """Forget a group that was deleted, or whose policy has no order any more."""
        self._moving = {cluster: moving for cluster, moving in self._moving.items() if moving != group}
        for cluster, groups in list(self.waiting.items()):
            groups.discard(group)
            if not groups:
                del self.waiting[cluster]

    def next(self) -> list[str]:
        """Return one waiting group for each cluster that may take a group now, and remove them from ``waiting``."""
        free = self.waiting.keys() - self._moving.keys() - self.clusters.unsettled() if self.waiting else ()
        groups = [self.waiting[cluster].pop() for cluster in free]
        self.waiting = {cluster: others for cluster, others in self.waiting.items() if others}
        return groups
