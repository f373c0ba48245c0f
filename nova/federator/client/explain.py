"""Explanations and plans, by the scheduler's own functions on a snapshot of the control plane. They write nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nova.common.errors import Invalid, NotKnown
from nova.federator.api import objects
from nova.federator.api.types import Ref
from nova.federator.controllers.federation import Federation
from nova.federator.kube.client import Api
from nova.federator.store.schedules import Schedule

# The change that makes a rejected cluster eligible, by the cause that its rejection waits for.
_CHANGES = {"capacity": "free capacity", "labels": "other labels of the cluster", "ready": "the agent reporting again",
            "kind": "the kind being installed in the cluster", "settled": "the cluster being reachable for a while",
            "": "another policy or object"}


class Line(msgspec.Struct, frozen=True):
    """The line of a cluster in an explanation. ``state``: "runs", "chosen", "fits" or "rejected"."""

    cluster: str
    state: str
    text: str


class Explanation(msgspec.Struct, frozen=True):
    """The reasons for the placement of an object."""

    ref: Ref
    summary: str
    lines: tuple[Line, ...]


class Move(msgspec.Struct, frozen=True):
    """A change that a policy would cause: replicas per cluster before and after; None for a whole object."""

    ref: Ref
    before: Mapping[str, int | None]
    after: Mapping[str, int | None]


async def explain(api: Api, kind: str, name: str, namespace: str) -> Explanation:
    """Explain the placement of an object. ``kind``: as kubectl accepts it, such as deploy, deployments.apps or cm.
    Raises Invalid, NotKnown, ApiError."""
    federation = Federation(api)
    await federation.load()
    chosen = kind_named(kind)
    key = Ref(chosen.group, chosen.version, chosen.kind, namespace if chosen.namespaced else "", name).key
    template = federation.catalog.templates.get(key)
    if template is None:
        raise NotKnown(f"{key} does not exist in the Nova control plane, or is never placed.")
    placement = federation.catalog.placements.get(key)
    if placement is None or placement.policy is None:
        return Explanation(template.item.ref, "no policy selects the object, and it has no annotation: it stays in the"
                                              " control plane", ())
    problem = template.problem or placement.problem
    if problem:
        return Explanation(template.item.ref, f"the object is invalid: {problem}", ())
    group = federation.catalog.group(placement.group)
    decision = federation.placer.decide(group, placement.policy)
    stored = federation.placer.schedules.get(placement.group, {})
    lines = []
    reasons = {rejection.cluster: rejection for rejection in decision.rejections}
    for cluster in federation.clusters.names():
        share = decision.targets.get(cluster, {}).get(key, 0)
        if cluster in stored and (state := _running(stored[cluster], key)):
            extra = "" if key in decision.targets.get(cluster, {}) else "; it moves away"
            lines.append(Line(cluster, "runs", f"{state}{extra}"))
        elif key in decision.wakes.get(cluster, {}):
            lines.append(Line(cluster, "chosen", "will run here once the cluster is woken from standby"))
        elif key in decision.targets.get(cluster, {}):
            lines.append(Line(cluster, "chosen", "will run here" if share is None else f"will run {share} replicas"))
        elif rejection := reasons.get(cluster):
            lines.append(Line(cluster, "rejected", f"{rejection.check}: {rejection.message}; would change with"
                                                   f" {_CHANGES[rejection.wait_for]}"))
        else:
            lines.append(Line(cluster, "fits", "could run the object, but another cluster is chosen"))
    policy = f"policy {placement.policy.name}" if placement.policy.name else "annotation"
    if placement.others:
        policy += f" (also matching, ignored: {', '.join(placement.others)})"
    if len(group.items) > 1:
        policy += f", in a group of {len(group.items)} objects"
    if decision.wakes:
        policy += ": waits until clusters are woken from standby"
    elif not decision.placed:
        policy += ": no cluster can take it"
    return Explanation(template.item.ref, policy, tuple(lines))


async def plan(api: Api, policies: Sequence[Mapping[str, Any]]) -> list[Move]:
    """Return the moves that creating or changing policies would cause. Raises Invalid, ApiError."""
    federation = Federation(api)
    await federation.load()
    changed: set[str] = set()
    federation.catalog.changed = changed.add
    for obj in policies:
        if obj.get("kind") != "SchedulePolicy":
            raise Invalid(f"kind: {obj.get('kind')!r} is not SchedulePolicy.")
        federation.catalog.change_policy({"metadata": {"creationTimestamp": "9999"}, **obj})
    before: dict[str, dict[str, int | None]] = {}
    after: dict[str, dict[str, int | None]] = {}
    refs: dict[str, Ref] = {}
    for name in sorted(changed):
        for cluster, parts in federation.placer.schedules.get(name, {}).items():
            for part in parts.values():
                for entry in part.entries:
                    refs[entry.ref.key] = entry.ref
                    before.setdefault(entry.ref.key, {})[cluster] = entry.replicas
        for key, shares in federation.placer.simulate(name).items():
            after.setdefault(key, {}).update(shares)
            refs.setdefault(key, federation.catalog.templates[key].item.ref)
    return [Move(refs[key], before.get(key, {}), after.get(key, {})) for key in sorted(refs)
            if before.get(key, {}) != after.get(key, {})]


def kind_named(text: str) -> objects.Kind:
    """Return a kind by its name, plural or usual abbreviation, with or without its group. Raises Invalid."""
    plain, _dot, group = text.lower().partition(".")
    short = {"deploy": "deployments", "ds": "daemonsets", "rs": "replicasets", "sts": "statefulsets", "po": "pods",
             "svc": "services", "cm": "configmaps", "sa": "serviceaccounts", "ns": "namespaces", "ing": "ingresses",
             "netpol": "networkpolicies", "pvc": "persistentvolumeclaims", "hpa": "horizontalpodautoscalers",
             "pdb": "poddisruptionbudgets", "cj": "cronjobs", "crd": "customresourcedefinitions"}.get(plain, plain)
    for kind in objects.KINDS:
        if short in (kind.plural, kind.kind.lower()) and group in ("", kind.group):
            return kind
    raise Invalid(f"{text!r} is not a kind that Nova places.")


def _running(parts: Mapping[int, Schedule], key: str) -> str:
    """Return the share of a cluster in an object and the state of the copy, or an empty text if there is no copy."""
    for part in parts.values():
        for entry in part.entries:
            if entry.ref.key == key:
                observed = next((report for report in part.report.objects if report.ref.key == key), None)
                share = "the whole object" if entry.replicas is None else f"{entry.replicas} replicas"
                phase = "not applied yet" if observed is None else observed.phase.lower()
                message = f" ({observed.message})" if observed is not None and observed.message else ""
                return f"{share}, {phase}{message}"
    return ""
