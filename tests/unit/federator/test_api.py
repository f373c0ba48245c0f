"""Quantities, selectors, and what scheduling reads of objects."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.common.errors import Invalid
from nova.federator.api import objects, quantity, selectors
from nova.federator.api.names import cluster_namespace
from nova.federator.api.types import Selector, Taint
from tests.unit.federator.worlds import claims, cluster, node

json_values: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2**70, 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)))


@pytest.mark.parametrize(("text", "thousandths"), [
    ("100m", 100), ("1", 1000), (2, 2000), ("1.5", 1500), ("1Ki", 1_024_000), ("2Gi", 2 * 1024**3 * 1000),
    ("1e3", 10**6), ("1E", 10**21), ("5E-1", 500), ("0.0001", 1), ("1n", 1), ("2498615680", 2498615680000), (0.5, 500),
    ("1k", 10**6), (".5", 500), ("1.", 1000), ("+2", 2000)])
def test_quantities_are_exact_and_rounded_up(text: Any, thousandths: int) -> None:
    """Facts chapter 2.1: values in any notation, such as 399m, 2332068Ki, 2498615680."""
    assert quantity.parse(text) == thousandths


@given(st.integers(0, 10**12), st.sampled_from(["", "m", "Ki", "M"]))
def test_quantities_equal_exact_arithmetic(number: int, unit: str) -> None:
    factor = {"": Fraction(1), "m": Fraction(1, 1000), "Ki": Fraction(1024), "M": Fraction(10**6)}[unit]
    assert quantity.parse(f"{number}{unit}") == number * factor * 1000


@pytest.mark.parametrize("text", ["", "-1", "1.2.3", "abc", "1 Ki", None, True, [], "9" * 40, "1e999", "١", "nan",
                                  "1Zi", ".", "+", "Ki", 1 << 200, -1])
def test_other_texts_are_no_quantities(text: Any) -> None:
    with pytest.raises(Invalid, match="not a quantity"):
        quantity.parse(text)
    with pytest.raises(Invalid, match="not a quantity"):
        quantity.parse(10**6000)  # has no text


@given(st.integers(0, 10**15), st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "pods"]))
def test_quantities_in_messages_are_exact(number: int, resource: str) -> None:
    assert quantity.parse(quantity.text(resource, number)) == number
    assert quantity.text("memory", 512 * 1024**2 * 1000) == "512Mi"


@pytest.mark.parametrize(("selector", "labels", "matching"), [
    ({}, {}, True), ({"matchExpressions": []}, {"a": "b"}, True),
    ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
    ({"matchLabels": {"a": "b"}}, {"a": "c"}, False),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}, {"a": "c"}, True),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"}, False),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": ""}, False),
    ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}, {"a": "b"}, False)])
def test_selectors_match_as_kubernetes_documents(selector: Any, labels: dict[str, str], matching: bool) -> None:
    assert selectors.matches(selectors.compile_selector(selector, "spec"), labels) is matching


@pytest.mark.parametrize(("selector", "field"), [
    (None, "spec"), ([], "spec"), ({"matchlabels": {}}, "spec.matchlabels"),
    ({"matchLabels": {"a": 1}}, "spec.matchLabels"),
    ({"matchExpressions": [{"operator": "In", "values": ["a"]}]}, r"matchExpressions\[0\].key"),
    ({"matchExpressions": [{"key": "a", "operator": "in", "values": ["a"]}]}, "operator"),
    ({"matchExpressions": [{"key": "a", "operator": "In"}]}, "values: required"),
    ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["a"]}]}, "values: not allowed")])
def test_errors_of_selectors_name_the_field(selector: Any, field: str) -> None:
    with pytest.raises(Invalid, match=field):
        selectors.compile_selector(selector, "spec")


labels_of = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)
terms: Any = st.lists(st.one_of(
    st.fixed_dictionaries({"key": st.sampled_from("abc"), "operator": st.sampled_from(["In", "NotIn"]),
                           "values": st.lists(st.sampled_from("xyz"), min_size=1, max_size=2)}),
    st.fixed_dictionaries({"key": st.sampled_from("abc"), "operator": st.sampled_from(["Exists", "DoesNotExist"])})),
    max_size=3)


@given(st.lists(terms, max_size=6), labels_of)
def test_the_index_misses_no_selector(expressions: list[Any], labels: dict[str, str]) -> None:
    compiled = [selectors.compile_selector({"matchExpressions": entry}, "spec") for entry in expressions]
    index: selectors.SelectorIndex[int] = selectors.SelectorIndex()
    for number, selector in enumerate(compiled):
        index.add(number, [selector])
    matching = {number for number, selector in enumerate(compiled) if selectors.matches(selector, labels)}
    assert matching <= index.candidates(labels)
    for number, selector in enumerate(compiled):
        index.remove(number, [selector])
    assert index.candidates(labels) == set()


def test_the_index_finds_few_candidates_among_many_policies() -> None:
    """Promise P10: matching an object costs its labels, not the number of policies."""
    index: selectors.SelectorIndex[int] = selectors.SelectorIndex()
    for number in range(10_000):
        index.add(number, [Selector(((f"app-{number % 100}", frozenset([str(number)])),))])
    assert index.candidates({"app-7": "107", "tier": "web"}) == {107}


@given(st.lists(terms, max_size=3), st.lists(st.tuples(st.integers(0, 5), st.none() | labels_of), max_size=12))
def test_the_index_of_objects_misses_no_object(expressions: list[Any], changes: list[Any]) -> None:
    """Objects are added, relabelled and removed in any order."""
    index, objects_by_key = selectors.LabelIndex(), dict[str, dict[str, str]]()
    for number, labels in changes:
        if labels is None:
            index.remove(str(number))
            objects_by_key.pop(str(number), None)
        else:
            index.put(str(number), labels)
            objects_by_key[str(number)] = labels
    compiled = [selectors.compile_selector({"matchExpressions": entry}, "spec") for entry in expressions]
    matching = {key for key, labels in objects_by_key.items() if any(selectors.matches(entry, labels)
                                                                     for entry in compiled)}
    assert matching <= index.candidates(compiled) <= objects_by_key.keys()
    for key in objects_by_key:
        index.remove(key)
    assert (len(index), index.candidates(compiled)) == (0, set())


def test_an_edit_of_a_policy_costs_the_objects_that_it_selects() -> None:
    """Promise P10: few candidates among many objects, by value and by key of a label."""
    index = selectors.LabelIndex()
    for number in range(10_000):
        index.put(str(number), {"app": f"web-{number % 1000}", **({"special": "yes"} if number % 2500 == 0 else {})})
    by_value = selectors.compile_selector({"matchLabels": {"app": "web-7"}}, "spec")
    by_key = selectors.compile_selector({"matchExpressions": [{"key": "special", "operator": "Exists"}]}, "spec")
    assert len(index.candidates([by_value])) == 10
    assert index.candidates([by_key]) == {"0", "2500", "5000", "7500"}


def deployment(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
            "spec": spec}


def test_requests_of_a_pod_are_summed() -> None:
    """Containers add up, an init container needs its own maximum, a limit without a request is a request, and overhead
    counts."""
    pod = {"containers": [{"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Ki"}}},
                          {"resources": {"requests": {"cpu": "200m"}}}],
           "initContainers": [{"resources": {"requests": {"cpu": "250m", "memory": "2Ki"}}}],
           "overhead": {"cpu": "10m"}}
    item = objects.item_of(deployment(replicas=3, template={"spec": pod}))
    assert item.pod is not None
    assert item.pod.requests == {"cpu": 310, "memory": 2_048_000, "pods": 1000}
    assert (item.replicas, item.break_first) == (3, False)


@pytest.mark.parametrize(("obj", "break_first"), [
    (deployment(strategy={"type": "Recreate"}), True), (deployment(), False),
    ({**deployment(volumeClaimTemplates=[{}]), "kind": "StatefulSet"}, True),
    ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {}}, True)])
def test_objects_that_must_not_run_twice(obj: dict[str, Any], break_first: bool) -> None:
    """Promise make-before-break, with its exceptions: Recreate, StatefulSets with claims, bare pods."""
    assert objects.item_of(obj).break_first is break_first


@pytest.mark.parametrize(("spec", "pods"), [
    ({}, 1), ({"parallelism": 5}, 5), ({"parallelism": 5, "completions": 2}, 2), ({"completions": 9}, 1),
    ({"parallelism": 0}, 0)])
def test_pods_of_jobs_that_run_at_a_time(spec: dict[str, int], pods: int) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "n"}, "spec": spec}
    item = objects.item_of(job)
    assert (item.completions, item.break_first) == (pods, True)


def custom(path: Any, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "spec": spec, "metadata": {
        "name": "w", "namespace": "n", "annotations": {"nova.elotl.co/replicas-path": path}}}


def test_replicas_of_custom_resources_are_read_and_written_at_their_path() -> None:
    """Facts chapter 5: objects of any CRD; a share is written where the number was read."""
    widget = custom("spec.pool.size", pool={"size": 7})
    assert objects.item_of(widget).replicas == 7
    objects.set_replicas(widget, 3)
    assert widget["spec"] == {"pool": {"size": 3}}
    manifest = deployment(replicas=7)
    objects.set_replicas(manifest, 3)
    assert manifest["spec"] == {"replicas": 3}


@pytest.mark.parametrize(("path", "spec"), [
    ("spec.size", {}), ("spec.size", {"size": "7"}), ("spec.size", {"size": -1}), ("status.size", {}), ("spec", {}),
    ("spec..x", {}), (["spec"], {}), ("spec." + "x" * 300, {})])
def test_replicas_paths_that_do_not_fit_are_invalid(path: Any, spec: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"replicas-path|spec\.size"):
        objects.item_of(custom(path, **spec))


def test_roles_of_the_api_server_are_never_placed() -> None:
    """A policy that matches everything must not place cluster-admin or view."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {
        "name": "view", "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}}
    assert objects.internal(role)
    assert not objects.internal({**role, "metadata": {"name": "view-all"}})


