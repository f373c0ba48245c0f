"""Hostile agents, hostile manifests and foreign objects, in a federation of real API servers. Promise P8 and chapters
4, 5 and 11 of the facts: an agent affects nothing but its own cluster; Nova deletes nothing that it did not make."""

from __future__ import annotations

import base64
import json
import pathlib
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nova.federator.store.schedules import name_of
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import Federation, policy

PIN = "nova.elotl.co/cluster"
OWN = "nova-cluster-member-1"


@pytest.fixture(scope="module")
def federation(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory,
               ) -> Iterator[Federation]:
    with Federation(control_plane, members[:2], tmp_path_factory.mktemp("hostile")) as federation:
        yield federation


@pytest.fixture
def namespace(federation: Federation, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a namespace of the control plane that only this test uses. Afterwards the scheduler must still run."""
    with federation.namespace(request) as name:
        yield name
    assert federation.scheduler._process.poll() is None, federation.scheduler.output()[-2000:]


@pytest.fixture
def agent(federation: Federation, tmp_path: pathlib.Path) -> str:
    """Return the path of a kubeconfig with the credentials of the agent of member-1."""
    secret = federation.members[0].get("secret", "nova-agent-credentials", "-n", "elotl")["data"]
    path = tmp_path / "agent"
    path.write_text(msgspec.structs.replace(
        federation.nova.config, certificate=base64.b64decode(secret["tls.crt"]),
        key=base64.b64decode(secret["tls.key"])).render())
    return str(path)


def configmap(name: str, namespace: str, cluster: str = "member-1", **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}, "metadata": {
        "name": name, "namespace": namespace, "labels": labels, "annotations": {PIN: cluster} if cluster else {}}}


def place(federation: Federation, *objects: dict[str, Any]) -> None:
    """Create objects and wait until they are in their clusters."""
    federation.nova.apply(*objects)
    for obj in objects:
        metadata = obj["metadata"]
        cluster = metadata["annotations"][PIN]
        member = next(member for member in federation.members if member.name == cluster)
        until(lambda member=member, obj=obj, metadata=metadata: member.kubectl(
            "get", obj["kind"], metadata["name"], "-n", metadata.get("namespace", "default"), "--ignore-not-found"))


def marker(federation: Federation, namespace: str) -> None:
    """Place a new object: the scheduler has processed what happened before."""
    place(federation, configmap(f"marker-{time.monotonic_ns()}", namespace))


def events(federation: Federation, namespace: str, name: str) -> dict[str, str]:
    items = federation.nova.get("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")["items"]
    return {event["reason"]: event["message"] for event in items}


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def test_agents_may_do_nothing_outside_their_namespace(federation: Federation, agent: str, namespace: str) -> None:
    """Promise P8: no subresources, impersonation, reviews or approvals, and no schedule of their own making."""
    denied = (
        ("create", "schedules", OWN), ("delete", "schedules", OWN), ("deletecollection", "schedules", OWN),
        ("get", "schedules", "nova-cluster-member-2"), ("patch", "schedules/status", "nova-cluster-member-2"),
        ("update", "leases", "nova-cluster-member-2"), ("delete", "leases", OWN), ("get", "secrets", OWN),
        ("create", "pods", OWN), ("create", "serviceaccounts/token", "kube-system"), ("get", "secrets", "kube-system"),
        ("impersonate", "users", "default"), ("impersonate", "groups", "default"),
        ("create", "tokenreviews.authentication.k8s.io", "default"), ("create", "rolebindings", OWN),
        ("create", "subjectaccessreviews.authorization.k8s.io", "default"), ("get", "namespaces", "default"),
        ("update", "certificatesigningrequests/approval", "default"), ("list", "certificatesigningrequests", "default"),
        ("update", "certificatesigningrequests/status", "default"), ("patch", "clusters.cluster.elotl.co", "default"),
        ("get", "schedulepolicies", "default"), ("update", "deployments", namespace), ("get", "nodes", "default"))
    for verb, resource, place in denied:
        answer = federation.nova.kubectl(f"--kubeconfig={agent}", "auth", "can-i", verb, resource, "-n", place,
                                         check=False)
        assert "no" in answer.split(), (verb, resource, place, answer)


def test_an_agent_cannot_take_a_workload_of_another_cluster(federation: Federation, agent: str,
                                                            namespace: str) -> None:
    """Promise P8: a schedule whose group was forged counts for no other group, and is written again."""
    federation.nova.apply(policy("both", {"app": "victim"}, ["member-1", "member-2"]))
    place(federation, configmap("mine", namespace), deployment("victim", 2, namespace, annotations={PIN: "member-2"}))
    name = name_of(f"ConfigMap/{namespace}/mine")
    stolen = f"Deployment.apps/{namespace}/victim"
    entry = {"group": "apps", "version": "v1", "kind": "Deployment", "namespace": namespace, "name": "victim",
             "replicas": 2}
    patch = json.dumps({"spec": {"group": stolen, "objects": [entry]}})
    federation.nova.kubectl("annotate", "deployment", "victim", "-n", namespace, f"{PIN}-")
    federation.nova.kubectl(f"--kubeconfig={agent}", "patch", "schedule", name, "-n", OWN, "--type=merge", "-p", patch)
    until(lambda: federation.nova.get("schedule", name, "-n", OWN)["spec"]["group"] == f"ConfigMap/{namespace}/mine")
    marker(federation, namespace)
    federation.nova.kubectl("scale", "deployment/victim", "--replicas=3", "-n", namespace)
    until(lambda: federation.members[1].get("deployment", "victim", "-n", namespace)["spec"]["replicas"] == 3)
    assert not federation.members[0].kubectl("get", "deployment", "-n", namespace, "-o", "name")


def test_an_agent_cannot_forge_the_status_of_other_objects(federation: Federation, agent: str, namespace: str) -> None:
    """Promise P8: reports on objects outside the group of a schedule are ignored."""
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
               "metadata": {"name": "front", "namespace": namespace, "annotations": {PIN: "member-2"}}}
    place(federation, configmap("mine", namespace), service)
    name = name_of(f"ConfigMap/{namespace}/mine")
    federation.agents["member-1"].send(19)
    try:
        lie = {"kind": "Service", "version": "v1", "namespace": namespace, "name": "front", "phase": "Ready",
               "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.66"}]}}}
        federation.nova.kubectl(
            f"--kubeconfig={agent}", "replace", "--raw",
            f"/apis/schedule.elotl.co/v1alpha1/namespaces/{OWN}/schedules/{name}/status", "-f", "-", stdin=json.dumps({
                **federation.nova.get("schedule", name, "-n", OWN),
                "status": {"observedGeneration": 1, "epoch": 1, "objects": [lie]}}))
        time.sleep(2.5)
        assert federation.nova.get("service", "front", "-n", namespace)["status"]["loadBalancer"] == {}
    finally:
        federation.agents["member-1"].send(18)


def test_hostile_reports_do_not_stop_the_scheduler(federation: Federation, agent: str, namespace: str,
                                                   request: pytest.FixtureRequest) -> None:
    """Promise P8: reports nested thousands of levels deep, with wrong types, huge numbers and many nodes."""
    place(federation, configmap("mine", namespace))
    federation.agents["member-1"].stop()
    request.addfinalizer(federation.agents["member-1"].start)
    path = f"/apis/schedule.elotl.co/v1alpha1/namespaces/{OWN}/clusterreports/report"
    nodes = [{"name": f"n{number}"} for number in range(30_000)]
    bad = {"name": "n", "available": {"cpu": "1e99"}, "capacity": {"cpu": "lots"}}
    hostile = [f'{{"nodeGroups": {nested(900)}}}', nested(3000), {"nodes": nodes}, {"nodes": [bad]},
               {"nodes": 3, "applied": {"x": 10**30}}, {"nodeGroups": {"a": {"minSize": -1}}},
               {"region": "\n" * 99, "provider": "a b\u202ec", "zone": "x" * 999, "version": "v1.2"}]
    labels = federation.nova.get("cluster", "member-1")["metadata"]["labels"]
    for report in hostile:
        version = federation.nova.kubectl("get", "clusterreport", "report", "-n", OWN,
                                          "-o", "jsonpath={.metadata.resourceVersion}")
        text = report if isinstance(report, str) else json.dumps(report)
        metadata = json.dumps({"name": "report", "namespace": OWN, "resourceVersion": version})
        federation.nova.kubectl(
            f"--kubeconfig={agent}", "replace", "--raw", path, "-f", "-", check=False, stdin=(
                '{"apiVersion": "schedule.elotl.co/v1alpha1", "kind": "ClusterReport",'
                f' "metadata": {metadata}, "report": {text}}}'))
        place(federation, configmap(f"other-{hostile.index(report)}", namespace, "member-2"))
    assert federation.nova.get("cluster", "member-1")["metadata"]["labels"].keys() == labels.keys()


def test_hostile_manifests_are_named_in_events(federation: Federation, namespace: str) -> None:
    """Bad input: policies with impossible fields, long names, deep and large manifests. The scheduler goes on."""
    long_name = "p" * 62 + "-" + "q" * 100
    bad = policy("bad", {"app": "bad"}, spreadConstraints={"percentageSplit": [
        {"topologyValue": "member-1", "percentage": 0}]})
    federation.nova.apply(bad, policy(long_name, {"app": "long"}, ["member-1"], groupBy={"labelKey": "app"}),
                          deployment("long", 1, namespace))
    until(lambda: "all percentages are 0" in events(federation, "default", "bad").get("InvalidPolicy", ""))
    until(lambda: federation.members[0].kubectl("get", "deployment", "long", "-n", namespace, "--ignore-not-found"))
    until(lambda: any(item["policy"]["name"] == long_name for item in federation.nova.get("schedulegroups")["items"]))
    noise = random.Random(1).randbytes(1_000_000)
    large = configmap("large", namespace)
    large["binaryData"] = {"noise": base64.b64encode(noise).decode()}
    federation.nova.kubectl("create", "-f", "-", stdin=json.dumps(large))
    until(lambda: federation.members[0].kubectl("get", "configmap", "large", "-n", namespace, "--ignore-not-found"))
    schema: dict[str, Any] = {"type": "object"}
    for _level in range(400):
        schema = {"type": "object", "properties": {"a": schema}}
    deep = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"deeps.{namespace}.example.com", "annotations": {PIN: "member-1"}},
            "spec": {"group": f"{namespace}.example.com", "scope": "Cluster",
                     "names": {"kind": "Deep", "plural": "deeps", "singular": "deep", "listKind": "DeepList"},
                     "versions": [{"name": "v1", "served": True, "storage": True,
                                   "schema": {"openAPIV3Schema": schema}}]}}
    federation.nova.kubectl("create", "-f", "-", stdin=json.dumps(deep), check=False)
    marker(federation, namespace)
    federation.nova.kubectl("delete", "crd", f"deeps.{namespace}.example.com", "--ignore-not-found", "--wait=false")


def test_the_scheduler_does_not_poll_what_it_cannot_change(federation: Federation, namespace: str) -> None:
    """An object that leaves the catalog but exists, and a copy whose deletion is blocked, cost a bounded number of
    requests."""
    place(federation, configmap("owned", namespace), configmap("blocked", namespace))
    federation.members[0].kubectl("patch", "configmap", "blocked", "-n", namespace, "-p",
                                  '{"metadata": {"finalizers": ["example.com/user"]}}')
    uid = federation.nova.get("configmap", "blocked", "-n", namespace)["metadata"]["uid"]
    federation.nova.kubectl("patch", "configmap", "owned", "-n", namespace, "-p", json.dumps({"metadata": {
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "blocked", "uid": uid}]}}))
    until(lambda: not federation.members[0].kubectl("get", "configmap", "owned", "-n", namespace, "--ignore-not-found"))
    federation.nova.kubectl("annotate", "--overwrite", "configmap", "blocked", "-n", namespace, f"{PIN}=member-2")
    until(lambda: federation.members[1].kubectl("get", "configmap", "blocked", "-n", namespace, "--ignore-not-found"))
    federation.nova.kubectl("annotate", "--overwrite", "configmap", "blocked", "-n", namespace, f"{PIN}=member-1")
    time.sleep(3)

    def seconds() -> float:
        fields = pathlib.Path(f"/proc/{federation.scheduler._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100
    before = seconds()
    time.sleep(5)
    assert seconds() - before < 0.5
    federation.members[0].kubectl("patch", "configmap", "blocked", "-n", namespace, "-p",
                                  '{"metadata": {"finalizers": null}}')
    until(lambda: "managed-by" in federation.members[0].kubectl(
        "get", "configmap", "blocked", "-n", namespace, "-o", "json", "--ignore-not-found"))


def test_copied_labels_do_not_make_an_object_novas(federation: Federation, namespace: str) -> None:
    """Facts chapter 11: an object with the labels of a copy, as users make by copying manifests, is neither changed nor
    deleted."""
    member = federation.members[0]
    place(federation, configmap("original", namespace))
    copy = member.get("configmap", "original", "-n", namespace)
    member.apply({**copy, "metadata": {"name": "cloned", "namespace": namespace, "labels": copy["metadata"]["labels"],
                                       "annotations": copy["metadata"]["annotations"]}})
    federation.nova.kubectl("patch", "configmap", "original", "-n", namespace, "-p", '{"data": {"a": "c"}}')
    until(lambda: member.get("configmap", "original", "-n", namespace)["data"] == {"a": "c"})
    federation.nova.kubectl("delete", "configmap", "original", "-n", namespace)
    until(lambda: not member.kubectl("get", "configmap", "original", "-n", namespace, "--ignore-not-found"))
    assert member.get("configmap", "cloned", "-n", namespace)["data"] == {"a": "b"}


def test_a_definition_with_foreign_objects_stays(federation: Federation, namespace: str) -> None:
    """Facts chapter 11: the deletion of a custom resource definition would delete the objects of others."""
    member, group = federation.members[0], f"{namespace}.example.com"
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                  "metadata": {"name": f"things.{group}", "annotations": {PIN: "member-1"}},
                  "spec": {"group": group, "scope": "Namespaced", "names": {
                      "kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"},
                      "versions": [{"name": "v1", "served": True, "storage": True, "schema": {
                          "openAPIV3Schema": {"type": "object"}}}]}}
    place(federation, definition)
    member.kubectl("wait", "--for=condition=Established", "crd", f"things.{group}")
    member.kubectl("create", "-f", "-", stdin=json.dumps({
        "apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "foreign", "namespace": "default"}}))
    federation.nova.kubectl("delete", "crd", f"things.{group}")
    until(lambda: not any(f"things.{group}" in item["spec"]["group"]
                          for item in federation.nova.get("schedules", "-n", OWN)["items"]))
    assert member.get(f"things.{group}", "foreign", "-n", "default")
    member.kubectl("delete", "crd", f"things.{group}")


def test_an_object_that_changes_its_group_is_not_deleted(federation: Federation, namespace: str) -> None:
    """Facts chapter 4, groups: a claim keeps its volume when a label puts it into another group of the same cluster."""
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
             "metadata": {"name": "data", "namespace": namespace, "labels": {"team": "red", "moved": namespace}},
             "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    federation.nova.apply(policy("teams", {"moved": namespace}, ["member-1"], groupBy={"labelKey": "team"}), claim)
    member = federation.members[0]
    until(lambda: member.kubectl("get", "pvc", "data", "-n", namespace, "--ignore-not-found"))
    uid = member.get("pvc", "data", "-n", namespace)["metadata"]["uid"]
    for team in ("green", "blue", "white"):
        federation.nova.kubectl("label", "--overwrite", "pvc", "data", "-n", namespace, f"team={team}")
        schedule = name_of(f"ScheduleGroup/teams/{team}")
        until(lambda schedule=schedule: member.get("pvc", "data", "-n", namespace)["metadata"]["labels"].get(
            "nova.elotl.co/managed-by") == schedule)
        assert member.get("pvc", "data", "-n", namespace)["metadata"]["uid"] == uid
