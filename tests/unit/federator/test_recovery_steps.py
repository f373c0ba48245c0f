"""Steps of recovery plans: matching of alerts, templates, fields, merge patches and protected objects. Facts chapter
2.4."""

from __future__ import annotations

from typing import Any

import pytest

from nova.common.errors import Invalid
from nova.federator.scheduling.recovery_steps import (
    Job,
    Patch,
    ReadField,
    add_value,
    check,
    matches,
    merge_patch,
    parse,
    read_field,
)


def patch(path: str = "spec.standby.enabled", raw: Any = True, **target: Any) -> dict[str, Any]:
    return {"type": "patch", "patch": {
        "apiVersion": "apps/v1", "resource": "deployments", "namespace": "shop", "name": "web",
        "override": {"fieldPath": path, "value": {"raw": raw}}, "patchType": "application/merge-patch+json", **target}}


def read(key: str = "Address", **target: Any) -> dict[str, Any]:
    return {"type": "readField", "readField": {
        "apiVersion": "v1", "resource": "services", "namespace": "shop", "name": "web",
        "fieldPath": "status.loadBalancer.ingress[0].hostname", "outputKey": key, **target}}


def job(**fields: Any) -> dict[str, Any]:
    return {"type": "job", "job": {"namespace": "shop", "spec": {"template": {}}, **fields}}


def parsed_patch(step: dict[str, Any], values: dict[str, Any] | None = None) -> Patch:
    action = parse(step, values or {}, "steps[0]")
    assert isinstance(action, Patch)
    return action


@pytest.mark.parametrize(("labels", "alert", "expected"), [
    ({"app": "db"}, {"app": "db"}, True),
    ({"app": "db"}, {"app": "db", "severity": "critical"}, True),
    ({"app": "db", "severity": "critical"}, {"app": "db"}, False),
    ({"app": "db"}, {"app": "web"}, False),
    ({"app": ""}, {}, False),
    ({}, {"app": "db"}, False),
    (None, {"app": "db"}, False)])
def test_plan_matches_an_alert_that_has_all_of_its_labels(labels: Any, alert: dict[str, str], expected: bool) -> None:
    assert matches({"spec": {"alertLabels": labels}}, {"spec": {"labels": alert}}) is expected


def test_templates_in_texts_are_replaced() -> None:
    step = patch(raw={"conf": "server {{ .Values.Address }}:{{.Values.Port}} check"}, name="web-{{ .Values.Port }}")
    action = parsed_patch(step, {"Address": "10.0.0.1", "Port": 80})
    assert action.override.value.raw == {"conf": "server 10.0.0.1:80 check"}
    assert action.name == "web-80"


def test_raw_value_that_is_one_template_has_the_type_of_the_value() -> None:
    assert parsed_patch(patch(raw="{{ .Values.N }}"), {"N": 5}).override.value.raw == 5
    assert parsed_patch(patch(raw=["{{ .Values.N }}"]), {"N": {"a": [1]}}).override.value.raw == [{"a": [1]}]
    assert parsed_patch(patch(name="{{ .Values.N }}"), {"N": 5}).name == "5"


def test_value_that_contains_a_template_is_not_evaluated() -> None:
    values = {"A": "{{ .Values.B }}", "B": "secret"}
    assert parsed_patch(patch(raw="x {{ .Values.A }}"), values).override.value.raw == "x {{ .Values.B }}"


@pytest.mark.parametrize(("text", "message"), [
    ("{{ .Values.Missing }}", "no earlier step has the outputKey Missing"),
    ("{{ .Release.Name }}", "is not of the form"),
    ("{{ .Values.A | quote }}", "is not of the form"),
    ("{{", "is not of the form"),
    ("a {{ .Values.List }}", "List is an object or a list")])
