"""Backpropagation: ReplicaSets and Pods of objects with the annotation are shown in the control plane, and nothing else
happens to them there. Facts chapters 3 and 5, against real API servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nova.federator.api.types import Ref
from nova.federator.controllers import federation as controllers
from nova.federator.controllers.joining import CLUSTERS, cluster_body, prepare_namespace
from nova.federator.kube.client import Api
from nova.federator.store import backpropagations, schedules
from nova.federator.store.backpropagations import pack
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.federation import Federation

BACKPROPAGATE = "nova.elotl.co/backpropagate"
SHOWN = "nova.elotl.co/backpropagated"
ORIGIN = "nova.elotl.co/backpropagated.origin"
PIN = "nova.elotl.co/cluster"


@pytest.fixture(scope="module")
def federation(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory,
               ) -> Iterator[Federation]:
    with Federation(control_plane, members[:2], tmp_path_factory.mktemp("backpropagation")) as federation:
        yield federation


@pytest.fixture
def namespace(federation: Federation, request: pytest.FixtureRequest) -> Iterator[str]:
    with federation.namespace(request) as name:
        yield name


def shown(cluster: Cluster, namespace: str, kind: str = "pods") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = cluster.get(kind, "-n", namespace, "-l", SHOWN)["items"]
    return items


def names(items: list[dict[str, Any]]) -> list[str]:
    return sorted(item["metadata"]["name"] for item in items)


def originals(cluster: Cluster, namespace: str, labels: str) -> list[str]:
    """Return the names of the pods in a member that are not being deleted."""
    return names([item for item in cluster.get("pods", "-n", namespace, "-l", labels)["items"]
                  if "deletionTimestamp" not in item["metadata"]])


def stateful_set(name: str, namespace: str, annotations: dict[str, str]) -> dict[str, Any]:
    manifest = deployment(name, 2, namespace, annotations=annotations)
    manifest["spec"]["serviceName"] = name
    return {**manifest, "kind": "StatefulSet"}


def large_and_small_pods() -> list[dict[str, Any]]:
    """Return a small pod, one that the API server refuses, and one that etcd refuses."""
    return [{"kind": "Pod", "uid": f"mine{size}", "name": f"mine{size}", "spec": {
        "containers": [{"name": "a", "image": "x", "args": ["x" * size]}]}} for size in (4 << 20, 1, 2 << 20)]


def pod(name: str) -> dict[str, Any]:
    return {"kind": "Pod", "uid": name, "name": name, "spec": {"containers": [{"name": "a", "image": "x"}]}}


def test_hostile_reports_hide_no_others_and_show_nothing_of_other_groups(control_plane: Cluster) -> None:
    """Agents may change what their schedules list, and report objects that the control plane cannot store. No scheduler
    runs that would restore the schedules."""
    nova, web = control_plane, Ref("", "v1", "ConfigMap", "hostile", "web")
    nova.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hostile"}},
               {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
                   "name": "web", "namespace": "hostile", "annotations": {BACKPROPAGATE: "true", PIN: "hostile-1"}}})
    uid = nova.get("configmap", "web", "-n", "hostile")["metadata"]["uid"]
    worlds = {"hostile-1": (web.key, large_and_small_pods()), "hostile-2": ("ConfigMap/other/web", [pod("forged")]),
              "hostile-3": (web.key, [pod("third")])}

    async def show() -> None:
        async with Api(nova.config) as api:
            for cluster, (group, owned) in worlds.items():
                where = await prepare_namespace(api, cluster)
                body = cluster_body(cluster)
                del body["metadata"]["finalizers"]
                await api.create(CLUSTERS, body)
                entry = schedules.Entry(web, uid, "digest")
                body = schedules.render(cluster, schedules.render_spec(group, [entry], ""))
                del body["metadata"]["finalizers"]
                metadata = (await api.create(schedules.path_of(where), body))["metadata"]
                await api.create(backpropagations.path_of(where), backpropagations.render(
                    where, web, uid, metadata["name"], metadata["uid"], schedules.pack(owned), 0))
            state = controllers.Federation(api)
            await state.load()
            task = asyncio.create_task(state.backpropagation.run())
            await asyncio.sleep(6)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    try:
        asyncio.run(show())
        assert names(shown(nova, "hostile")) == ["mine1", "third"]
    finally:
        nova.kubectl("delete", "clusters", *worlds)
        nova.kubectl("delete", "namespaces", "hostile", *(f"nova-cluster-{cluster}" for cluster in worlds))


def test_replica_sets_and_pods_follow_their_originals(federation: Federation, namespace: str) -> None:
    nova, member = federation.nova, federation.members[0]
    annotations = {PIN: "member-1", BACKPROPAGATE: "true"}
    nova.apply(deployment("web", 3, namespace, annotations=annotations),
               deployment("hidden", 1, namespace, annotations={PIN: "member-1"}))
    until(lambda: len(shown(nova, namespace)) == 3, 120)  # includes the term of the lease of agents of earlier tests
    replica_set, = shown(nova, namespace, "replicasets")
    original, = member.get("replicasets", "-n", namespace, "-l", "app=web")["items"]
    owner = nova.get("deployment", "web", "-n", namespace)["metadata"]
    assert replica_set["metadata"]["name"] == original["metadata"]["name"]
    assert replica_set["metadata"]["labels"][ORIGIN] == "member-1"
    assert replica_set["metadata"]["ownerReferences"][0]["uid"] == owner["uid"]
    assert replica_set["spec"]["replicas"] == 3
    line = nova.kubectl("get", "replicasets", "-n", namespace, "--no-headers").split()
    assert line[1:4] == ["3", "0", "0"]  # DESIRED, CURRENT, READY: no status
    pods = shown(nova, namespace)
    assert names(pods) == names(member.get("pods", "-n", namespace, "-l", "app=web")["items"])
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods} == {replica_set["metadata"]["uid"]}
    assert {pod["status"]["phase"] for pod in pods} == {"Pending"}
    until(lambda: all(pod["metadata"]["annotations"].get(f"{SHOWN}.node") for pod in shown(nova, namespace)))
    nova.kubectl("scale", "deployment", "web", "--replicas=1", "-n", namespace)
    until(lambda: len(shown(nova, namespace)) == 1 and
          [item["spec"]["replicas"] for item in shown(nova, namespace, "replicasets")] == [1])
    replica_set, = shown(nova, namespace, "replicasets")
    nova.kubectl("delete", "replicasets", "-n", namespace, "-l", SHOWN)  # a user's deletion is not propagated
    until(lambda: [item["metadata"]["uid"] for item in shown(nova, namespace, "replicasets")
                   if item["metadata"]["uid"] != replica_set["metadata"]["uid"]])
    until(lambda: names(shown(nova, namespace)) == originals(member, namespace, "app=web"))
    assert not [item for item in nova.get("schedules", "-A")["items"] for entry in item["spec"]["objects"]
                if entry["kind"] in ("Pod", "ReplicaSet") and entry["namespace"] == namespace]
    nova.kubectl("annotate", "deployment", "web", f"{BACKPROPAGATE}-", "-n", namespace)
    until(lambda: not shown(nova, namespace) and not shown(nova, namespace, "replicasets"))
    nova.kubectl("annotate", "deployment", "web", f"{BACKPROPAGATE}=true", "-n", namespace)
    until(lambda: len(shown(nova, namespace)) == 1)
    nova.kubectl("delete", "deployment", "web", "-n", namespace)
    until(lambda: not shown(nova, namespace) and not shown(nova, namespace, "replicasets"))
    until(lambda: not [item for item in nova.get("backpropagations", "-A")["items"]
                       if item["spec"]["object"]["namespace"] == namespace])


def test_pods_of_two_clusters_with_the_same_name_are_both_shown(federation: Federation, namespace: str) -> None:
    """Pods of StatefulSets have the same names in all clusters, and a user's Pod may have the name, too."""
    nova = federation.nova
    user = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db-1", "namespace": namespace},
            "spec": {"containers": [{"name": "a", "image": "lab.local/web:1"}]}}
    nova.apply(user, stateful_set("db", namespace, {
        "nova.elotl.co/spread-onto": "member-1,member-2::Duplicate", BACKPROPAGATE: "true"}))
    until(lambda: len(shown(nova, namespace)) == 4)
    origins = sorted((item["metadata"]["labels"][ORIGIN], item["metadata"]["name"][:4])
                     for item in shown(nova, namespace))
    assert origins == [("member-1", "db-0"), ("member-1", "db-1"), ("member-2", "db-0"), ("member-2", "db-1")]
    assert SHOWN not in nova.get("pod", "db-1", "-n", namespace)["metadata"].get("labels", {})
    nova.kubectl("annotate", "statefulset", "db", "nova.elotl.co/spread-onto=member-2::Duplicate", "--overwrite",
                 "-n", namespace)
    until(lambda: {item["metadata"]["labels"][ORIGIN] for item in shown(nova, namespace)} == {"member-2"})
    federation.scheduler.stop()
    nova.kubectl("delete", "pods", "-n", namespace, "-l", SHOWN)
    nova.kubectl("patch", "role", "nova-agent", "-n", "nova-cluster-member-1", "--type=merge", "-p", '{"rules": []}')
    federation.scheduler.start()
    until(lambda: len(shown(nova, namespace)) == 2)
    until(lambda: ["backpropagations"] in [rule["resources"] for rule in nova.get(  # its rights were of another release
        "role", "nova-agent", "-n", "nova-cluster-member-1")["rules"]])
    assert nova.get("pod", "db-1", "-n", namespace)


