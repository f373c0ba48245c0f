"""Placement of real objects into real API servers, by mode: facts chapters 3, 4 and 5."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nova.federator.client import explain
from nova.federator.client.tokens import bootstrap_config
from nova.federator.kube.client import Api
from tests.integration.federator.clusters import Cluster, deployment, job, until
from tests.integration.federator.federation import PLACES, Federation, Process, policy

TARGET = "nova.elotl.co/target-cluster"
PIN = "nova.elotl.co/cluster"


@pytest.fixture(scope="module")
def federation(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory,
               ) -> Iterator[Federation]:
    with Federation(control_plane, members, tmp_path_factory.mktemp("federation")) as federation:
        yield federation


@pytest.fixture
def namespace(federation: Federation, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a namespace of the control plane that only this test uses; its objects are removed afterwards."""
    with federation.namespace(request) as name:
        yield name


def where(federation: Federation, namespace: str, name: str, kind: str = "deployment") -> dict[str, int]:
    """Return the replicas of an object per member that has it; 0 for objects without replicas."""
    result = {}
    for member in federation.members:
        for obj in member.get(kind, "-n", namespace, f"--field-selector=metadata.name={name}")["items"]:
            result[member.name] = obj.get("spec", {}).get("replicas", 0)
    return result


def status(federation: Federation, namespace: str, name: str, kind: str = "deployment") -> dict[str, Any]:
    return federation.nova.get(kind, name, "-n", namespace).get("status", {})


def events(federation: Federation, namespace: str, name: str) -> dict[str, str]:
    """Return the messages of an object's events by reason."""
    items = federation.nova.get("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")["items"]
    return {event["reason"]: event["message"] for event in items}


def marker(federation: Federation, namespace: str) -> None:
    """Place an object, and wait for it: what was requested before has been processed then."""
    federation.nova.apply(deployment("marker", 1, namespace, annotations={PIN: "member-1"}))
    until(lambda: where(federation, namespace, "marker"))


def test_annotation_places_moves_and_status_comes_back(federation: Federation, namespace: str) -> None:
    """Mode annotation: X; changing the value moves it; the status is copied back; scaling and deleting follow."""
    web = deployment("web", 2, namespace, annotations={PIN: "member-1"})
    federation.nova.apply(web)
    until(lambda: where(federation, namespace, "web") == {"member-1": 2})
    until(lambda: status(federation, namespace, "web").get("readyReplicas") == 2)
    assert federation.nova.get("deployment", "web", "-n", namespace)["metadata"]["labels"][TARGET] == "member-1"
    web["metadata"]["annotations"][PIN] = "member-2"
    federation.nova.apply(web)
    until(lambda: where(federation, namespace, "web") == {"member-2": 2})
    federation.nova.kubectl("scale", "deployment/web", "--replicas=3", "-n", namespace)
    until(lambda: where(federation, namespace, "web") == {"member-2": 3})
    federation.nova.kubectl("delete", "deployment", "web", "-n", namespace)
    until(lambda: where(federation, namespace, "web") == {})


def test_statuses_follow_moves_and_spread_of_objects_with_clashing_names(federation: Federation,
                                                                         namespace: str) -> None:
    """API servers refuse a status whose collisionCount is lower or missing; it is 0 in StatefulSets, and rises in
    Deployments with clashes of names."""
    pinned = {PIN: "member-1"}
    database = {**deployment("db", 2, namespace, annotations=pinned), "kind": "StatefulSet"}
    database["spec"]["serviceName"] = "db"
    federation.nova.apply(database, deployment("web", 2, namespace, annotations=pinned))

    def ready(number: int) -> bool:
        return all(status(federation, namespace, name, kind).get("readyReplicas") == number
                   for name, kind in (("db", "statefulset"), ("web", "deployment")))
    until(lambda: ready(2))
    for cluster in (federation.members[0], federation.nova):  # the control plane's is of an earlier release
        cluster.kubectl("patch", "deployment", "web", "-n", namespace, "--subresource=status", "--type=merge",
                        "--patch", '{"status": {"collisionCount": 3}}')
    federation.nova.kubectl("annotate", "deployment/web", "statefulset/db", "-n", namespace, f"{PIN}-",
                            "nova.elotl.co/spread-onto=member-1,member-2::Duplicate")
    until(lambda: ready(4))
    federation.nova.kubectl("annotate", "deployment/web", "statefulset/db", "-n", namespace, f"{PIN}=member-2",
                            "nova.elotl.co/spread-onto-")
    until(lambda: ready(2))
    federation.nova.kubectl("scale", "deployment/web", "statefulset/db", "-n", namespace, "--replicas=1")
    until(lambda: ready(1))


