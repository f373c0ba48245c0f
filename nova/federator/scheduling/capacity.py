"""Capacity of clusters, node by node, and the claims on it.

A placement is booked immediately, so that two decisions never use the same free resources. The report of an agent
includes the pods of the generations that it names; those pods are not counted a second time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nova.federator.api import quantity
from nova.federator.api.types import Cluster, Item, Node, PodNeeds, Taint

Needs = Iterable[tuple[Item, int | None]]  # items with their replicas; None: the whole object
_Pods = Mapping[str, tuple[PodNeeds, int]]  # key of an item -> needs of a pod, number of pods
_UNBOUNDED = 1 << 30  # number of pods that fit if they request no resource


class Fit(msgspec.Struct, frozen=True):
    """The result of a check. ``room``: the smallest fraction of a resource that would stay free, in thousandths."""

    ok: bool
    room: int = 0
    check: str = ""
    message: str = ""


class _Nodes:
    """The nodes of a cluster with the resources that claims leave free. ``total`` and ``left``: sums of all nodes."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes = tuple(nodes)
        self.free = [dict(node.available) for node in self.nodes]
        self.total: dict[str, int] = {}
        for free in self.free:
            for resource, amount in free.items():
                self.total[resource] = self.total.get(resource, 0) + amount
        self.left = dict(self.total)

    def take(self, index: int, needs: PodNeeds, pods: int) -> None:
        """Book pods on a node, or release them if ``pods`` is negative."""
        free, left = self.free[index], self.left
        for resource, amount in needs.requests.items():
            free[resource] = free.get(resource, 0) - amount * pods
            left[resource] = left.get(resource, 0) - amount * pods


class _Booking:
    """The claim of a group in a cluster. ``stored``: pods of its schedules; ``decided``: pods of a decision that is not
    stored yet; ``counted``: pods that the report certainly includes; ``booked``: (node, needs, number of pods)."""

    __slots__ = ("booked", "counted", "decided", "stored")

    def __init__(self) -> None:
        self.stored: _Pods = {}
        self.decided: _Pods | None = None
        self.counted: _Pods = {}
        self.booked: list[tuple[int, PodNeeds, int]] = []

    def wanted(self) -> dict[str, tuple[PodNeeds, int]]:
        """Return the pods that may run: per item those of the schedules, or of the decision if it needs more."""
        result = dict(self.stored)
        for key, (needs, pods) in (self.decided or {}).items():
            old = self.stored.get(key)
            if old is None:
                result[key] = needs, pods
            elif _constraints(needs) == _constraints(old[0]):
                requests = {resource: max(needs.requests.get(resource, 0), old[0].requests.get(resource, 0))
                            for resource in needs.requests.keys() | old[0].requests.keys()}
                result[key] = msgspec.structs.replace(needs, requests=requests), max(pods, old[1])
            else:  # count old and new pods: the new ones may need other nodes, and the old ones run until then
                result[f"{key} decided"] = needs, pods
        return result

    def shrink_counted(self) -> None:
        """Reduce the counted pods to those of the schedules. If the schedules grow again, a report in between may
        include only the smaller number."""
        counted: dict[str, tuple[PodNeeds, int]] = {}
        for key, (needs, pods) in self.counted.items():
            new, number = self.stored.get(key, (None, 0))
            if new is not None and _constraints(new) == _constraints(needs):
                requests = {resource: min(amount, new.requests.get(resource, 0))
                            for resource, amount in needs.requests.items()}
                counted[key] = msgspec.structs.replace(needs, requests=requests), min(pods, number)
        self.counted = counted


