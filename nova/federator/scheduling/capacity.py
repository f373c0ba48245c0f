"""Capacity of clusters, node by node, and the claims on it.

A placement is booked at once, so that decisions within the same second never use the same room. A report of an agent
includes the pods of the generations that it names; those are not counted a second time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from nova.federator.api import quantity
from nova.federator.api.types import Cluster, Item, Node, PodNeeds, Taint

Needs = Iterable[tuple[Item, int | None]]  # items with their replicas; None: the whole object


class Fit(msgspec.Struct, frozen=True):
    """The result of a check. ``room``: the smallest share of a resource that would be left, in thousandths."""

    ok: bool
    room: int = 0
    check: str = ""
    message: str = ""


class _State(msgspec.Struct):
    """A node with what claims leave of it."""

    node: Node
    free: dict[str, int]


class _Booking(msgspec.Struct):
    """The claim of a group in a cluster. ``counted``: pods in the report; ``booked``: (node, needs, pods)."""

    wanted: dict[str, tuple[PodNeeds, int]]
    counted: dict[str, tuple[PodNeeds, int]]
    booked: list[tuple[int, PodNeeds, int]]


class Claims:
    """The capacity of all clusters as reported, minus the claims that the reports do not include."""

    def __init__(self) -> None:
        self._states: dict[str, list[_State]] = {}
        self._bookings: dict[str, dict[str, _Booking]] = {}

    def report(self, cluster: Cluster, included: Callable[[str], bool]) -> None:
        """Replace the figures of a cluster. ``included``: True for groups whose wanted pods the report includes."""
        self._states[cluster.name] = [_State(node, dict(node.available)) for node in cluster.nodes]
        for group, booking in self._bookings.get(cluster.name, {}).items():
            booking.booked = []
            if included(group):
                booking.counted = dict(booking.wanted)
            self._book(cluster.name, booking)

    def forget(self, cluster: str) -> None:
        """Drop a cluster that does not exist any more."""
        self._states.pop(cluster, None)
        self._bookings.pop(cluster, None)

    def claim(self, cluster: str, group: str, needs: Needs, included: bool = False) -> None:
        """Book what a group needs in a cluster instead of what it had booked there. ``included``: the last report
        includes these pods."""
        booking = self._bookings.setdefault(cluster, {}).setdefault(group, _Booking({}, {}, []))
        self._unbook(cluster, booking)
        booking.wanted = _pods(needs)
        if included:
            booking.counted = dict(booking.wanted)
        self._book(cluster, booking)

    def release(self, cluster: str, group: str) -> None:
        """Give back what a group has booked in a cluster. Its counted pods are free once a report says so."""
        booking = self._bookings.get(cluster, {}).pop(group, None)
        if booking is not None:
            self._unbook(cluster, booking)

    def claimed(self, cluster: str) -> Mapping[str, int]:
        """Return the resources that are booked in a cluster and not included in its report."""
        total: dict[str, int] = {}
        for booking in self._bookings.get(cluster, {}).values():
            for _index, needs, pods in booking.booked:
                for resource, amount in needs.requests.items():
                    total[resource] = total.get(resource, 0) + amount * pods
        return total

    def fits(self, cluster: str, group: str, needs: Needs) -> Fit:
        """Return whether the pods of a group fit into a cluster, beside all other claims."""
        booking = self._bookings.get(cluster, {}).get(group) or _Booking({}, {}, [])
        self._unbook(cluster, booking)
        try:
            states = [_State(state.node, dict(state.free)) for state in self._states.get(cluster, ())]
            for wanted, pods in _missing(_pods(needs), booking.counted):
                left = _assign(states, wanted, pods)
                if sum(number for _index, number in left) < pods:
                    return _unfit(states, wanted, pods, sum(number for _index, number in left))
            return Fit(True, _room(states))
        finally:
            self._book(cluster, booking)

    def room_for(self, cluster: str, group: str, item: Item) -> int:
        """Return the number of replicas of an item that a cluster can run, those that run there included."""
        if item.pod is None or item.pod.every_node:
            return 1 << 30
        booking = self._bookings.get(cluster, {}).get(group) or _Booking({}, {}, [])
        self._unbook(cluster, booking)
        try:
            needs, counted = booking.counted.get(item.ref.key, (item.pod, 0))
            here = counted if needs == item.pod else 0
            return here + sum(_count(state, item.pod) for state in self._states.get(cluster, ()))
        finally:
            self._book(cluster, booking)

    def _book(self, cluster: str, booking: _Booking) -> None:
        """Take the pods that are not counted from the nodes. Pods that fit nowhere are booked on no node."""
        states = self._states.get(cluster, [])
        for needs, pods in _missing(booking.wanted, booking.counted):
            booking.booked += [(index, needs, number) for index, number in _assign(states, needs, pods)]

    def _unbook(self, cluster: str, booking: _Booking) -> None:
        states = self._states.get(cluster, [])
        for index, needs, pods in booking.booked:
            for resource, amount in needs.requests.items():
                states[index].free[resource] = states[index].free.get(resource, 0) + amount * pods
        booking.booked = []


def _pods(needs: Needs) -> dict[str, tuple[PodNeeds, int]]:
    """Return the pods of items by key. DaemonSets and objects without pods need no capacity."""
    result = {}
    for item, replicas in needs:
        pods = next((count for count in (replicas, item.replicas, item.completions) if count is not None), 0)
        if item.pod is not None and not item.pod.every_node and pods:
            result[item.ref.key] = item.pod, pods
    return result


def _missing(wanted: Mapping[str, tuple[PodNeeds, int]],
             counted: Mapping[str, tuple[PodNeeds, int]]) -> list[tuple[PodNeeds, int]]:
    """Return the wanted pods that are not counted, the largest first."""
    result = []
    for key, (needs, pods) in wanted.items():
        old, number = counted.get(key, (needs, 0))
        missing = pods - number if old == needs else pods
        if missing > 0:
            result.append((needs, missing))
    return sorted(result, key=lambda entry: sorted(entry[0].requests.values(), reverse=True), reverse=True)


def _assign(states: list[_State], needs: PodNeeds, pods: int) -> list[tuple[int, int]]:
    """Take pods from the nodes with the most room first. Return (node, pods); fewer pods if they do not fit."""
    counts = sorted(((count, index) for index, state in enumerate(states) if (count := _count(state, needs))),
                    key=lambda entry: (-entry[0], entry[1]))
    result = []
    for count, index in counts:
        taken = min(count, pods)
        if not taken:
            break
        pods -= taken
        for resource, amount in needs.requests.items():
            states[index].free[resource] = states[index].free.get(resource, 0) - amount * taken
        result.append((index, taken))
    return result


def _count(state: _State, needs: PodNeeds) -> int:
    """Return how many of these pods fit on a node."""
    if obstacle(state.node, needs):
        return 0
    return max(0, min((state.free.get(resource, 0) // amount for resource, amount in needs.requests.items() if amount),
                      default=1 << 30))


def _room(states: list[_State]) -> int:
    """Return the smallest share of cpu and memory that is free in the cluster."""
    shares = []
    for resource in ("cpu", "memory"):
        total = sum(state.node.available.get(resource, 0) for state in states)
        if total:
            shares.append(sum(max(0, state.free.get(resource, 0)) for state in states) * 1000 // total)
    return min(shares, default=1000)


def _unfit(states: list[_State], needs: PodNeeds, pods: int, fitting: int) -> Fit:
    """Return the first check that fails, with its numbers."""
    if not states:
        return Fit(False, 0, "nodes", "the cluster reports no schedulable node; a node would change that")
    obstacles = [text for state in states if (text := obstacle(state.node, needs))]
    if len(obstacles) == len(states):
        return Fit(False, 0, "nodes", f"0 of {len(states)} nodes accept the pod, for example: {obstacles[0]}")
    usable = [state for state in states if not obstacle(state.node, needs)]
    for resource, amount in needs.requests.items() if not fitting else ():
        largest = max(state.free.get(resource, 0) for state in usable)
        if largest < amount:
            return Fit(False, 0, resource, f"{pods} pods need {quantity.text(resource, amount)} of {resource} each, the"
                                           f" largest free node has {quantity.text(resource, max(0, largest))}")
    per_pod = ", ".join(f"{name} {quantity.text(name, amount)}" for name, amount in needs.requests.items())
    return Fit(False, 0, "capacity", f"has room for {fitting} of {pods} pods of {per_pod}")


def obstacle(node: Node, needs: PodNeeds) -> str:
    """Return why a node does not accept a pod whatever is free, or an empty text."""
    for key, value in needs.node_selector.items():
        if node.labels.get(key) != value:
            return f"node {node.name} has not the label {key}={value}"
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