def test_policy_places_and_reports_it_by_event(federation: Federation, namespace: str) -> None:
    """Mode policy, one cluster selected; event SchedulePolicyMatched; the rest stays in the control plane, inert."""
    federation.nova.apply(policy("one", {"app": "one"}, ["member-3"]), deployment("one", 1, namespace),
                          deployment("other", 1, namespace))
    until(lambda: where(federation, namespace, "one") == {"member-3": 1})
    until(lambda: "SchedulePolicyMatched" in events(federation, namespace, "one"))
    message = events(federation, namespace, "one")["SchedulePolicyMatched"]
    assert message == "schedule policy one will be used to determine target cluster"
    assert where(federation, namespace, "other") == {}


def test_policy_edit_moves_and_policy_deletion_freezes(federation: Federation, namespace: str) -> None:
    """Facts chapter 4: an edit of a policy re-schedules; chapter 11: deleting it leaves placements where they are."""
    federation.nova.apply(policy("edit", {"app": "edit"}, ["member-1"]), deployment("edit", 1, namespace))
    until(lambda: where(federation, namespace, "edit") == {"member-1": 1})
    federation.nova.apply(policy("edit", {"app": "edit"}, ["member-2"]))
    until(lambda: where(federation, namespace, "edit") == {"member-2": 1})
    federation.nova.kubectl("delete", "schedulepolicy", "edit")
    marker(federation, namespace)
    assert list(where(federation, namespace, "edit")) == ["member-2"]


def test_frozen_copies_are_deleted_with_their_objects(federation: Federation, namespace: str) -> None:
    """Promise P9: the deletion of a policy leaves copies, but not for ever. The rest of the group stays unchanged."""
    names = ("first", "second")
    federation.nova.apply(policy("ice", {"kind": "ice"}, ["member-1"], groupBy={"labelKey": "kind"}),
                          *(deployment(name, 1, namespace, labels={"kind": "ice"}) for name in names))
    for name in names:
        until(lambda name=name: where(federation, namespace, name) == {"member-1": 1})
    uid = federation.members[0].get("deployment", "second", "-n", namespace)["metadata"]["uid"]
    federation.nova.kubectl("delete", "schedulepolicy", "ice")
    federation.nova.kubectl("delete", "deployment", "first", "-n", namespace)
    until(lambda: where(federation, namespace, "first") == {})
    assert federation.members[0].get("deployment", "second", "-n", namespace)["metadata"]["uid"] == uid
    federation.nova.kubectl("delete", "deployment", "second", "-n", namespace)
    until(lambda: where(federation, namespace, "second") == {})


def test_a_group_runs_in_one_cluster(federation: Federation, namespace: str) -> None:
    """Mode group: all objects of a group in one cluster, with a ScheduleGroup that lists them, and its event."""
    labels = {"app": "gang", "color": "green"}
    conf = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf", "namespace": namespace,
                                                                  "labels": labels}}
    federation.nova.apply(policy("gang", {"color": "green"}, groupBy={"labelKey": "color"}),
                          deployment("front", 1, namespace, labels=labels),
                          deployment("back", 1, namespace, labels=labels), conf)

    def clusters() -> set[str]:
        places = [where(federation, namespace, *entry) for entry in (
            ("front", "deployment"), ("back", "deployment"), ("conf", "configmap"))]
        return set().union(*places) if all(len(place) == 1 for place in places) else set()
    until(lambda: len(clusters()) == 1)

    def group() -> Any:
        items = federation.nova.get("schedulegroups")["items"]
        return items[0] if len(items) == 1 and len(items[0]["objectRefs"]) == 3 else None
    content = until(group)
    assert content["metadata"]["name"].startswith("gang-")
    assert content["metadata"]["labels"]["nova.elotl.co/matching-policy"] == "gang"
    assert content["metadata"]["labels"]["color"] == "green"
    assert content["policy"] == {"name": "gang", "namespace": ""}
    until(lambda: "AddedToScheduleGroup" in events(federation, namespace, "front"))
    assert events(federation, namespace, "front")["AddedToScheduleGroup"] == (
        f"added to ScheduleGroup {content['metadata']['name']} which contains objects with"
        " groupBy.labelKey color=green")
    federation.nova.kubectl("delete", "deployment,configmap", "-l", "color=green", "-n", namespace)
    until(lambda: not federation.nova.get("schedulegroups")["items"])