class Room:
    """The resources of a cluster that are free for a group: without the claims of other groups, but with those of the
    group itself. Changes are local to this object, so changed nodes are copied. Valid until the claims change."""

    def __init__(self, nodes: _Nodes, booking: _Booking | None) -> None:
        self._nodes = nodes
        self._free: dict[int, dict[str, int]] = {}
        self._left = nodes.left
        self._counted = booking.counted if booking is not None else {}
        for index, needs, pods in booking.booked if booking is not None else ():
            self._take(index, needs, -pods)

    def fit(self, needs: Needs) -> Fit:
        """Book the pods of all items in this object, and return whether they fit."""
        wanted = _missing(_pods(needs), self._counted)
        room = self.after(wanted)
        for number, (pod, pods) in enumerate(wanted):
            fitting = self._assign(pod, pods) if number < len(wanted) - 1 else self._capacity(pod, pods)
            if fitting < pods:
                return self._unfit(pod, pods, fitting)
        return Fit(True, room)

    def after(self, wanted: Iterable[tuple[PodNeeds, int]]) -> int:
        """Return the smallest fraction of a resource that further pods would leave free, in thousandths."""
        left = {resource: self._left.get(resource, 0) for resource in ("cpu", "memory")}
        for pod, pods in wanted:
            for resource, amount in pod.requests.items():
                left[resource] = left.get(resource, self._left.get(resource, 0)) - amount * pods
        return min((free * 1000 // total for resource, free in left.items()
                    if resource != "pods" and (total := self._nodes.total.get(resource, 0)) > 0), default=0)

    def count(self, item: Item) -> int:
        """Return the number of replicas of an item that the cluster can run, including those that run there."""
        if item.pod is None or item.pod.every_node:
            return _UNBOUNDED
        old, number = self._counted.get(item.ref.key, (item.pod, 0))
        here = number if old == item.pod else 0
        return here + self._capacity(item.pod, _UNBOUNDED)

    def take(self, item: Item, replicas: int | None) -> None:
        """Book the pods of an item in this object, as far as they fit."""
        for pod, pods in _missing(_pods([(item, replicas)]), self._counted):
            self._assign(pod, pods)

    def _take(self, index: int, needs: PodNeeds, pods: int) -> None:
        if index not in self._free:
            self._free[index] = dict(self._nodes.free[index])
        if self._left is self._nodes.left:
            self._left = dict(self._left)
        for resource, amount in needs.requests.items():
            self._free[index][resource] = self._free[index].get(resource, 0) - amount * pods
            self._left[resource] = self._left.get(resource, 0) - amount * pods

    def _free_of(self, index: int) -> Mapping[str, int]:
        return self._free.get(index, self._nodes.free[index])

    def _capacity(self, needs: PodNeeds, enough: int) -> int:
        """Return the number of these pods that fit, at most ``enough``."""
        result = 0
        for index, node in enumerate(self._nodes.nodes):
            if (count := _count(self._free_of(index), needs)) and not obstacle(node, needs):
                result += count
                if result >= enough:
                    return enough
        return result

    def _assign(self, needs: PodNeeds, pods: int) -> int:
        places = _places(self._nodes.nodes, self._free_of, needs, pods)
        for index, number in places:
            self._take(index, needs, number)
        return sum(number for _index, number in places)

    def _unfit(self, needs: PodNeeds, pods: int, fitting: int) -> Fit:
        """Return the first check that fails, and its message with requested and free amounts."""
        nodes = self._nodes.nodes
        if not nodes:
            return Fit(False, 0, "nodes", "the cluster reports no schedulable node; it needs at least one")
        obstacles = [obstacle(node, needs) for node in nodes]
        if all(obstacles):
            return Fit(False, 0, "nodes",
                       f"0 of {len(nodes)} nodes accept the pod, for example: {obstacles[0]:.300}")
        usable = [self._free_of(index) for index, text in enumerate(obstacles) if not text]
        for resource, amount in needs.requests.items() if not fitting else ():
            largest = max(0, *(free.get(resource, 0) for free in usable))
            if largest < amount:
                return Fit(False, 0, resource, f"{pods} pods need {quantity.text(resource, amount)} of {resource} each,"
                                               f" the largest free node has {quantity.text(resource, largest)}")
        per_pod = ", ".join(f"{name} {quantity.text(name, amount)}" for name, amount in needs.requests.items())
        return Fit(False, 0, "capacity", f"has room for {fitting} of {pods} pods of {per_pod}")


