"""SchedulePolicies and overrides: facts chapters 2.2, 3 and 4."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.common.errors import Invalid
from nova.federator.api.names import NAME_LABEL
from nova.federator.api.types import Item, Ref, Spread
from nova.federator.scheduling import overrides, policy
from nova.federator.scheduling.policy import PolicySet, of_annotations, parse
from tests.unit.federator.test_api import json_values

FULL: dict[str, Any] = {
    "metadata": {"name": "demo", "creationTimestamp": "2026-01-01T00:00:00Z", "uid": "u"},
    "spec": {
        "namespaceSelector": {"matchLabels": {"team": "shop"}},
        "resourceSelectors": {"labelSelectors": [{"matchLabels": {"app": "web"}}],
                              "kinds": [{"kind": "Deployment", "version": "v1", "group": "apps"},
                                        {"kind": "Service", "version": "v1", "group": "core"}]},
        "clusterSelector": {"matchExpressions": [{"key": "on-prem", "operator": "Exists"}]},
        "orderedClusterSelector": {"matchExpressions": [{"key": NAME_LABEL, "operator": "In", "values": ["b", "a"]}]},
        "groupBy": {"labelKey": "color"}, "failover": "Fenced", "fenceAfterSeconds": 30,
        "spreadConstraints": {
            "topologyKey": "zone", "spreadMode": "Duplicate",
            "percentageSplit": [{"topologyValue": "x", "percentage": 30}, {"topologyValue": "y", "percentage": 70}],
            "overrides": [{"topologyValue": "x", "resources": [{
                "kind": "Deployment", "apiVersion": "apps/v1", "name": "web", "namespace": "shop", "override": [{
                    "fieldPath": "metadata.labels['topology.istio.io/network']",
                    "value": {"staticValue": "network-1"}}]}]}]}}}
PATHS = [
    ("spec",), ("spec", "namespaceSelector"), ("spec", "resourceSelectors"),
    ("spec", "resourceSelectors", "labelSelectors"), ("spec", "resourceSelectors", "labelSelectors", 0),
    ("spec", "resourceSelectors", "labelSelectors", 0, "matchLabels"),
    ("spec", "resourceSelectors", "labelSelectors", 0, "matchLabels", "app"),
    ("spec", "resourceSelectors", "kinds"), ("spec", "resourceSelectors", "kinds", 0, "kind"),
    ("spec", "resourceSelectors", "kinds", 1, "group"), ("spec", "clusterSelector", "matchExpressions", 0, "operator"),
    ("spec", "orderedClusterSelector"), ("spec", "orderedClusterSelector", "matchExpressions", 0, "values"),
    ("spec", "groupBy"), ("spec", "groupBy", "labelKey"), ("spec", "failover"), ("spec", "fenceAfterSeconds"),
    ("spec", "spreadConstraints"), ("spec", "spreadConstraints", "topologyKey"),
    ("spec", "spreadConstraints", "spreadMode"), ("spec", "spreadConstraints", "percentageSplit"),
    ("spec", "spreadConstraints", "percentageSplit", 0, "percentage"),
    ("spec", "spreadConstraints", "percentageSplit", 0, "topologyValue"), ("spec", "spreadConstraints", "overrides"),
    ("spec", "spreadConstraints", "overrides", 0, "resources", 0, "override", 0, "fieldPath"),
    ("spec", "spreadConstraints", "overrides", 0, "resources", 0, "override", 0, "value"),
    ("metadata",), ("metadata", "name")]


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    obj = copy.deepcopy(FULL)
    target: Any = obj
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return obj


def test_all_fields_of_a_policy_are_read() -> None:
    """Facts chapter 2.2, each row."""
    result = parse(FULL)
    assert (result.name, result.group_by, result.failover, result.fence_after) == ("demo", "color", "Fenced", 30)
    assert result.kinds == {("Deployment", "apps"), ("Service", "")}
    assert [selector.equal for selector in result.ordered or ()] == [
        ((NAME_LABEL, frozenset([name])),) for name in ("b", "a")]
    assert result.spread is not None
    assert (result.spread.topology_key, result.spread.duplicate) == ("zone", True)
    assert result.spread.percentages == {"x": 30, "y": 70}
    assert [(change.path, change.value) for change in result.spread.overrides] == [
        (("metadata", "labels", "topology.istio.io/network"), "network-1")]


def test_optional_fields_have_the_documented_defaults() -> None:
    """Facts chapter 2.2: all namespaces, all clusters, Divide, topologyKey kubernetes.io/metadata.name; an empty
    selector matches everything."""
    result = parse({"metadata": {"name": "p"}, "spec": {
        "resourceSelectors": {"labelSelectors": [{"matchExpressions": []}]}, "spreadConstraints": {}}})
    assert (result.namespaces, result.clusters, result.ordered, result.kinds, result.group_by) == (
        None, None, None, None, "")
    assert result.spread == Spread(NAME_LABEL)
    assert (result.failover, result.fence_after) == ("Never", 60)
    assert policy.selects(result, Item(Ref("", "v1", "ConfigMap", "n", "c")), {})


@pytest.mark.parametrize(("path", "value", "message"), [
    (("spec", "priority"), 1, "spec.priority: unknown field"),
    (("spec", "resourceSelectors", "labelSelectors"), [], "spec.resourceSelectors.labelSelectors: required"),
    (("spec", "resourceSelectors", "labelSelectors", 0, "matchLabels"), {"a b": "c"}, "'a b' is not the key of a"),
    (("spec", "resourceSelectors", "labelSelectors", 0, "matchLabels"), {"a": "é"}, "'é' is not the value of a label"),
    (("spec", "resourceSelectors", "kinds", 0), {"kind": "X", "plural": "xs"}, "kinds[0].plural: unknown field"),
    (("spec", "resourceSelectors", "kinds", 1, "kind"), "", "kinds[1].kind: required"),
    (("spec", "orderedClusterSelector", "matchExpressions"), [], "orderedClusterSelector.matchExpressions: required"),
    (("spec", "orderedClusterSelector", "matchExpressions", 0, "operator"), "NotIn", "other operators have no order"),
    (("spec", "groupBy", "labelKey"), "-x", "spec.groupBy.labelKey: '-x' is not the key"),
    (("spec", "failover"), "Always", "spec.failover: 'Always' is not Fenced, AvailabilityFirst, Never"),
    (("spec", "fenceAfterSeconds"), 9, "spec.fenceAfterSeconds: not an integer from 10 to 86400"),
    (("spec", "spreadConstraints", "spreadMode"), "divide", "spreadMode: 'divide' is not Divide or Duplicate"),
    (("spec", "spreadConstraints", "percentageSplit"), {"x": 30}, "percentageSplit: not a list"),
    (("spec", "spreadConstraints", "percentageSplit", 0, "percentage"), 101, "percentage: not an integer from 0 to"),
    (("spec", "spreadConstraints", "percentageSplit", 1, "topologyValue"), "x", "topologyValue: 'x' occurs twice"),
    (("spec", "spreadConstraints", "percentageSplit"), [{"topologyValue": "x", "percentage": 0}], "percentages are 0"),
    (("spec", "spreadConstraints", "overrides", 0, "resources", 0, "name"), "", "resources[0].name: required"),
    (("spec", "spreadConstraints", "overrides", 0, "resources", 0, "override", 0, "value"), {}, "Value: required"),
    (("metadata", "name"), "", "metadata.name: required")])
def test_errors_of_policies_name_the_field(path: tuple[Any, ...], value: Any, message: str) -> None:
    """Facts chapters 2.2 and 11: unknown fields and impossible values."""
    with pytest.raises(Invalid) as caught:
        parse(changed(path, value))
    assert message in caught.value.message


@given(st.sampled_from(PATHS), json_values)
def test_malformed_policies_are_invalid_and_break_nothing(path: tuple[Any, ...], value: Any) -> None:
    message = f"{path[0]}: is valid"
    try:
        result = parse(changed(path, value))
        policy.selects(result, Item(Ref("", "v1", "ConfigMap", "n", "c"), {"app": "web"}), {"team": "shop"})
    except Invalid as error:
        message = error.message
    assert message.startswith(str(path[0]))
    assert len(message) < 500


def simple(name: str, created: str = "2026", namespaces: Any = None, **labels: str) -> Any:
    return parse({"metadata": {"name": name, "creationTimestamp": created}, "spec": {
        "namespaceSelector": namespaces, "resourceSelectors": {"labelSelectors": [{"matchLabels": labels}]}}})


def test_the_oldest_policy_that_matches_is_used() -> None:
    """Facts chapter 11: oldest creationTimestamp, then name; the others are named."""
    stored = PolicySet()
    for entry in (simple("c", "2026", app="web"), simple("b", "2025", app="web"), simple("a", "2026"),
                  simple("d", "2020", app="db")):
        stored.add(entry)
    item = Item(Ref("apps", "v1", "Deployment", "n", "web"), {"app": "web"})
    chosen, others = stored.match(item, {})
    assert (chosen and chosen.name, others) == ("b", ["a", "c"])
    stored.remove("b")
    stored.add(simple("a", "2026", app="other"))  # replaces the policy of this name
    chosen, others = stored.match(item, {})
    assert (chosen and chosen.name, others) == ("c", [])
    assert stored.match(Item(item.ref), {}) == (None, [])


def test_cluster_scoped_objects_ignore_the_namespace_selector() -> None:
    """Facts chapter 4: they are matched by label selectors whatever the namespace selector says."""
    entry = simple("p", namespaces={"matchLabels": {"team": "shop"}}, app="web")
    labels = {"app": "web"}
    namespaced = Item(Ref("", "v1", "ConfigMap", "n", "c"), labels)
    assert policy.selects(entry, namespaced, {"team": "shop"})
    assert not policy.selects(entry, namespaced, {"team": "other"})
    assert policy.selects(entry, Item(Ref("", "v1", "Namespace", "", "n"), labels), {})


def test_kinds_restrict_a_policy() -> None:
    plan = parse(changed(("spec", "namespaceSelector"), {}))
    labels = {"app": "web"}
    assert policy.selects(plan, Item(Ref("apps", "v1", "Deployment", "n", "x"), labels), {})
    assert policy.selects(plan, Item(Ref("", "v1", "Service", "n", "x"), labels), {})
    assert not policy.selects(plan, Item(Ref("apps", "v1", "StatefulSet", "n", "x"), labels), {})


@pytest.mark.parametrize(("pin", "spread_onto"), [("", "a,b::Half"), ("", ",,"), ("", "::Divide"), ("  ", "")])
def test_invalid_annotations_are_reported(pin: str, spread_onto: str) -> None:
    """Facts chapter 3: the annotations cluster and spread-onto."""
    with pytest.raises(Invalid, match=r"annotation nova.elotl.co/(cluster|spread-onto)"):
        of_annotations(pin, spread_onto)


@pytest.mark.parametrize(("text", "steps"), [
    ("spec.template.spec.containers[0].env[0].value",
     ("spec", "template", "spec", "containers", 0, "env", 0, "value")),
    ("metadata.labels['topology.istio.io/network']", ("metadata", "labels", "topology.istio.io/network")),
    ('metadata.annotations["a.b/c"]', ("metadata", "annotations", "a.b/c")), ("data['x y']", ("data", "x y"))])
def test_paths_of_overrides(text: str, steps: tuple[Any, ...]) -> None:
    """Facts chapter 2.2: fieldPath."""
    assert overrides.parse_path(text, "f") == steps


@pytest.mark.parametrize("text", [
    "", ".spec", "spec.", "spec..x", "spec[", "spec[-1]", "spec[x]", "spec['a]", "[0]", "spec[0]x", "spec[99999]", None,
    1, "a" * 2000, "metadata.name", "metadata['name']", "metadata.namespace", "metadata.uid", "metadata", "kind",
    "kind.x", "apiVersion", "status.replicas", "metadata.finalizers", "metadata.ownerReferences[0]",
    "metadata.managedFields"])
def test_other_paths_are_refused(text: Any) -> None:
    with pytest.raises(Invalid, match=r"^field: "):
        overrides.parse_path(text, "field")


MANIFEST: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
                            "spec": {"template": {"spec": {"containers": [{"env": [{"name": "A", "value": "1"}]}]}}}}
WEB = Ref("apps", "v1", "Deployment", "shop", "web")


def spread(path: str, value: Any, **fields: str) -> Spread:
    parsed = parse(changed(("spec", "spreadConstraints", "overrides", 0, "resources", 0, "override", 0),
                           {"fieldPath": path, "value": {"staticValue": value}})).spread
    assert parsed is not None
    return msgspec.structs.replace(parsed, overrides=tuple(
        msgspec.structs.replace(change, **fields) for change in parsed.overrides))


def test_overrides_change_a_copy_of_the_object_in_their_bucket() -> None:
    """Facts chapter 4, overrides: applied on the copy for the bucket; a missing map key is created."""
    before = copy.deepcopy(MANIFEST)
    result = overrides.apply(MANIFEST, WEB, spread("spec.template.spec.containers[0].env[0].value", "2"), {"zone": "x"})
    assert result["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "2"}]
    result = overrides.apply(MANIFEST, WEB, spread("metadata.labels['a.b/c']", "d"), {"zone": "x"})
    assert result["metadata"]["labels"] == {"a.b/c": "d"}
    assert before == MANIFEST
    for labels, fields in (({"zone": "y"}, {}), ({}, {}), ({"zone": "x"}, {"name": "other"}),
                           ({"zone": "x"}, {"namespace": "other"}), ({"zone": "x"}, {"api_version": "apps/v1beta1"})):
        assert overrides.apply(MANIFEST, WEB, spread("spec.x", 1, **fields), labels) is MANIFEST


@pytest.mark.parametrize("path", ["spec.template.spec.containers[1].image", "spec.template[0]", "spec.new[0].x",
                                  "metadata.labels[0]", "spec.template.spec.containers.image"])
def test_overrides_that_do_not_fit_the_object_name_their_path(path: str) -> None:
    before = copy.deepcopy(MANIFEST)
    with pytest.raises(Invalid, match=r"^overrides: Deployment web has no field '(spec|metadata)\."):
        overrides.apply(MANIFEST, WEB, spread(path, 1), {"zone": "x"})
    assert before == MANIFEST
