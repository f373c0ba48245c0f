"""Returns to a preferred cluster: only once it has been reachable for a while, and one group at a time per cluster."""

from collections.abc import Collection, Mapping

from nova.federator.controllers.clusters import Clusters
from nova.federator.store.schedules import Schedule


class Returns:
    """Groups of ordered policies that move to another cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self._moving: dict[str, str] = {}  # cluster -> group that moves there

    def held_back(self, group: str) -> set[str]:
        """Return the clusters that a group with a usable placement must not prefer now."""
        return self.clusters.unsettled() | {cluster for cluster, moving in self._moving.items() if moving != group}

    def record(self, group: str, targets: Collection[str], placed: Mapping[str, Mapping[int, Schedule]]) -> None:
        """Record after a step of a group whether it moves: a share that it leaves still exists, or the new share is not
        ready yet. A share in an unreachable cluster is not waited for."""
        moves = any(cluster not in targets and self.clusters.reachable(cluster) for cluster in placed) or (
            group in self._moving.values() and not all(
                cluster in placed and all(part.ready for part in placed[cluster].values()) for cluster in targets))
        self._moving = {cluster: moving for cluster, moving in self._moving.items() if moving != group}
        if moves:
            self._moving |= {cluster: group for cluster in targets if cluster not in self._moving}

    def next(self, waiting: Mapping[str, set[str]]) -> list[str]:
        """Return a group for each cluster that may take one now, of those that wait for "CLUSTER/settled", and remove
        it from these."""
        unsettled, groups = self.clusters.unsettled(), []
        for cause, held in waiting.items():
            cluster, _slash, kind = cause.rpartition("/")
            if kind == "settled" and held and cluster not in unsettled and cluster not in self._moving:
                groups.append(held.pop())
        return groups