def test_spread_divides_by_percentages_and_merges_the_status(federation: Federation, namespace: str) -> None:
    """Mode spread, Divide with percentageSplit; statuses are summed; an edit of the percentages re-balances."""
    def split(first: int, second: int) -> dict[str, Any]:
        return policy("spread", {"app": "spread"}, groupBy={"labelKey": "app"}, spreadConstraints={
            "topologyKey": "kubernetes.io/metadata.name", "spreadMode": "Divide", "percentageSplit": [
                {"topologyValue": "member-1", "percentage": first},
                {"topologyValue": "member-2", "percentage": second}]})
    federation.nova.apply(split(30, 70), deployment("spread", 10, namespace))
    until(lambda: where(federation, namespace, "spread") == {"member-1": 3, "member-2": 7})
    until(lambda: status(federation, namespace, "spread").get("readyReplicas") == 10)
    assert federation.nova.get("deployment", "spread", "-n", namespace)["spec"]["replicas"] == 10
    federation.nova.apply(split(50, 50))
    until(lambda: where(federation, namespace, "spread") == {"member-1": 5, "member-2": 5})


def test_spread_onto_duplicates_and_overrides_change_copies(federation: Federation, namespace: str) -> None:
    """Annotation spread-onto with ::Duplicate; overrides change the copies of one cluster, and may create a key."""
    override = {"topologyValue": "member-2", "resources": [{
        "kind": "Deployment", "apiVersion": "apps/v1", "name": "over", "override": [
            {"fieldPath": "metadata.labels['topology.istio.io/network']", "value": {"staticValue": "net-2"}},
            {"fieldPath": "spec.template.spec.containers[0].image", "value": {"staticValue": "lab.local/web:2"}}]}]}
    federation.nova.apply(
        policy("over", {"app": "over"}, spreadConstraints={
            "spreadMode": "Duplicate", "topologyKey": "kubernetes.io/metadata.name", "overrides": [override]}),
        deployment("both", 2, namespace, annotations={"nova.elotl.co/spread-onto": "member-1,member-3::Duplicate"}),
        deployment("over", 1, namespace))
    until(lambda: where(federation, namespace, "both") == {"member-1": 2, "member-3": 2})
    until(lambda: where(federation, namespace, "over") == {"member-1": 1, "member-2": 1, "member-3": 1})
    images = {}
    for member in federation.members:
        copy = member.get("deployment", "over", "-n", namespace)
        images[member.name] = (copy["spec"]["template"]["spec"]["containers"][0]["image"],
                               copy["metadata"]["labels"].get("topology.istio.io/network"))
    assert images == {"member-1": ("lab.local/web:1", None), "member-2": ("lab.local/web:2", "net-2"),
                      "member-3": ("lab.local/web:1", None)}


def test_a_job_runs_once_and_its_completion_comes_back(federation: Federation, namespace: str) -> None:
    """Facts chapter 5: condition Complete comes back."""
    work = job("work", namespace)
    work["metadata"]["annotations"] = {PIN: "member-1"}
    federation.nova.apply(work)
    federation.nova.kubectl("wait", "--for=condition=complete", "job/work", "-n", namespace, "--timeout=50s")
    uid = federation.members[0].get("job", "work", "-n", namespace)["metadata"]["uid"]
    federation.nova.kubectl("label", "job/work", "x=y", "-n", namespace)
    marker(federation, namespace)
    assert federation.members[0].get("job", "work", "-n", namespace)["metadata"]["uid"] == uid