def test_report_of_an_agent_on_an_object_that_it_does_not_run_is_ignored(federation: Federation, namespace: str,
                                                                         ) -> None:
    """An agent may write any report in its namespace; the control plane shows nothing of objects of other clusters, of
    objects that have not opted in, or more than the limit."""
    nova = federation.nova
    nova.apply(deployment("web", 1, namespace, annotations={PIN: "member-1", BACKPROPAGATE: "true"}))
    until(lambda: len(shown(nova, namespace)) == 1)
    report, = (item for item in nova.get("backpropagations", "-n", "nova-cluster-member-1")["items"]
               if item["spec"]["object"]["namespace"] == namespace)
    forged = {**report, "metadata": {"name": report["metadata"]["name"], "namespace": "nova-cluster-member-2"}}
    content, _omitted = pack([{"kind": "Pod", "uid": f"u{number}", "name": f"pod-{number}", "spec": {}}
                              for number in range(3)])
    forged["spec"] = {**report["spec"], "content": content}
    nova.kubectl("create", "-f", "-", stdin=json.dumps(forged))
    nova.kubectl("scale", "deployment", "web", "--replicas=2", "-n", namespace)
    until(lambda: len(shown(nova, namespace)) == 2)
    assert {item["metadata"]["labels"][ORIGIN] for item in shown(nova, namespace)} == {"member-1"}
    nova.kubectl("delete", "backpropagation", report["metadata"]["name"], "-n", "nova-cluster-member-2")