def test_template_that_cannot_be_replaced_is_an_error(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        parse(patch(raw={"key": text}), {"A": "a", "List": [1]}, "steps[0]")


def test_plan_is_checked_before_its_first_step_runs() -> None:
    check([read("Address"), patch(raw="{{ .Values.Address }}"), job()])
    with pytest.raises(Invalid, match=r"steps\[0\].*outputKey Address"):
        check([patch(raw="{{ .Values.Address }}"), read("Address")])


@pytest.mark.parametrize(("step", "message"), [
    ({"type": "patch"}, "patch: required for a step of type patch"),
    ({"type": "Job"}, "job: required for a step of type Job"),
    ({"type": "delete"}, "delete"),
    (patch(patchType="application/json-patch+json"), "json-patch"),
    (patch(path="status.replicas"), "must not be overridden"),
    (patch(path="metadata.ownerReferences"), "must not be overridden"),
    (patch(resource="pods/exec"), "plural name"),
    (patch(apiVersion="../v1"), "plural name"),
    (patch(name=""), "name: '' is not the name"),
    (patch(name="web/status"), "'web/status' is not the name"),
    (patch(name=".."), "is not the name of an object"),
    (patch(namespace="shop/secrets"), "'shop/secrets' is not the name of a namespace"),
    (read(resource="namespaces", namespace="", name="elotl/secrets/token", fieldPath="data.token"),
     "'elotl/secrets/token' is not the name"),
    (read(resource="namespaces", namespace="", name="%65lotl"), "is not the name of an object"),
    (job(namespace=""), "job.namespace: required"),
    (job(namespace="../kube-system"), "is not the name of a namespace"),
    (patch(apiVersion="schedule.elotl.co/v1alpha1", resource="schedules"), "schedule.elotl.co are protected"),
    (patch(apiVersion="recovery.elotl.co/v1alpha1", resource="recoveryplans"), "recovery.elotl.co are protected"),
    (patch(apiVersion="rbac.authorization.k8s.io/v1", resource="roles"), "are protected"),
    (patch(apiVersion="v1", resource="secrets", namespace="nova-cluster-a"), "nova-cluster-a' are protected"),
    (patch(apiVersion="v1", resource="secrets", namespace="kube-system"), "kube-system' are protected"),
    (patch(apiVersion="v1", resource="namespaces", namespace="", name="elotl", path="metadata.labels.a"),
     "elotl' are protected"),
    (patch(apiVersion="cluster.elotl.co/v1alpha1", resource="clusters", namespace=""), "only metadata of a Cluster"),
    (read(resource="secrets"), "Secrets cannot be read"),
    (read(key="not a key"), "outputKey|pattern"),
    (job(namespace="kube-system"), "protected"),
    (job(deadlineSeconds=0), "deadlineSeconds"),
    (job(unknown=1), "unknown")])
def test_invalid_or_forbidden_step_is_refused(step: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        parse(step, {}, "steps[0]")


def test_protected_namespace_that_a_value_names_is_refused() -> None:
    with pytest.raises(Invalid, match="protected"):
        parse(patch(namespace="{{ .Values.N }}"), {"N": "nova-cluster-a"}, "steps[0]")


def test_labels_of_clusters_and_policies_may_be_patched() -> None:
    parse(patch(apiVersion="cluster.elotl.co/v1alpha1", resource="clusters", namespace="", name="a",
                path="metadata.labels.drained"), {}, "steps[0]")
    parse(patch(apiVersion="policy.elotl.co/v1alpha1", resource="schedulepolicies", namespace="",
                path="spec.clusterSelector"), {}, "steps[0]")


def test_types_of_steps() -> None:
    assert isinstance(parse(read(), {}, ""), ReadField)
    action = parse({**job(labels={"a": "b"}), "type": "Job"}, {}, "")
    assert isinstance(action, Job)
    assert (action.labels, action.deadlineSeconds) == ({"a": "b"}, 600)


def test_field_is_read_by_its_path() -> None:
    status = {"loadBalancer": {"ingress": [{"hostname": "h"}]}}
    service = {"metadata": {"annotations": {"a.b/c": "x"}}, "status": status}
    assert read_field(service, "status.loadBalancer.ingress[0].hostname") == "h"
    assert read_field(service, "metadata.annotations['a.b/c']") == "x"
    assert read_field(service, "status") == service["status"]


@pytest.mark.parametrize("path", ["status.missing", "status.list[3]", "status.text.more", "status.text[0]",
                                  "status['0']"])
def test_missing_field_is_an_error_that_names_it(path: str) -> None:
    with pytest.raises(Invalid, match="has no field"):
        read_field({"status": {"list": [1], "text": "text"}}, path)


def test_large_value_is_refused() -> None:
    with pytest.raises(Invalid, match="more than 65536 characters"):
        read_field({"data": {"a": "x" * (64 << 10)}}, "data.a")


def test_values_of_a_run_are_limited_together() -> None:
    values = {f"Key{number}": "x" * (60 << 10) for number in range(4)}
    assert add_value(values, "More", 1) == {**values, "More": 1}
    assert add_value(values, "Key0", "y")["Key0"] == "y"
    with pytest.raises(Invalid, match="values of the run"):
        add_value(values, "More", "x" * (60 << 10))


@pytest.mark.parametrize("raw", ["text", None, ["a"], 1])
def test_annotations_are_only_replaced_by_an_object(raw: Any) -> None:
    """The marker of the step is written among the annotations."""
    with pytest.raises(Invalid, match="annotations can only be replaced by an object"):
        merge_patch({}, parsed_patch(patch("metadata.annotations", raw)))
    assert merge_patch({}, parsed_patch(patch("metadata.annotations", {"a": "b"})))


def test_merge_patch_has_only_the_field() -> None:
    assert merge_patch({"spec": {"other": 1}}, parsed_patch(patch("spec.standby.enabled", False))) == {
        "spec": {"standby": {"enabled": False}}}
    assert merge_patch({}, parsed_patch(patch("metadata.labels['a.b/c']", "x"))) == {
        "metadata": {"labels": {"a.b/c": "x"}}}


def test_merge_patch_of_an_entry_of_a_list_contains_the_whole_list() -> None:
    obj = {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}], "other": 1}}
    patched = merge_patch(obj, parsed_patch(patch("spec.containers[0].env[0].value", "2")))
    assert patched == {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}, {"name": "b"}]}}
    assert obj["spec"]["containers"][0]["env"][0]["value"] == "1"  # type: ignore[index]
    with pytest.raises(Invalid, match=r"has no field 'spec.containers\[2\].image'"):
        merge_patch(obj, parsed_patch(patch("spec.containers[2].image", "x")))