def test_a_foreign_object_is_a_conflict_until_it_is_adopted(federation: Federation, namespace: str) -> None:
    """Facts chapter 11: an object that Nova did not create is neither changed nor deleted without the annotation."""
    member = federation.members[0]

    def configmap(value: str, **annotations: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": value},
                "metadata": {"name": "mine", "namespace": namespace, "annotations": annotations}}

    def phase() -> tuple[str, str]:
        for item in federation.nova.get("schedules", "-n", "nova-cluster-member-1")["items"]:
            for entry in item.get("status", {}).get("objects", ()):
                if (entry["name"], entry["namespace"]) == ("mine", namespace):
                    return entry["phase"], entry["message"]
        return "", ""
    member.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, configmap("old"))
    federation.nova.apply(configmap("new", **{PIN: "member-1"}))
    until(lambda: phase()[0] == "Conflict")
    assert "kubectl" in phase()[1]
    assert member.get("configmap", "mine", "-n", namespace)["data"] == {"a": "old"}
    federation.nova.kubectl("delete", "configmap", "mine", "-n", namespace)
    until(lambda: not phase()[0])
    assert member.get("configmap", "mine", "-n", namespace)["data"] == {"a": "old"}
    federation.nova.apply(configmap("new", **{PIN: "member-1", "nova.elotl.co/adopt": "true"}))
    until(lambda: member.get("configmap", "mine", "-n", namespace)["data"] == {"a": "new"})
    member.kubectl("delete", "namespace", namespace)


def test_unplaceable_objects_get_a_reason_per_cluster_and_are_retried(federation: Federation, namespace: str) -> None:
    """Promise P4: the first failing check per cluster, with numbers; promise P5: placed as soon as there is room."""
    federation.nova.apply(policy("huge", {"app": "huge"}), deployment("huge", 1, namespace, cpu="9"))
    until(lambda: "FailedScheduling" in events(federation, namespace, "huge"))
    assert "member-1: 1 pods need 9 of cpu each, the largest free node has" in events(
        federation, namespace, "huge")["FailedScheduling"]
    member = federation.members[1]
    node = member.get("node", "fake-0")
    for field in ("capacity", "allocatable"):
        node["status"][field]["cpu"] = "16"
    member.kubectl("replace", "--raw", "/api/v1/nodes/fake-0/status", "-f", "-", stdin=json.dumps(node))
    until(lambda: where(federation, namespace, "huge") == {"member-2": 1})


def test_the_scheduler_continues_after_a_kill(federation: Federation, namespace: str) -> None:
    """A restarted scheduler derives everything from the control plane: nothing is lost, moved or placed twice."""
    federation.nova.apply(deployment("before", 1, namespace, annotations={PIN: "member-1"}))
    until(lambda: where(federation, namespace, "before") == {"member-1": 1})
    federation.scheduler.stop(9)
    federation.nova.apply(deployment("during", 1, namespace, annotations={PIN: "member-2"}))
    federation.nova.kubectl("delete", "deployment", "before", "-n", namespace)
    federation.scheduler.start()
    until(lambda: where(federation, namespace, "during") == {"member-2": 1})
    until(lambda: where(federation, namespace, "before") == {})


def test_a_restarted_scheduler_does_not_report_placements_again(federation: Federation, namespace: str) -> None:
    """Events of 30,000 objects would delay its work, and hide those of users."""
    def matched() -> int:
        return sum(event["reason"] == "SchedulePolicyMatched"
                   for event in federation.nova.get("events", "-n", namespace)["items"])
    labels = {"tier": "matched"}
    federation.nova.apply(policy("matched", labels, ["member-1"]), deployment("first", 1, namespace, labels))
    until(lambda: where(federation, namespace, "first") == {"member-1": 1} and matched() == 1)
    federation.scheduler.stop()
    federation.scheduler.start()
    federation.nova.apply(deployment("later", 1, namespace, labels))
    until(lambda: where(federation, namespace, "later") == {"member-1": 1} and matched() > 1)
    assert matched() == 2