WORKLOAD: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {
    "name": "web", "namespace": "shop", "labels": {"app": "web"}}, "spec": {
        "replicas": 2, "strategy": {"type": "Recreate"}, "template": {"spec": {
            "containers": [{"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}],
            "initContainers": [{"resources": {}}], "overhead": {"cpu": "1m"}, "nodeSelector": {"disk": "ssd"},
            "terminationGracePeriodSeconds": 5, "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["4"]}]}]}}}}}}}


def places(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all fields of an object."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([prefix] if prefix else []), *(path for key, entry in inner for path in places(entry, (*prefix, key)))]


@given(st.sampled_from(places(WORKLOAD)), json_values)
def test_wrong_types_anywhere_are_invalid_or_harmless(path: tuple[Any, ...], value: Any) -> None:
    """An object that is accepted can be checked against the nodes of a cluster."""
    obj = copy.deepcopy(WORKLOAD)
    target: Any = obj
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    message = f"{path[0]} is accepted"
    try:
        item = objects.item_of(obj)
        fit = claims(cluster("a", node(taints=(Taint("a", "b", "NoSchedule"),)))).fits("a", "g", [(item, 1)])
        assert fit.ok or fit.message
    except Invalid as error:
        message = error.message
    assert str(path[0]) in message


@given(st.dictionaries(st.sampled_from(["replicas", "template", "strategy", "parallelism", "containers", "affinity",
                                        "tolerations", "nodeSelector"]), json_values, max_size=4),
       st.sampled_from([kind.kind for kind in objects.KINDS]))
def test_malformed_objects_are_invalid_and_break_nothing(spec: dict[str, Any], name: str) -> None:
    kind = next(kind for kind in objects.KINDS if kind.kind == name)
    obj = {"apiVersion": f"{kind.group}/{kind.version}" if kind.group else kind.version, "kind": name,
           "metadata": {"name": "x", "namespace": "n"}, "spec": {**spec, "template": {"spec": spec}}}
    error = None
    try:
        objects.item_of(obj)
    except Invalid as invalid:
        error = invalid.message
    assert error is None or "spec" in error  # the field is named


def test_namespaces_of_clusters_are_valid_labels() -> None:
    assert cluster_namespace("kind-workload-1") == "nova-cluster-kind-workload-1"
    for name in ("a" * 100, "a.b", "A"):
        assert len(cluster_namespace(name)) <= 63
        assert "." not in cluster_namespace(name)


@pytest.mark.parametrize(("kind", "status", "finished"), [
    ("Job", {"conditions": [{"type": "Complete", "status": "True"}]}, True), ("Job", {"active": 1}, False),
    ("Job", {"conditions": [{"type": "Failed", "status": "True"}]}, True), ("Job", {"conditions": 5}, False),
    ("Pod", {"phase": "Succeeded"}, True), ("Pod", {"phase": "Running"}, False), ("Pod", None, False)])
def test_ended_jobs_and_pods_are_finished(kind: str, status: Any, finished: bool) -> None:
    obj = {"apiVersion": "batch/v1" if kind == "Job" else "v1", "kind": kind, "spec": {}, "status": status,
           "metadata": {"name": "x", "namespace": "n"}}
    assert objects.item_of(obj).finished is finished


def test_custom_kinds_are_read_from_definitions() -> None:
    spec = {"group": "example.com", "scope": "Namespaced", "names": {"kind": "Ring", "plural": "rings"},
            "versions": [{"name": "v2", "served": False}, {"name": "v1", "served": True, "storage": True}]}
    kind = objects.custom_kind({"spec": spec})
    assert kind is not None
    assert kind.path("shop", "one") == "/apis/example.com/v1/namespaces/shop/rings/one"
    assert objects.custom_kind({"spec": {**spec, "names": {}}}) is None
    assert objects.custom_kind({"spec": 5}) is None
