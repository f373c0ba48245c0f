"""Decisions: the clusters of a group, from a snapshot. Pure functions: the same inputs give the same decision."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from nova.federator.api.selectors import matches
from nova.federator.api.types import Cluster, Decision, Group, Item, Policy, Rejection
from nova.federator.scheduling.capacity import Claims, Fit
from nova.federator.scheduling.split import split

Shares = Mapping[str, Mapping[str, int | None]]  # cluster -> key of item -> replicas


def decide(group: Group, policy: Policy, clusters: Iterable[Cluster] | Mapping[str, Cluster], claims: Claims,
           current: Shares, avoided: Collection[str] = (), released: Collection[str] = (), *,
           brief: bool = False) -> Decision:
    """Return where a group shall run.

    ``current``: where it runs now, without placements that are being removed. ``avoided``: clusters in which it did not
    become ready. ``released``: unreachable clusters that certainly run nothing any more (their fence time is over).
    ``brief``: without rejections of clusters that need not be checked because another one is chosen.
    A group that no cluster can take stays where it is.
    """
    by_name = clusters if isinstance(clusters, Mapping) else {cluster.name: cluster for cluster in clusters}
    if brief and _stays(group, policy, by_name, claims, current, avoided):
        return Decision({name: _whole(group) for name in current})
    decision = _decide(group, policy, by_name, claims, current, avoided, released, brief)
    if decision.targets:
        return decision
    keys = {item.ref.key: item.replicas for item in group.items}
    stays: dict[str, dict[str, int | None]] = {}
    for name, shares in current.items():
        if name not in released:
            stays[name] = {key: shares[key] if policy.spread and key in shares else replicas
                           for key, replicas in keys.items() if key in shares or not policy.spread}
            if not policy.spread:
                break
    return msgspec.structs.replace(decision, targets={name: shares for name, shares in stays.items() if shares},
                                   placed=False)


def _stays(group: Group, policy: Policy, by_name: Mapping[str, Cluster], claims: Claims, current: Shares,
           avoided: Collection[str]) -> bool:
    """Return True if a group certainly stays in its only cluster, whatever the state of the others is."""
    if len(current) != 1 or policy.spread is not None or policy.ordered is not None:
        return False
    cluster = by_name.get(next(iter(current)))
    return (cluster is not None and cluster.reachable and claims.holds(
        cluster.name, group.key, [(item, item.replicas) for item in group.items])
        and _rejected(group, policy, cluster, True, False, cluster.name in avoided) is None)


def _decide(group: Group, policy: Policy, by_name: Mapping[str, Cluster], claims: Claims, current: Shares,
            avoided: Collection[str], released: Collection[str], brief: bool) -> Decision:
    rejections: list[Rejection] = []
    candidates = []
    for name in sorted(by_name):
        held = name in current and policy.failover != "AvailabilityFirst" and name not in released
        rejection = _rejected(group, policy, by_name[name], name in current, held, name in avoided)
        if rejection is None:
            candidates.append(by_name[name])
        else:
            rejections.append(rejection)
    frozen = [name for name in current if name not in released and name in by_name and not by_name[name].reachable
              and policy.failover != "AvailabilityFirst"]
    if policy.spread is not None:
        return _spread(group, policy, candidates, claims, current, frozen, rejections)
    if frozen:  # what runs there cannot be stopped now, so nothing is started elsewhere
        return Decision({frozen[0]: _whole(group)}, tuple(rejections))
    return _single(group, policy, candidates, claims, current, rejections, avoided, brief)


def _rejected(group: Group, policy: Policy, cluster: Cluster, present: bool, held: bool,
              avoided: bool) -> Rejection | None:
    """Return why a cluster cannot run a group whatever its capacity is, or None. ``present``: the group runs there;
    ``held``: also while the cluster is unreachable."""
    selectors = policy.ordered if policy.ordered is not None else (policy.clusters,) if policy.clusters else None
    if selectors is not None and not any(matches(selector, cluster.labels) for selector in selectors):
        return Rejection(cluster.name, "selector", "the labels of the cluster do not match the policy", "labels")
    if cluster.draining:
        return Rejection(cluster.name, "draining", "the cluster is being deleted")
    if not cluster.reachable and not held:
        return Rejection(cluster.name, "ready", "the agent of the cluster does not report", "ready")
    if not cluster.ready and not present:
        return Rejection(cluster.name, "ready", "the agent of the cluster has not reported yet", "ready")
    if avoided:
        return Rejection(cluster.name, "deadline", "the group did not become ready there in time; the cluster is tried"
                                                   " again later", "capacity")
    if cluster.kinds is not None:
        for item in group.items:
            kind = f"{item.ref.kind}.{item.ref.group}" if item.ref.group else item.ref.kind
            if kind not in cluster.kinds:
                return Rejection(cluster.name, "kind", f"the cluster does not have the kind {kind}", "kind")
    return None


def _whole(group: Group) -> dict[str, int | None]:
    return {item.ref.key: item.replicas for item in group.items}


def _single(group: Group, policy: Policy, candidates: Sequence[Cluster], claims: Claims, current: Shares,
            rejections: list[Rejection], avoided: Collection[str], brief: bool) -> Decision:
    """Place the whole group in one cluster: the present one while it fits, otherwise the best one with room."""
    needs = [(item, item.replicas) for item in group.items]
    present = [cluster for cluster in candidates if cluster.name in current]
    named = policy.clusters is not None and policy.ordered is None and len(candidates) == 1 and not avoided and not any(
        rejection.check != "selector" for rejection in rejections)
    fits: dict[str, Fit] = {}
    for cluster in _preferred(group, policy, candidates, claims, present, needs) if brief else candidates:
        fits[cluster.name] = claims.fits(cluster.name, group.key, needs)
        if brief and (named or fits[cluster.name].ok):
            break
    usable = [cluster for cluster in candidates if cluster.name in fits and fits[cluster.name].ok]
    chosen = None
    if named:  # the only cluster that the policy selects is not checked for capacity
        chosen = candidates[0]
    elif present and present[0] in usable and policy.ordered is None:
        chosen = present[0]
    elif usable:
        chosen = min(usable, key=lambda cluster: (_priority(policy, cluster), cluster.autoscaled,
                                                  cluster not in present, -fits[cluster.name].room, cluster.name))
    else:
        chosen = next(iter(present), None) or next((cluster for cluster in candidates if cluster.autoscaled), None)
    rejections += [Rejection(name, fit.check, fit.message, "capacity") for name, fit in fits.items()
                   if not fit.ok and (chosen is None or name != chosen.name)]
    targets = {chosen.name: _whole(group)} if chosen else {}
    return Decision(targets, tuple(sorted(rejections, key=lambda rejection: rejection.cluster)))


def _preferred(group: Group, policy: Policy, candidates: Sequence[Cluster], claims: Claims, present: Sequence[Cluster],
               needs: Sequence[tuple[Item, int | None]]) -> list[Cluster]:
    """Return clusters in an order in which the first one with room is the best one with room."""
    rooms = claims.rooms([cluster.name for cluster in candidates], group.key, needs)
    names = [cluster.name for cluster in present]
    stays = names[0] if names and policy.ordered is None else ""
    return sorted(candidates, key=lambda cluster: (
        cluster.name != stays, _priority(policy, cluster), cluster.autoscaled, cluster.name not in names,
        -rooms[cluster.name], cluster.name))


def _priority(policy: Policy, cluster: Cluster) -> int:
    """Return the position of the first selector of the policy's order that matches; 0 without an order."""
    for number, selector in enumerate(policy.ordered or ()):
        if matches(selector, cluster.labels):
            return number
    return 0