def test_agents_have_rights_in_their_own_namespace_only(federation: Federation, namespace: str,
                                                        tmp_path: pathlib.Path) -> None:
    """Promise P8: an agent sees its own cluster's objects only."""
    secret = federation.members[0].get("secret", "nova-agent-credentials", "-n", "elotl")["data"]
    path = tmp_path / "agent"
    path.write_text(msgspec.structs.replace(
        federation.nova.config, certificate=base64.b64decode(secret["tls.crt"]),
        key=base64.b64decode(secret["tls.key"])).render())

    def may(verb: str, resource: str, place: str) -> list[str]:
        return federation.nova.kubectl(f"--kubeconfig={path}", "auth", "can-i", verb, resource, "-n", place,
                                       check=False).split()
    own = "nova-cluster-member-1"
    assert "yes" in may("get", "schedules", own)
    for verb, resource, place in (("get", "schedules", "nova-cluster-member-2"), ("get", "secrets", "elotl"),
                                  ("create", "schedules", own), ("get", "deployments", namespace),
                                  ("delete", "schedules", own), ("patch", "clusters.cluster.elotl.co", "default")):
        assert "no" in may(verb, resource, place), (verb, resource, place)


def test_explain_names_the_first_failing_check_of_each_cluster(federation: Federation, namespace: str) -> None:
    """Promise P4: one line per cluster, with numbers and what would change it."""
    async def lines(name: str) -> dict[str, tuple[str, str]]:
        async with Api(federation.nova.config) as api:
            explanation = await explain.explain(api, "deploy", name, namespace)
        return {line.cluster: (line.state, line.text) for line in explanation.lines}
    federation.nova.apply(policy("two", {"app": "small"}, ["member-1", "member-3"]),
                          policy("huge", {"app": "giant"}), deployment("small", 1, namespace),
                          deployment("giant", 2, namespace, cpu="99"))
    until(lambda: len(where(federation, namespace, "small")) == 1)
    until(lambda: "FailedScheduling" in events(federation, namespace, "giant"))
    small, giant = asyncio.run(lines("small")), asyncio.run(lines("giant"))
    assert sorted(state for state, _text in small.values()) == ["fits", "rejected", "runs"]
    assert small["member-2"] == ("rejected", "selector: the labels of the cluster do not match the policy; would change"
                                             " with other labels of the cluster")
    assert {state for state, _text in giant.values()} == {"rejected"}
    assert giant["member-1"][1].startswith("cpu: 2 pods need 99 of cpu each, the largest free node has")
    assert giant["member-1"][1].endswith("would change with free capacity")


def test_plan_prints_the_moves_of_an_edit_and_changes_nothing(federation: Federation, namespace: str) -> None:
    """Promise P4: a dry run of a policy edit."""
    async def moves(obj: dict[str, Any]) -> list[explain.Move]:
        async with Api(federation.nova.config) as api:
            return await explain.plan(api, [obj])
    federation.nova.apply(policy("planned", {"app": "planned"}, ["member-1"]), deployment("planned", 2, namespace))
    until(lambda: where(federation, namespace, "planned") == {"member-1": 2})
    result = asyncio.run(moves(policy("planned", {"app": "planned"}, ["member-2"])))
    assert [(move.ref.name, move.before, move.after) for move in result] == [
        ("planned", {"member-1": 2}, {"member-2": 2})]
    assert asyncio.run(moves(policy("planned", {"app": "planned"}, ["member-1"]))) == []
    assert where(federation, namespace, "planned") == {"member-1": 2}


