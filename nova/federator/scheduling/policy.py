"""SchedulePolicies: parsed with errors that name the field, and matched to objects."""

from collections.abc import Mapping
from typing import Any

from nova.common.errors import Invalid
from nova.federator.api.names import NAME_LABEL, PIN, SPREAD_ONTO
from nova.federator.api.quantity import excerpt
from nova.federator.api.selectors import SelectorIndex, compile_selector, label_key, matches
from nova.federator.api.types import Failover, Item, Override, Policy, Selector, Spread
from nova.federator.scheduling.overrides import parse_path

_FAILOVER: tuple[Failover, ...] = ("Fenced", "AvailabilityFirst", "Never")
_LIST = 1000  # maximum number of entries of a list
_SPEC = {"namespaceSelector", "resourceSelectors", "clusterSelector", "orderedClusterSelector", "groupBy",
         "spreadConstraints", "failover", "fenceAfterSeconds"}
_SPREAD = {"topologyKey", "spreadMode", "percentageSplit", "overrides"}


def selects_cluster(policy: Policy, labels: Mapping[str, str]) -> bool:
    """Return True if a policy selects clusters with these labels, regardless of their state."""
    return (policy.clusters is None or matches(policy.clusters, labels)) and (
        policy.ordered is None or any(matches(selector, labels) for selector in policy.ordered))


def parse(obj: Mapping[str, Any]) -> Policy:
    """Return a SchedulePolicy ready for use. Raises Invalid, which names the field, also for unknown fields."""
    metadata, spec = _object(obj.get("metadata"), "metadata"), _object(obj.get("spec"), "spec", _SPEC)
    resources = _object(spec.get("resourceSelectors"), "spec.resourceSelectors", {"labelSelectors", "kinds"})
    labels = _list(resources.get("labelSelectors"), "spec.resourceSelectors.labelSelectors")
    if not labels:
        raise Invalid("spec.resourceSelectors.labelSelectors: required.")
    failover, fence_after = spec.get("failover", "Never"), spec.get("fenceAfterSeconds", 60)
    if failover not in _FAILOVER:
        raise Invalid(f"spec.failover: {excerpt(failover)} is not {', '.join(_FAILOVER)}.")
    if isinstance(fence_after, bool) or not isinstance(fence_after, int) or not 10 <= fence_after <= 86400:
        raise Invalid("spec.fenceAfterSeconds: not an integer from 10 to 86400.")
    group_by = None if spec.get("groupBy") is None else _object(
        spec["groupBy"], "spec.groupBy", {"labelKey"}).get("labelKey")
    return Policy(
        name=_text(metadata.get("name"), "metadata.name"), created=str(metadata.get("creationTimestamp")),
        uid=str(metadata.get("uid")),
        namespaces=_selector(spec, "namespaceSelector"), clusters=_selector(spec, "clusterSelector"),
        labels=tuple(compile_selector(selector, f"spec.resourceSelectors.labelSelectors[{number}]")
                     for number, selector in enumerate(labels)),
        kinds=_kinds(resources.get("kinds")), ordered=_ordered(spec.get("orderedClusterSelector")),
        group_by="" if group_by in (None, "") else label_key(group_by, "spec.groupBy.labelKey"),
        spread=_spread(spec.get("spreadConstraints")),
        failover=failover, fence_after=fence_after)


def _selector(spec: Mapping[str, Any], field: str) -> Selector | None:
    value = spec.get(field)
    return None if value is None else compile_selector(value, f"spec.{field}")


def _kinds(value: object) -> frozenset[tuple[str, str]] | None:
    if value is None or value == []:
        return None
    kinds = [_object(entry, f"spec.resourceSelectors.kinds[{number}]", {"kind", "version", "group"})
             for number, entry in enumerate(_list(value, "spec.resourceSelectors.kinds"))]
    return frozenset((_text(entry.get("kind"), f"spec.resourceSelectors.kinds[{number}].kind"),
                      "" if (group := entry.get("group")) in (None, "core", "") else _text(
                          group, f"spec.resourceSelectors.kinds[{number}].group"))
                     for number, entry in enumerate(kinds))


def _ordered(value: object) -> tuple[Selector, ...] | None:
    """Return a selector per value of orderedClusterSelector, by priority."""
    if value is None:
        return None
    field = "spec.orderedClusterSelector"
    content = _object(value, field, {"matchExpressions"})
    expressions = _list(content.get("matchExpressions"), f"{field}.matchExpressions")
    result = []
    for number, expression in enumerate(expressions):
        try:
            compiled = compile_selector({"matchExpressions": [expression]}, field)
        except Invalid as error:
            raise Invalid(error.message.replace("[0]", f"[{number}]", 1)) from None
        if not compiled.equal:
            raise Invalid(f"{field}.matchExpressions[{number}].operator: not In; other operators have no order.")
        result += [Selector(((str(expression["key"]), frozenset([name])),)) for name in expression["values"]]
    if not result:
        raise Invalid(f"{field}.matchExpressions: required.")
    return tuple(result)