def _spread(group: Group, policy: Policy, candidates: Sequence[Cluster], claims: Claims, current: Shares,
            frozen: Sequence[str], rejections: list[Rejection]) -> Decision:
    """Place copies in all candidate clusters: whole ones, or shares of the replicas."""
    assert policy.spread is not None
    warnings, weighted = [], {}
    percentages = policy.spread.percentages
    buckets: dict[str, list[Cluster]] = {}
    for cluster in candidates:
        value = cluster.labels.get(policy.spread.topology_key)
        if value is None:
            rejections.append(Rejection(cluster.name, "topology", "the cluster has no label"
                                        f" {policy.spread.topology_key}", "labels"))
        elif percentages is not None and not policy.spread.duplicate and not percentages.get(value):
            rejections.append(Rejection(cluster.name, "percentage", f"the policy gives 0 percent to {value!r}"))
        else:
            buckets.setdefault(value, []).append(cluster)
    if percentages is not None and not policy.spread.duplicate:
        if sum(percentages.values()) != 100:
            warnings.append(f"percentageSplit: the sum is {sum(percentages.values())}, not 100; the parts are scaled")
        warnings += [f"percentageSplit: no cluster has {policy.spread.topology_key}={value}"
                     for value in sorted(percentages) if percentages[value] and value not in buckets]
    weighted = {value: percentages[value] if percentages and not policy.spread.duplicate else 1 for value in buckets}
    targets: dict[str, dict[str, int | None]] = {cluster.name: {} for part in buckets.values() for cluster in part}
    targets |= {name: {} for name in frozen}
    for item in group.items:
        if item.replicas is None or policy.spread.duplicate:
            for name in targets:
                if name not in frozen or item.ref.key in current[name]:
                    targets[name][item.ref.key] = item.replicas
            continue
        shares = _divide(item.ref.key, item.replicas, buckets, weighted, current, frozen, {
            name: claims.room_for(name, group.key, item) for name in targets})
        for name, share in shares.items():
            if share or not item.replicas:
                targets[name][item.ref.key] = share
    chosen = {name: shares for name, shares in targets.items() if shares}
    return Decision(chosen, tuple(sorted(rejections, key=lambda rejection: rejection.cluster)),
                    warnings=tuple(warnings))


def _divide(key: str, replicas: int, buckets: Mapping[str, Sequence[Cluster]], weights: Mapping[str, int],
            current: Shares, frozen: Sequence[str], rooms: Mapping[str, int]) -> dict[str, int]:
    """Return the share of each cluster: replicas are divided among the buckets, then within each bucket. Shares of
    frozen clusters stay. A cluster gets no more than it has room for, unless the replicas fit nowhere."""
    held = {name: min(current[name].get(key) or 0, replicas) for name in frozen}
    rest = max(0, replicas - sum(held.values()))
    free = {value: [cluster for cluster in clusters if cluster.name not in held] for value, clusters in buckets.items()}
    values = sorted((value for value in free if free[value]), key=lambda value: (
        not any(current.get(cluster.name, {}).get(key) for cluster in free[value]), value))
    limits: list[int | None] = [sum(rooms[cluster.name] for cluster in free[value]) for value in values]
    if sum(limit or 0 for limit in limits) < rest:
        limits = [None] * len(values)
    shares = dict(held)
    for value, part in zip(values, split(rest, [weights[value] for value in values], limits), strict=True):
        members = sorted(free[value], key=lambda cluster: (not current.get(cluster.name, {}).get(key), cluster.name))
        caps: list[int | None] = [rooms[cluster.name] for cluster in members]
        if sum(cap or 0 for cap in caps) < part:
            caps = [None] * len(members)
        for cluster, share in zip(members, split(part, [1] * len(members), caps), strict=True):
            shares[cluster.name] = share
    return shares