def test_a_deleted_cluster_is_drained_first(federation: Federation, namespace: str) -> None:
    """Facts chapter 11: deleting a Cluster moves its workloads away, then removes it; a token for its name lets it join
    again."""
    federation.nova.apply(policy("any", {"app": "any"}, ["member-2", "member-3"]), deployment("any", 2, namespace))
    until(lambda: len(where(federation, namespace, "any")) == 1)
    (first,) = where(federation, namespace, "any")
    federation.nova.kubectl("delete", "cluster", first, timeout=90)
    other = {"member-2": "member-3", "member-3": "member-2"}[first]
    until(lambda: where(federation, namespace, "any") == {other: 2})
    member = next(member for member in federation.members if member.name == first)
    federation.agents[first].stop(9)
    member.kubectl("delete", "secret", "nova-agent-credentials", "-n", "elotl")
    federation.agents[first] = federation.agent(member, token=federation.token(first))
    until(lambda: federation.ready(first) == "True")


def test_join_tokens_are_bound_to_their_cluster(federation: Federation) -> None:
    """Facts chapter 6: a name that exists is refused; a token for another name is refused."""
    member = federation.members[0]
    for token, message in ((federation.token(), "already exists in Nova, please choose another name"),
                           (federation.token("elsewhere"), "is for cluster elsewhere, not for member-1")):
        member.kubectl("create", "namespace", "second", check=False)
        path = federation.directory / "second.kubeconfig"
        path.write_text(bootstrap_config(federation.nova.config, token).render("init"))
        agent = Process(federation.directory / "second.log", "agent", "--cluster-name=member-1", "--namespace=second",
                        f"--control-plane-kubeconfig={path}", f"--kubeconfig={member.kubeconfig}")
        try:
            until(lambda agent=agent, message=message: message in agent.output())
        finally:
            agent.stop(9)


def test_custom_resources_are_placed_with_their_definition(federation: Federation, namespace: str) -> None:
    """Facts chapter 5: CRDs and their objects; replicas by the annotation replicas-path are divided."""
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer"}}}}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "rings.example.com", "annotations": {
            "nova.elotl.co/spread-onto": "member-1,member-2::Duplicate"}},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {
            "kind": "Ring", "plural": "rings", "singular": "ring", "listKind": "RingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}}
    federation.nova.apply(definition)
    federation.nova.kubectl("wait", "--for=condition=Established", "customresourcedefinition/rings.example.com")

    def sizes() -> dict[str, int]:
        result = {}
        for member in federation.members[:2]:
            for obj in json.loads(member.kubectl("get", "rings.example.com", "-n", namespace, "-o", "json",
                                                 check=False) or "{}").get("items", ()):
                result[member.name] = obj["spec"]["size"]
        return result
    for member in federation.members[:2]:
        until(lambda member=member: "rings.example.com" in member.kubectl("get", "crds"))
    # The cluster that reports the kind first runs all until the other one reports it, and keeps the larger share.
    federation.nova.apply({"apiVersion": "example.com/v1", "kind": "Ring", "spec": {"size": 5}, "metadata": {
        "name": "one", "namespace": namespace, "annotations": {"nova.elotl.co/replicas-path": "spec.size",
                                                               "nova.elotl.co/spread-onto": "member-1,member-2"}}})
    until(lambda: sorted(sizes().values()) == [2, 3])
    federation.nova.kubectl("delete", "rings.example.com", "one", "-n", namespace)
    until(lambda: sizes() == {})
    federation.nova.kubectl("delete", "crd", "rings.example.com")
    for member in federation.members[:2]:
        until(lambda member=member: "rings.example.com" not in member.kubectl("get", "crds"))


def test_another_scheduler_takes_over(federation: Federation, namespace: str) -> None:
    """Facts chapter 8: several replicas of the scheduler; one decides, and another one continues when it is killed."""
    federation.nova.apply(deployment("before", 1, namespace, annotations={PIN: "member-1"}))
    until(lambda: where(federation, namespace, "before") == {"member-1": 1})
    second = federation.start_scheduler("second")
    try:
        federation.scheduler.stop(9)
        federation.nova.apply(deployment("after", 1, namespace, annotations={PIN: "member-2"}))
        until(lambda: where(federation, namespace, "after") == {"member-2": 1})
        assert PLACES in second.output()
        assert where(federation, namespace, "before") == {"member-1": 1}
    finally:
        second.stop()
        federation.scheduler.start()
    federation.nova.kubectl("delete", "deployment", "before", "-n", namespace)
    until(lambda: where(federation, namespace, "before") == {})