def _spread(value: object) -> Spread | None:
    if value is None:
        return None
    field = "spec.spreadConstraints"
    spread = _object(value, field, _SPREAD)
    mode = spread.get("spreadMode", "Divide")
    if mode not in ("Divide", "Duplicate"):
        raise Invalid(f"{field}.spreadMode: {excerpt(mode)} is not Divide or Duplicate.")
    percentages = None
    if spread.get("percentageSplit") not in (None, []):
        percentages = {}
        for number, entry in enumerate(_list(spread["percentageSplit"], f"{field}.percentageSplit")):
            where = f"{field}.percentageSplit[{number}]"
            part = _object(entry, where, {"topologyValue", "percentage"})
            percentage, name = part.get("percentage"), _text(part.get("topologyValue"), f"{where}.topologyValue", True)
            if isinstance(percentage, bool) or not isinstance(percentage, int) or not 0 <= percentage <= 100:
                raise Invalid(f"{where}.percentage: not an integer from 0 to 100.")
            if name in percentages:
                raise Invalid(f"{where}.topologyValue: {name!r:.80} occurs twice.")
            percentages[name] = percentage
        if not any(percentages.values()):
            raise Invalid(f"{field}.percentageSplit: all percentages are 0.")
    topology_key = spread.get("topologyKey")
    return Spread(NAME_LABEL if topology_key in (None, "") else label_key(topology_key, f"{field}.topologyKey"),
                  mode == "Duplicate", percentages, tuple(_overrides(spread.get("overrides"), f"{field}.overrides")))


def _overrides(value: object, field: str) -> list[Override]:
    result = []
    for number, entry in enumerate(_list(value, field)):
        where = f"{field}[{number}]"
        part = _object(entry, where, {"topologyValue", "resources"})
        topology_value = _text(part.get("topologyValue"), f"{where}.topologyValue", True)
        for index, resource in enumerate(_list(part.get("resources"), f"{where}.resources")):
            inner = f"{where}.resources[{index}]"
            target = _object(resource, inner, {"kind", "apiVersion", "name", "namespace", "override"})
            for position, change in enumerate(_list(target.get("override"), f"{inner}.override")):
                path_field = f"{inner}.override[{position}]"
                content = _object(change, path_field, {"fieldPath", "value"})
                static = _object(content.get("value"), f"{path_field}.value", {"staticValue"})
                if "staticValue" not in static:
                    raise Invalid(f"{path_field}.value.staticValue: required.")
                result.append(Override(
                    topology_value, _text(target.get("kind"), f"{inner}.kind"),
                    _text(target.get("apiVersion"), f"{inner}.apiVersion"), _text(target.get("name"), f"{inner}.name"),
                    _text(target.get("namespace") or "", f"{inner}.namespace", True),
                    parse_path(content.get("fieldPath"), f"{path_field}.fieldPath"),
                    static.get("staticValue")))
    return result


def of_annotations(pin: str, spread_onto: str) -> Policy:
    """Return the policy that an object's annotations stand for: one cluster, or several with an optional spread mode.
    Raises Invalid."""
    if pin:
        if not pin.strip():
            raise Invalid(f"annotation {PIN}: not the name of a cluster.")
        return _listed([pin.strip()], None)
    text, _separator, mode = spread_onto.partition("::")
    names = [name.strip() for name in text.split(",") if name.strip()]
    if mode not in ("", "Divide", "Duplicate"):
        raise Invalid(f"annotation {SPREAD_ONTO}: the mode {excerpt(mode)} is not Divide or Duplicate.")
    if not names or len(names) > _LIST:
        raise Invalid(f"annotation {SPREAD_ONTO}: not a list of 1 to {_LIST} clusters.")
    return _listed(names, Spread(NAME_LABEL, mode == "Duplicate"))


def nowhere() -> Policy:
    """Return a policy that selects no cluster, for objects whose annotations are invalid."""
    return _listed([], None)


def _listed(names: list[str], spread: Spread | None) -> Policy:
    return Policy(name="", created="", uid="", namespaces=None, labels=(), kinds=None, spread=spread,
                  clusters=Selector(((NAME_LABEL, frozenset(names)),)))


def selects(policy: Policy, item: Item, namespace_labels: Mapping[str, str]) -> bool:
    """Return True if a policy selects an object. Cluster-scoped objects have no namespace to select by."""
    if policy.kinds is not None and (item.ref.kind, item.ref.group) not in policy.kinds:
        return False
    if item.ref.namespace and policy.namespaces is not None and not matches(policy.namespaces, namespace_labels):
        return False
    return any(matches(selector, item.labels) for selector in policy.labels)


class PolicySet:
    """Policies by name. If several match an object, the oldest one is used, then the first one by name."""

    def __init__(self) -> None:
        self._policies: dict[str, Policy] = {}
        self._index: SelectorIndex[str] = SelectorIndex()

    def __contains__(self, name: object) -> bool:
        return name in self._policies

    def get(self, name: str) -> Policy | None:
        return self._policies.get(name)

    def add(self, policy: Policy) -> None:
        """Add a policy, or replace the policy of its name."""
        self.remove(policy.name)
        self._policies[policy.name] = policy
        self._index.add(policy.name, policy.labels)

    def remove(self, name: str) -> None:
        policy = self._policies.pop(name, None)
        if policy is not None:
            self._index.remove(name, policy.labels)

    def match(self, item: Item, namespace_labels: Mapping[str, str]) -> tuple[Policy | None, list[str]]:
        """Return the policy of an object, or None, and the names of other policies that match."""
        candidates = [self._policies[name] for name in self._index.candidates(item.labels)]
        matching = sorted((policy for policy in candidates if selects(policy, item, namespace_labels)),
                          key=lambda policy: (policy.created, policy.name))
        return (matching[0] if matching else None), [policy.name for policy in matching[1:]]


def _object(value: object, field: str, fields: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{field}: {'required' if value is None else 'not an object'}.")
    if fields is not None and (unknown := value.keys() - fields):
        raise Invalid(f"{field}.{min(map(str, unknown)):.80}: unknown field.")
    return value


def _list(value: object, field: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _LIST:
        raise Invalid(f"{field}: not a list of at most {_LIST} entries.")
    return value


def _text(value: object, field: str, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > 317 or not (value or empty):
        raise Invalid(f"{field}: {'required' if value in (None, '') else 'not a text of at most 317 characters'}.")
    return value


