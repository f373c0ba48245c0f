"""Decisions: the clusters of a group, from a snapshot. Pure functions: the same inputs give the same decision."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from nova.federator.api.objects import consumes
from nova.federator.api.selectors import matches
from nova.federator.api.types import Cluster, Decision, Group, Item, Policy, Rejection, kind_name
from nova.federator.scheduling.capacity import Claims, Fit, Room
from nova.federator.scheduling.policy import selects_cluster
from nova.federator.scheduling.split import split

Shares = Mapping[str, Mapping[str, int | None]]  # cluster -> key of item -> replicas
_WARNINGS = 10  # maximum number of warnings of one kind in a decision


def decide(group: Group, policy: Policy, clusters: Iterable[Cluster] | Mapping[str, Cluster], claims: Claims,
           current: Shares, avoided: Collection[str] = (), released: Collection[str] = (), *,
           held_back: Collection[str] = (), brief: bool = False) -> Decision:
    """Return the clusters in which a group must run. A group that no cluster can take stays where it is.

    ``current``: its present shares, without those that are being removed. ``avoided``: clusters in which the group did
    not become ready. ``released``: unreachable clusters in which its workloads have certainly stopped (their fence time
    is over). ``held_back``: preferred clusters to which the group must not return now from another usable cluster.
    ``brief``: without rejections of clusters that need not be checked because another one is chosen.
    """
    by_name = clusters if isinstance(clusters, Mapping) else {cluster.name: cluster for cluster in clusters}
    finished = {item.ref.key for item in group.items if item.finished}
    if finished:
        return _without_restarts(group, policy, by_name, claims, current, avoided, released, finished, held_back)
    if brief and _stays(group, policy, by_name, claims, current, avoided):
        return Decision({name: _whole(group) for name in current})
    decision = _decide(group, policy, by_name, claims, current, avoided, released, held_back, brief)
    if not policy.name and policy.clusters is not None:  # the clusters that an annotation names
        unknown = sorted(name for _key, names in policy.clusters.equal for name in names if name not in by_name)
        decision = msgspec.structs.replace(decision, warnings=(*decision.warnings, *(
            f"the annotation names the cluster {name!r:.80}, which does not exist" for name in unknown[:_WARNINGS])))
    if any(by_name[name].standby for name in decision.targets):
        return _until_awake(group, policy, decision, by_name, current, released)
    if decision.targets:
        return decision
    remaining = _remaining(group, policy, by_name, current, released)
    return msgspec.structs.replace(decision, targets=remaining, placed=False)


def _remaining(group: Group, policy: Policy, by_name: Mapping[str, Cluster], current: Shares,
               released: Collection[str]) -> dict[str, Mapping[str, int | None]]:
    """Return the present placement of a group, which stays because no cluster can take the group. A group in a single
    cluster gets its present replicas and members there; shares of several clusters stay as they are."""
    stays = {name: shares for name, shares in current.items() if name in by_name and name not in released}
    if policy.spread is None and len(stays) == 1:
        return {name: _whole(group) for name in stays if group.items}
    keys = [item.ref.key for item in group.items]
    placed = {name: {key: shares[key] for key in keys if key in shares} for name, shares in stays.items()}
    return {name: shares for name, shares in placed.items() if shares}


def _until_awake(group: Group, policy: Policy, decision: Decision, by_name: Mapping[str, Cluster], current: Shares,
                 released: Collection[str]) -> Decision:
    """Divide a decision into shares that are possible now and shares that wait until clusters wake up. No share shrinks
    or moves before. Objects that consume nothing stay in clusters in standby, but neither wake nor enter them."""
    refs = {item.ref.key: item.ref for item in group.items}
    wakes = {name: shares for name, shares in decision.targets.items() if by_name[name].standby and any(
        consumes(refs[key], share) for key, share in shares.items())}
    possible = {name: shares for name, shares in decision.targets.items() if name not in wakes and (
        not by_name[name].standby or name in current)}
    if not wakes:
        return msgspec.structs.replace(decision, targets=possible)
    targets = {name: dict(shares) for name, shares in _remaining(group, policy, by_name, current, released).items()}
    for name, shares in possible.items():
        for key, share in shares.items():
            present = targets.setdefault(name, {}).get(key)
            targets[name][key] = share if share is None or present is None else max(share, present)
    return msgspec.structs.replace(decision, targets=targets, wakes=wakes, placed=False)


def _without_restarts(group: Group, policy: Policy, by_name: Mapping[str, Cluster], claims: Claims, current: Shares,
                      avoided: Collection[str], released: Collection[str], finished: Collection[str],
                      held_back: Collection[str]) -> Decision:
    """Decide on a group in which Jobs or Pods have ended: these stay where they ran, and never run anywhere else."""
    rest = msgspec.structs.replace(group, items=tuple(item for item in group.items if item.ref.key not in finished))
    decision = decide(rest, policy, by_name, claims, current, avoided, released,
                      held_back=held_back) if rest.items else Decision({})
    targets = {name: dict(shares) for name, shares in decision.targets.items()}
    for name, shares in current.items():
        cluster = by_name.get(name)
        if cluster is not None and not cluster.draining and (not rest.items or name in targets):
            targets.setdefault(name, {}).update({key: shares[key] for key in finished if key in shares})
    return msgspec.structs.replace(decision, targets={name: shares for name, shares in targets.items() if shares})


def _stays(group: Group, policy: Policy, by_name: Mapping[str, Cluster], claims: Claims, current: Shares,
           avoided: Collection[str]) -> bool:
    """Return True if a group certainly stays in its only cluster, regardless of the state of other clusters."""
    if len(current) != 1 or policy.spread is not None or policy.ordered is not None:
        return False
    cluster = by_name.get(next(iter(current)))
    return (cluster is not None and cluster.reachable and not cluster.standby and claims.holds(
        cluster.name, group.key, [(item, item.replicas) for item in group.items])
        and _rejected(group, policy, cluster, True, False, cluster.name in avoided) is None)


def _decide(group: Group, policy: Policy, by_name: Mapping[str, Cluster], claims: Claims, current: Shares,
            avoided: Collection[str], released: Collection[str], held_back: Collection[str], brief: bool) -> Decision:
    rejections: list[Rejection] = []
    candidates = []
    current = _without_stopped(group, policy, by_name, current, released)
    for name in sorted(by_name):
        held = name in current and policy.failover != "AvailabilityFirst" and name not in released
        rejection = _rejected(group, policy, by_name[name], name in current, held, name in avoided)
        if rejection is None:
            candidates.append(by_name[name])
        else:
            rejections.append(rejection)
    frozen = [name for name in current if name not in released and name in by_name and not by_name[name].reachable
              and policy.failover != "AvailabilityFirst"]
    warnings: list[str] = []
    if policy.spread is not None:
        return _spread(group, policy, candidates, claims, current, frozen, rejections, warnings)
    if frozen and not any(cluster.name in current and cluster.reachable for cluster in candidates):
        # Nothing is started elsewhere, because the copy in the unreachable cluster cannot be stopped now.
        return Decision({frozen[0]: _whole(group)}, tuple(rejections), warnings=tuple(warnings))
    rejections += [Rejection(name, "ready", "the agent of the cluster does not report; the copy there is removed once"
                                            " it does", "ready") for name in frozen]
    candidates = [cluster for cluster in candidates if cluster.name not in frozen]
    present = [cluster for cluster in candidates if cluster.name in current]
    if policy.ordered is not None and present:
        waits = {cluster.name for cluster in candidates if cluster.name in held_back and cluster not in present}
        candidates = [cluster for cluster in candidates if cluster.name not in waits]
        rejections += [Rejection(name, "settled", "groups return one at a time, once the cluster has been reachable for"
                                                  " a while", "settled") for name in sorted(waits)
                       if _priority(policy, by_name[name]) < _priority(policy, present[0])]
    return _single(group, policy, candidates, claims, current, rejections, avoided, warnings, brief)


def _without_stopped(group: Group, policy: Policy, by_name: Mapping[str, Cluster], current: Shares,
                     released: Collection[str]) -> Shares:
    """Return the present shares of a group. If the group needs resources, leave out stopped clusters that it may leave,
    or in which a spread group has no replicas: these are chosen and woken like other clusters in standby."""
    refs = {item.ref.key: item.ref for item in group.items}
    if not any(consumes(item.ref, item.replicas) for item in group.items):
        return current
    stopped = {name for name in current if name in by_name and by_name[name].standby and not by_name[name].reachable}
    return {name: shares for name, shares in current.items() if name not in stopped or not (
        name in released or policy.failover == "AvailabilityFirst" or (policy.spread is not None and not any(
            key not in refs or consumes(refs[key], share) for key, share in shares.items())))}


def _rejected(group: Group, policy: Policy, cluster: Cluster, present: bool, held: bool,
              avoided: bool) -> Rejection | None:
    """Return why a cluster cannot run a group, regardless of capacity, or None. ``present``: True if the group runs
    there; ``held``: True if it stays there while the cluster is unreachable."""
    if not selects_cluster(policy, cluster.labels):
        return Rejection(cluster.name, "selector", "the labels of the cluster do not match the policy", "labels")
    if cluster.draining:
        return Rejection(cluster.name, "draining", "the cluster is being deleted")
    if cluster.standby and not present:
        if not any(consumes(item.ref, item.replicas) for item in group.items):
            return Rejection(cluster.name, "standby", "the cluster is in standby, and objects that use no resources do"
                                                      " not wake it", "ready")
        if cluster.problem:
            return Rejection(cluster.name, "standby", f"the cluster was not woken from standby: {cluster.problem}",
                             "ready")
    elif not cluster.reachable and not held:
        return Rejection(cluster.name, "ready", "the agent of the cluster does not report", "ready")
    elif not cluster.ready and not present:
        return Rejection(cluster.name, "ready", "the agent of the cluster has not reported yet", "ready")
    if avoided:
        return Rejection(cluster.name, "deadline", "the group did not become ready there before its deadline; the"
                                                   " cluster is tried again later", "capacity")
    if cluster.kinds is not None:
        for item in group.items:
            kind = kind_name(item.ref.group, item.ref.kind)
            if kind not in cluster.kinds:
                return Rejection(cluster.name, "kind", f"the cluster does not have the kind {kind}", "kind")
    return None


def _whole(group: Group) -> dict[str, int | None]:
    return {item.ref.key: item.replicas for item in group.items}


def _single(group: Group, policy: Policy, candidates: Sequence[Cluster], claims: Claims, current: Shares,
            rejections: list[Rejection], avoided: Collection[str], warnings: Sequence[str], brief: bool) -> Decision:
    """Place the whole group in one cluster: the present one while it fits, otherwise the best one with room. If no
    cluster has room, an autoscaled one is chosen, the present one first."""
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
        chosen = min(usable, key=lambda cluster: (_priority(policy, cluster), cluster.standby, cluster.autoscaled,
                                                  cluster not in present, -fits[cluster.name].room, cluster.name))
    else:
        chosen = min((cluster for cluster in candidates if cluster.autoscaled), default=None, key=lambda cluster: (
            cluster not in present, _priority(policy, cluster), cluster.standby, cluster.name))
    rejections += [Rejection(name, fit.check, fit.message, "capacity") for name, fit in fits.items()
                   if not fit.ok and (chosen is None or name != chosen.name)]
    targets = {chosen.name: _whole(group)} if chosen else {}
    return Decision(targets, tuple(sorted(rejections, key=lambda rejection: rejection.cluster)),
                    warnings=tuple(warnings))


def _preferred(group: Group, policy: Policy, candidates: Sequence[Cluster], claims: Claims, present: Sequence[Cluster],
               needs: Sequence[tuple[Item, int | None]]) -> list[Cluster]:
    """Return the clusters by preference: the first cluster with room is the best one."""
    rooms = claims.rooms([cluster.name for cluster in candidates], group.key, needs)
    names = [cluster.name for cluster in present]
    stays = names[0] if names and policy.ordered is None else ""
    return sorted(candidates, key=lambda cluster: (
        cluster.name != stays, _priority(policy, cluster), cluster.standby, cluster.autoscaled,
        cluster.name not in names, -rooms[cluster.name], cluster.name))


def _priority(policy: Policy, cluster: Cluster) -> int:
    """Return the position of the first selector of the policy's order that matches; 0 without an order."""
    for number, selector in enumerate(policy.ordered or ()):
        if matches(selector, cluster.labels):
            return number
    return 0