class Claims:
    """The capacity of all clusters as reported, minus the claims that the reports do not include."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Nodes] = {}
        self._bookings: dict[str, dict[str, _Booking]] = {}
        self._undecided: dict[str, set[str]] = {}  # group -> clusters with a decision that is not stored

    def report(self, cluster: Cluster, included: Callable[[str], bool]) -> None:
        """Replace the figures of a cluster. ``included``: returns True if the figures include the pods of all schedules
        of a group. Pods of decisions that are not stored are never included."""
        nodes = self._nodes[cluster.name] = _Nodes(cluster.nodes)
        for group, booking in self._bookings.get(cluster.name, {}).items():
            booking.booked = []
            if booking.stored and included(group):
                booking.counted = booking.stored
            _book(nodes, booking)

    def forget(self, cluster: str) -> None:
        """Drop a cluster that does not exist any more."""
        self._nodes.pop(cluster, None)
        self._bookings.pop(cluster, None)

    def decide(self, group: str, targets: Mapping[str, Needs]) -> None:
        """Book the resources of a decision, as far as they exceed those of the schedules of the group. Replaces the
        previous decision on the group in all clusters."""
        for cluster in self._undecided.pop(group, set()) - targets.keys():
            if (booking := self._bookings.get(cluster, {}).get(group)) is not None:
                self._replace(cluster, group, booking, booking.stored, None)
        for cluster, needs in targets.items():
            booking = self._bookings.setdefault(cluster, {}).setdefault(group, _Booking())
            pods = _pods(needs)
            self._replace(cluster, group, booking, booking.stored, pods if pods != booking.stored else None)
            if booking.decided is not None:
                self._undecided.setdefault(group, set()).add(cluster)

    def claim(self, cluster: str, group: str, needs: Needs, included: bool = False) -> None:
        """Book the resources of the schedules of a group in a cluster, instead of those of its previous schedules.
        ``included``: True if the newest report includes these pods."""
        booking = self._bookings.setdefault(cluster, {}).setdefault(group, _Booking())
        stored = _pods(needs)
        if included:
            booking.counted = stored
        self._replace(cluster, group, booking, stored, None if booking.decided == stored else booking.decided)

    def release(self, cluster: str, group: str) -> None:
        """Release the resources that the schedules of a group have booked in a cluster. Resources of counted pods
        become free with the next report that lacks the pods. A decision that is not stored stays booked."""
        booking = self._bookings.get(cluster, {}).get(group)
        if booking is not None:
            self._replace(cluster, group, booking, {}, booking.decided)

    def claimed(self, cluster: str) -> Mapping[str, int]:
        """Return the resources that are booked in a cluster and not included in its report."""
        total: dict[str, int] = {}
        for booking in self._bookings.get(cluster, {}).values():
            for _index, needs, pods in booking.booked:
                for resource, amount in needs.requests.items():
                    total[resource] = total.get(resource, 0) + amount * pods
        return total

    def room(self, cluster: str, group: str) -> Room:
        """Return the resources that are free for a group in a cluster."""
        return Room(self._nodes.get(cluster) or _Nodes(), self._bookings.get(cluster, {}).get(group))

    def fits(self, cluster: str, group: str, needs: Needs) -> Fit:
        """Return whether the pods of a group fit into a cluster, in addition to all other claims."""
        return self.room(cluster, group).fit(needs)

    def holds(self, cluster: str, group: str, needs: Needs) -> bool:
        """Return True if all pods of a group are included in the report of a cluster, or booked there."""
        booking, pods = self._bookings.get(cluster, {}).get(group), _pods(needs)
        if booking is None:
            return not pods
        wanted = booking.wanted()
        return wanted == pods and sum(number for _needs, number in _missing(wanted, booking.counted)) == sum(
            number for _index, _needs, number in booking.booked)

    def rooms(self, clusters: Iterable[str], group: str, needs: Needs) -> dict[str, int]:
        """Return :attr:`Fit.room` of each cluster, under the assumption that the pods of a group fit there."""
        pods = _pods(needs)
        missing = _missing(pods, {})
        result = {}
        for cluster in clusters:
            booking = self._bookings.get(cluster, {}).get(group)
            room = Room(self._nodes.get(cluster) or _Nodes(), booking)
            result[cluster] = room.after(missing if booking is None else _missing(pods, booking.counted))
        return result

    def _replace(self, cluster: str, group: str, booking: _Booking, stored: _Pods, decided: _Pods | None) -> None:
        nodes = self._nodes.get(cluster) or _Nodes()
        for index, needs, pods in booking.booked:
            nodes.take(index, needs, -pods)
        booking.booked, booking.stored, booking.decided = [], stored, decided
        booking.shrink_counted()
        if stored or decided:
            _book(nodes, booking)
        else:
            del self._bookings[cluster][group]
            if not self._bookings[cluster]:
                del self._bookings[cluster]
        if decided is None and cluster in (clusters := self._undecided.get(group, set())):
            clusters.discard(cluster)
            if not clusters:
                del self._undecided[group]


def _book(nodes: _Nodes, booking: _Booking) -> None:
    """Book the pods that are not counted on nodes. Pods that fit on no node are not booked; the next report tries to
    book them again."""
    for needs, pods in _missing(booking.wanted(), booking.counted):
        for index, number in _places(nodes.nodes, nodes.free.__getitem__, needs, pods):
            nodes.take(index, needs, number)
            booking.booked.append((index, needs, number))


def _pods(needs: Needs) -> dict[str, tuple[PodNeeds, int]]:
    """Return the pods of items by key. DaemonSets and objects without pods need no capacity."""
    result = {}
    for item, replicas in needs:
        pods = next((count for count in (replicas, item.replicas, item.completions) if count is not None), 0)
        if item.pod is not None and not item.pod.every_node and pods:
            result[item.ref.key] = item.pod, pods
    return result


def _missing(wanted: _Pods, counted: _Pods) -> list[tuple[PodNeeds, int]]:
    """Return the wanted pods that are not counted, the largest first. Counted pods whose requests have grown need the
    difference: they are replaced one by one."""
    result = []
    for key, (needs, pods) in wanted.items():
        old, number = counted.get(key, (needs, 0))
        if _constraints(old) != _constraints(needs):
            number = 0
        if pods > number:
            result.append((needs, pods - number))
        grown = {resource: more for resource, amount in needs.requests.items()
                 if (more := amount - old.requests.get(resource, 0)) > 0}
        if grown and number:
            result.append((msgspec.structs.replace(needs, requests=grown), min(pods, number)))
    return sorted(result, key=lambda entry: sorted(entry[0].requests.values(), reverse=True), reverse=True)


def _constraints(needs: PodNeeds) -> tuple[object, ...]:
    """Return the requirements of a pod that select its nodes."""
    return needs.tolerations, needs.node_selector, needs.node_affinity


def _places(nodes: tuple[Node, ...], free_of: Callable[[int], Mapping[str, int]], needs: PodNeeds,
            pods: int) -> list[tuple[int, int]]:
    """Return the nodes for pods as (node, number of pods), sorted by room, largest first. Omit unfit pods."""
    counts = sorted(((count, index) for index, node in enumerate(nodes)
                     if (count := _count(free_of(index), needs)) and not obstacle(node, needs)),
                    key=lambda entry: (-entry[0], entry[1]))
    result = []
    for count, index in counts:
        result.append((index, min(count, pods)))
        pods -= min(count, pods)
        if not pods:
            break
    return result


def _count(free: Mapping[str, int], needs: PodNeeds) -> int:
    """Return the number of these pods that fit into the free resources of a node."""
    return max(0, min((free.get(resource, 0) // amount for resource, amount in needs.requests.items() if amount),
                      default=_UNBOUNDED))


def obstacle(node: Node, needs: PodNeeds) -> str:
    """Return why a node does not accept a pod, regardless of free resources, or an empty text."""
    for key, value in needs.node_selector.items():
        if node.labels.get(key) != value:
            return f"node {node.name} does not have the label {key}={value}"
    if needs.node_affinity and not any(_term_matches(node, term) for term in needs.node_affinity):
        return f"node {node.name} does not match the node affinity"
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not any(
                _tolerates(toleration, taint) for toleration in needs.tolerations):
            return f"node {node.name} has the taint {taint.key}={taint.value}:{taint.effect}"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.effect:
        return False
    if toleration.get("operator") == "Exists":
        return not key or key == taint.key
    return key == taint.key and (toleration.get("value") or "") == taint.value


def _term_matches(node: Node, term: Mapping[str, Any]) -> bool:
    """Return True if a node satisfies all requirements of a term; a term without requirements matches no node."""
    requirements = [(node.labels, entry) for entry in term.get("matchExpressions") or ()]
    requirements += [({"metadata.name": node.name}, entry) for entry in term.get("matchFields") or ()]
    return bool(requirements) and all(_satisfies(labels, entry) for labels, entry in requirements)


def _satisfies(labels: Mapping[str, str], entry: object) -> bool:
    if not isinstance(entry, Mapping):
        return False
    value, values = labels.get(str(entry.get("key"))), [str(value) for value in entry.get("values") or ()]
    match entry.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or len(values) != 1 or not _integer(value) or not _integer(values[0]):
                return False
            return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return False


def _integer(text: str) -> bool:
    return len(text) < 19 and text.removeprefix("-").isdecimal()