def _spread(group: Group, policy: Policy, candidates: Sequence[Cluster], claims: Claims, current: Shares,
            frozen: Sequence[str], rejections: list[Rejection], warnings: list[str]) -> Decision:
    """Place copies of whole objects, or shares of their replicas, in all candidate clusters."""
    assert policy.spread is not None
    percentages = None if policy.spread.duplicate else policy.spread.percentages
    buckets: dict[str, list[Cluster]] = {}
    for cluster in candidates:
        value = cluster.labels.get(policy.spread.topology_key)
        if value is None:
            rejections.append(Rejection(cluster.name, "topology", "the cluster has no label"
                                        f" {policy.spread.topology_key}", "labels"))
        elif percentages is not None and not percentages.get(value):
            rejections.append(Rejection(cluster.name, "percentage", f"the policy gives 0 percent to {value!r}"))
        else:
            buckets.setdefault(value, []).append(cluster)
    if percentages is not None:
        if sum(percentages.values()) != 100:
            warnings.append(f"percentageSplit: the sum is {sum(percentages.values())}, not 100; the parts are scaled")
        warnings += [f"percentageSplit: no usable cluster has {policy.spread.topology_key}={value}"
                     for value in sorted(percentages) if percentages[value] and value not in buckets][:_WARNINGS]
    weights = {value: percentages[value] if percentages else 1 for value in buckets}
    targets: dict[str, dict[str, int | None]] = {cluster.name: {} for part in buckets.values() for cluster in part}
    rooms = {name: claims.room(name, group.key) for name in targets}
    targets |= {name: {} for name in frozen}
    for item in group.items:
        if item.replicas is None or policy.spread.duplicate:
            for name in targets:
                if name not in frozen or item.ref.key in current[name]:
                    targets[name][item.ref.key] = item.replicas
        else:
            shares = _divide(item, buckets, weights, current, frozen, rooms, warnings)
            for name, share in shares.items():
                if share or not item.replicas:
                    targets[name][item.ref.key] = share
        if item.pod is not None and len(group.items) > 1:  # book these pods before the next member is placed
            for name, room in rooms.items():
                if item.ref.key in targets[name]:
                    room.take(item, targets[name][item.ref.key])
    chosen = {name: shares for name, shares in targets.items() if shares}
    return Decision(chosen, tuple(sorted(rejections, key=lambda rejection: rejection.cluster)),
                    warnings=tuple(warnings))


def _divide(item: Item, buckets: Mapping[str, Sequence[Cluster]], weights: Mapping[str, int], current: Shares,
            frozen: Sequence[str], rooms: Mapping[str, Room], warnings: list[str]) -> dict[str, int]:
    """Return the share of each cluster: replicas are divided among the buckets, then within each bucket. Shares of
    frozen clusters stay. A cluster gets no more replicas than it has room for. Replicas that fit nowhere go to
    autoscaled clusters; if there are none, these replicas wait in all clusters for room."""
    key, replicas = item.ref.key, item.replicas or 0
    held = {name: min(current[name].get(key) or 0, replicas) for name in frozen}
    rest = max(0, replicas - sum(held.values()))
    free = {value: [cluster for cluster in buckets[value] if cluster.name not in held] for value in sorted(buckets)}
    members = [cluster for clusters in free.values() for cluster in clusters]
    limits: dict[str, int | None] = {cluster.name: rooms[cluster.name].count(item) for cluster in members}
    fitting = sum(limit or 0 for limit in limits.values())
    if fitting < rest:
        scaled = [cluster.name for cluster in members if cluster.autoscaled]
        if not scaled and members:
            warnings.append(f"{item.ref.kind} {item.ref.name}: the clusters have room for {fitting} of {rest} replicas;"
                            " the other replicas wait there")
        limits |= dict.fromkeys(scaled or limits)
    present = {cluster.name: current.get(cluster.name, {}).get(key) or 0 for cluster in members}
    names = {value: sorted(cluster.name for cluster in clusters) for value, clusters in free.items() if clusters}
    parts = split(rest, [weights[value] for value in names], [_sum(limits[name] for name in bucket)
                                                              for bucket in names.values()],
                  current=[sum(present[name] for name in bucket) for bucket in names.values()])
    shares = dict(held)
    for bucket, part in zip(names.values(), parts, strict=True):
        shares |= zip(bucket, split(part, [1] * len(bucket), [limits[name] for name in bucket],
                                    current=[present[name] for name in bucket]), strict=True)
    return shares


def _sum(limits: Iterable[int | None]) -> int | None:
    """Return the sum of upper bounds; None is unbounded."""
    total = 0
    for limit in limits:
        if limit is None:
            return None
        total += limit
    return total
