"""The agent of a cluster, against real API servers: copies, statuses, conflicts, drift, fencing. Facts chapters 5, 6
and 11, promises P2, P7, P8 and P9 of chapter 12. The tests write Schedules as the scheduler does."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
import signal
import socket
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nova.federator.api.names import AGENT_USER, AGENTS_GROUP, cluster_namespace
from nova.federator.api.objects import ref_of
from nova.federator.client import manifests
from nova.federator.client.manifests import Settings
from nova.federator.controllers.joining import prepare
from nova.federator.controllers.signing import Authority
from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig
from nova.federator.store import schedules
from nova.federator.store.schedules import Entry, digest_of
from tests.integration.federator.clusters import Cluster, deployment, job, until
from tests.integration.federator.federation import Process

CLUSTER = "agents"
NAMESPACE = cluster_namespace(CLUSTER)
MANAGED_BY = "nova.elotl.co/managed-by"
FENCE_AFTER = 10


def sign(nova: Cluster) -> tuple[bytes, bytes]:
    """Return a key and a certificate of the agent, as the scheduler signs them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, AGENTS_GROUP),
                         x509.NameAttribute(NameOID.COMMON_NAME, f"{AGENT_USER}{CLUSTER}")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    authority = Authority((nova.local.pki / "ca.crt").read_bytes(), (nova.local.pki / "ca.key").read_bytes())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption()), authority.sign(request)


class Bed:
    """A control plane without a scheduler, and one cluster with its agent as a process."""

    def __init__(self, nova: Cluster, member: Cluster, directory: pathlib.Path) -> None:
        self.nova, self.member, self.directory = nova, member, directory

        async def join() -> None:
            async with Api(nova.config) as api:
                await prepare(api, CLUSTER)
        asyncio.run(join())
        key, certificate = sign(nova)
        data = {name: base64.b64encode(value).decode() for name, value in (("tls.key", key), ("tls.crt", certificate))}
        member.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "agents"}},
                     {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
                      "metadata": {"name": "nova-agent-credentials", "namespace": "agents"}})
        self.kubeconfig = directory / "member"
        self.kubeconfig.write_text(self.service_account().render())
        self.agent = self.start("agent")

    def service_account(self) -> Kubeconfig:
        """Install the agent's rights in the member and return the credentials of its service account."""
        installed = manifests.agent(Settings(namespace="agents"))
        self.member.apply(*(obj for obj in installed if obj["kind"] != "Deployment"))
        secret = until(lambda: next((item["data"] for item in self.member.get("secrets", "-n", "agents")["items"]
                                     if item["metadata"]["name"].startswith("nova-agent-token")), None))
        user = "--as=system:serviceaccount:agents:nova-agent"
        until(lambda: "yes" in self.member.kubectl("auth", "can-i", "list", "pods", "-A", user, check=False))
        return msgspec.structs.replace(self.member.config, certificate=b"", key=b"",
                                       token=base64.b64decode(secret["token"]).decode())

    def start(self, log: str, *arguments: str) -> Process:
        return Process(self.directory / f"{log}.log", "agent", f"--cluster-name={CLUSTER}", "--namespace=agents",
                       f"--control-plane-kubeconfig={self.nova.kubeconfig}", f"--kubeconfig={self.kubeconfig}",
                       "--verbose", *arguments)

    def stop(self) -> None:
        """Stop the agent and remove its cluster from the control plane, with the schedules of failed tests."""
        self.agent.stop(signal.SIGKILL)
        for name in self.nova.kubectl("get", "schedules", "-n", NAMESPACE, "-o", "name").split():
            self.nova.kubectl("patch", name, "-n", NAMESPACE, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        self.nova.kubectl("delete", "cluster", CLUSTER, "--wait=false")
        self.nova.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
        self.member.kubectl("delete", "namespace", "agents", "--wait=false")

    def schedule(self, group: str, *manifests: dict[str, Any], failover: str = "Never",
                 uids: dict[str, str] | None = None) -> str:
        """Create or update the Schedule of a group and return its name."""
        entries = [Entry(ref_of(manifest), (uids or {}).get(manifest["metadata"]["name"], "uid-1"),
                         digest_of(manifest), (manifest.get("spec") or {}).get("replicas")) for manifest in manifests]
        body = schedules.render(CLUSTER, schedules.render_spec(
            group, entries, schedules.pack(manifests), failover=failover, fence_after=FENCE_AFTER))
        name = str(body["metadata"]["name"])
        if name in self.nova.kubectl("get", "schedules", "-n", NAMESPACE, "-o", "name"):
            patch = json.dumps({"spec": body["spec"]})
            self.nova.kubectl("patch", "schedule", name, "-n", NAMESPACE, "--type=merge", "-p", patch)
        else:
            self.nova.kubectl("create", "-f", "-", stdin=json.dumps(body))
        return name

    def delete(self, name: str, wait: bool = True) -> None:
        self.nova.kubectl("delete", "schedule", name, "-n", NAMESPACE, f"--wait={str(wait).lower()}", timeout=90)

    def observed(self, name: str) -> dict[str, Any]:
        """Return the reports on the objects of a schedule, by name, of its present generation."""
        obj = self.nova.get("schedule", name, "-n", NAMESPACE)
        if obj.get("status", {}).get("observedGeneration") != obj["metadata"]["generation"]:
            return {}
        return {entry["name"]: entry for entry in obj["status"]["objects"]}

    def phase(self, name: str, obj: str) -> str:
        return str(self.observed(name).get(obj, {}).get("phase", ""))

    def copy(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        output = self.member.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(output) if output else None

    def replicas(self, name: str, namespace: str) -> Any:
        copy = self.copy("deployment", name, namespace)
        return None if copy is None else copy["spec"]["replicas"]


@pytest.fixture(scope="module")
def bed(control_plane: Cluster, members: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(control_plane, members[0], tmp_path_factory.mktemp("agent"))
    try:
        yield bed
    finally:
        bed.stop()


@pytest.fixture
def namespace(bed: Bed, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a namespace that only this test uses; its schedules are removed afterwards."""
    name = f"a{zlib.crc32(request.node.name.encode())}"
    yield name
    for schedule in bed.nova.get("schedules", "-n", NAMESPACE)["items"]:
        bed.delete(schedule["metadata"]["name"])
    bed.member.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")


def custom_resource(group: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    plural = f"{kind.lower()}s"
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"}, "spec": {
                "group": group, "names": {"kind": kind, "plural": plural}, "scope": "Namespaced",
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}}


WIDGETS = custom_resource("example.org", "Widget")


def configmap(name: str, namespace: str, value: str = "1", **annotations: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"key": value},
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


def test_copies_are_applied_reported_updated_pruned_and_removed(bed: Bed, namespace: str) -> None:
    """Facts chapter 5: create, update, delete follow; chapter 11: a missing namespace is made, and removed again."""
    manifests = [configmap("conf", namespace), deployment("web", 2, namespace)]
    name = bed.schedule(f"{namespace}/all", *manifests)
    until(lambda: bed.phase(name, "web") == "Ready")
    report = bed.observed(name)
    assert report["conf"]["phase"] == "Ready"
    assert report["web"]["status"]["readyReplicas"] == 2
    assert report["web"]["digest"] == digest_of(manifests[1])
    copy = bed.copy("deployment", "web", namespace)
    assert copy is not None
    assert copy["metadata"]["labels"][MANAGED_BY] == name
    assert copy["metadata"]["labels"]["nova.elotl.co/target-cluster"] == CLUSTER
    created = bed.member.get("namespace", namespace)["metadata"]["labels"]
    assert created == {"nova.elotl.co/created-for": name, "kubernetes.io/metadata.name": namespace}
    bed.schedule(f"{namespace}/all", deployment("web", 3, namespace))
    until(lambda: bed.phase(name, "web") == "Ready" and set(bed.observed(name)) == {"web"})
    assert bed.replicas("web", namespace) == 3
    assert bed.copy("configmap", "conf", namespace) is None
    bed.delete(name)
    assert bed.copy("deployment", "web", namespace) is None
    until(lambda: not bed.member.kubectl("get", "namespace", namespace, "--ignore-not-found"))


def test_unchanged_copies_cost_no_request(bed: Bed, namespace: str) -> None:
    """Facts chapter 15: a no-op apply costs as much as a change, so an unchanged copy is not applied again, also not by
    a restarted agent: it sends one apply, for the new object."""
    name = bed.schedule(f"{namespace}/same", deployment("same", 1, namespace), configmap("conf", namespace))
    until(lambda: bed.phase(name, "same") == "Ready")
    assert bed.agent.stop() == 0
    before = {kind: bed.copy(kind, "same" if kind == "deployment" else "conf", namespace)
              for kind in ("deployment", "configmap")}
    schedule = bed.nova.get("schedule", name, "-n", NAMESPACE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    bed.agent = bed.start("agent", f"--metrics-address={address}")
    marker = bed.schedule(f"{namespace}/marker", configmap("marker", namespace))
    until(lambda: bed.phase(marker, "marker") == "Ready")
    for kind, copy in before.items():
        assert bed.copy(kind, str(copy and copy["metadata"]["name"]), namespace) == copy
    assert bed.nova.get("schedule", name, "-n", NAMESPACE) == schedule

    def metrics() -> list[str]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            return str(response.read().decode()).splitlines()
    until(lambda: "nova_federator_agent_copies 3.0" in metrics())  # those of earlier tests may still be ending
    assert 'nova_federator_agent_requests_total{method="PATCH",server="cluster"} 1.0' in metrics()


def test_drift_is_reverted_in_fields_that_nova_owns(bed: Bed, namespace: str) -> None:
    """Promise P7: drift is reverted only in fields that Nova owns."""
    name = bed.schedule(f"{namespace}/drift", deployment("drift", 1, namespace), configmap("conf", namespace))
    until(lambda: bed.phase(name, "drift") == "Ready")
    bed.member.kubectl("patch", "configmap", "conf", "-n", namespace, "-p", '{"data": {"key": "2", "foreign": "3"}}')
    until(lambda: (bed.copy("configmap", "conf", namespace) or {})["data"] == {"key": "1", "foreign": "3"})
    bed.member.kubectl("scale", "deployment/drift", "--replicas=4", "-n", namespace)
    until(lambda: bed.replicas("drift", namespace) == 1)
    bed.member.kubectl("delete", "configmap", "conf", "-n", namespace)
    until(lambda: bed.copy("configmap", "conf", namespace))
    bed.agent.stop()
    bed.member.kubectl("patch", "configmap", "conf", "-n", namespace, "-p", '{"data": {"key": "4"}}')
    bed.agent = bed.start("agent")
    until(lambda: (bed.copy("configmap", "conf", namespace) or {})["data"]["key"] == "1")


def test_replicas_of_an_autoscaler_are_left_alone(bed: Bed, namespace: str) -> None:
    """Promise P7: replicas that an HPA in the cluster sets are not changed, also not when it begins to set them."""
    name = bed.schedule(f"{namespace}/scaled", deployment("scaled", 2, namespace))
    until(lambda: bed.phase(name, "scaled") == "Ready")
    scaler = {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
              "metadata": {"name": "scaled", "namespace": namespace},
              "spec": {"minReplicas": 2, "maxReplicas": 5, "targetCPUUtilizationPercentage": 50,
                       "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}}}
    bed.member.apply(scaler)

    def owns() -> bool:
        copy = json.loads(bed.member.kubectl("get", "deployment", "scaled", "-n", namespace, "-o", "json",
                                             "--show-managed-fields", check=False) or "{}")
        return any("f:replicas" in entry["fieldsV1"].get("f:spec", {}) for entry in copy["metadata"]["managedFields"]
                   if entry["manager"] == "nova-agent" and entry["operation"] == "Apply")
    until(lambda: not owns())
    assert bed.replicas("scaled", namespace) == 2
    bed.member.kubectl("scale", "deployment/scaled", "--replicas=4", "-n", namespace)
    changed = deployment("scaled", 3, namespace, labels={"changed": "true"})
    bed.schedule(f"{namespace}/scaled", changed)
    until(lambda: bed.phase(name, "scaled") == "Ready")
    assert bed.replicas("scaled", namespace) == 4
    bed.member.kubectl("delete", "hpa", "scaled", "-n", namespace)
    until(lambda: bed.replicas("scaled", namespace) == 3)
    until(owns)


def test_foreign_objects_are_conflicts_until_adopted(bed: Bed, namespace: str) -> None:
    """Facts chapter 11: nothing is changed, and the message names the field managers; the annotation adopts."""
    bed.member.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
                     configmap("mine", namespace, "old"))
    name = bed.schedule(f"{namespace}/foreign", configmap("mine", namespace, "new"))
    until(lambda: bed.phase(name, "mine") == "Conflict")
    assert "kubectl-client-side-apply" in bed.observed(name)["mine"]["message"]
    assert (bed.copy("configmap", "mine", namespace) or {})["data"]["key"] == "old"
    bed.delete(name)
    assert bed.copy("configmap", "mine", namespace) is not None
    name = bed.schedule(f"{namespace}/foreign", configmap("mine", namespace, "new", **{"nova.elotl.co/adopt": "true"}))
    until(lambda: bed.phase(name, "mine") == "Ready")
    assert (bed.copy("configmap", "mine", namespace) or {})["data"]["key"] == "new"


def test_a_conflict_ends_when_the_foreign_object_is_removed(bed: Bed, namespace: str) -> None:
    """Facts chapter 11: a conflict is checked again without a change of the schedule."""
    bed.member.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
                     configmap("mine", namespace, "old"))
    name = bed.schedule(f"{namespace}/retry", configmap("mine", namespace, "new"))
    until(lambda: bed.phase(name, "mine") == "Conflict")
    bed.member.kubectl("delete", "configmap", "mine", "-n", namespace)
    until(lambda: bed.phase(name, "mine") == "Ready")


def test_objects_move_between_schedules_without_a_gap(bed: Bed, namespace: str) -> None:
    """A policy edit may put an object into another group of the same cluster: its copy goes over and is not deleted."""
    first = bed.schedule(f"{namespace}/first", configmap("shared", namespace), configmap("other", namespace))
    until(lambda: bed.phase(first, "shared") == "Ready")
    uid = (bed.copy("configmap", "shared", namespace) or {})["metadata"]["uid"]
    second = bed.schedule(f"{namespace}/second", configmap("shared", namespace))
    until(lambda: bed.phase(second, "shared") == "Conflict")
    assert first in bed.observed(second)["shared"]["message"]
    bed.schedule(f"{namespace}/first", configmap("other", namespace))
    until(lambda: bed.phase(second, "shared") == "Ready" and set(bed.observed(first)) == {"other"})
    third = bed.schedule(f"{namespace}/third", configmap("shared", namespace))
    until(lambda: bed.phase(third, "shared") == "Conflict")
    bed.delete(second)
    until(lambda: bed.phase(third, "shared") == "Ready")
    metadata = (bed.copy("configmap", "shared", namespace) or {})["metadata"]
    assert (metadata["uid"], metadata["labels"][MANAGED_BY]) == (uid, third)


def test_missing_kinds_fail_and_are_retried_when_they_appear(bed: Bed, namespace: str) -> None:
    """Facts chapter 5: instances of any CRD that the target has; a missing one is a clear message and retried."""
    manifest = {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "g", "namespace": namespace},
                "spec": {"size": 1}}
    name = bed.schedule(f"{namespace}/gadget", manifest, configmap("conf", namespace))
    until(lambda: bed.phase(name, "g") == "Failed")
    assert "does not have the kind Gadget of example.com" in bed.observed(name)["g"]["message"]
    assert bed.phase(name, "conf") == "Ready"
    definition = custom_resource("example.com", "Gadget")
    bed.member.apply(definition)
    until(lambda: "gadgets.example.com is forbidden" in bed.observed(name).get("g", {}).get("message", ""))
    bed.member.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                      "metadata": {"name": "gadgets", "labels": {"nova.elotl.co/aggregate-to-agent": "true"}},
                      "rules": [{"apiGroups": ["example.com"], "resources": ["gadgets"], "verbs": ["*"]}]})
    until(lambda: bed.phase(name, "g") == "Ready", 90)
    bed.member.kubectl("delete", "crd", "gadgets.example.com")
    until(lambda: bed.phase(name, "g") == "Failed")
    bed.member.apply(definition)
    until(lambda: bed.phase(name, "g") == "Ready")
    bed.member.kubectl("delete", "crd", "gadgets.example.com")


def test_kinds_in_other_versions_are_applied_in_the_version_of_the_cluster(bed: Bed, namespace: str) -> None:
    """Clusters of other releases: batch/v1 CronJob is batch/v1beta1 in a cluster of Kubernetes 1.20."""
    template = job("unused", namespace)["spec"]
    manifest = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron", "namespace": namespace},
                "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": template}}}
    name = bed.schedule(f"{namespace}/cron", manifest)
    until(lambda: bed.phase(name, "cron") == "Ready")
    assert (bed.copy("cronjob", "cron", namespace) or {})["apiVersion"] == "batch/v1beta1"
    bed.schedule(f"{namespace}/cron", configmap("conf", namespace))
    until(lambda: bed.phase(name, "conf") == "Ready" and bed.copy("cronjob", "cron", namespace) is None)


def test_fields_of_other_managers_are_conflicts(bed: Bed, namespace: str) -> None:
    """Promise P7: a new field of a manifest that another manager set in the cluster is not taken over without the
    annotation; the message names field and manager."""
    name = bed.schedule(f"{namespace}/fields", configmap("conf", namespace))
    until(lambda: bed.phase(name, "conf") == "Ready")
    bed.member.kubectl("patch", "configmap", "conf", "-n", namespace, "--field-manager=operator",
                       "-p", '{"data": {"extra": "theirs"}}')
    manifest = configmap("conf", namespace, "2")
    manifest["data"]["extra"] = "ours"
    bed.schedule(f"{namespace}/fields", manifest)
    until(lambda: bed.phase(name, "conf") == "Conflict")
    message = bed.observed(name)["conf"]["message"]
    assert "operator" in message
    assert ".data.extra" in message
    assert (bed.copy("configmap", "conf", namespace) or {})["data"] == {"key": "1", "extra": "theirs"}
    manifest["metadata"]["annotations"] = {"nova.elotl.co/adopt": "true"}
    bed.schedule(f"{namespace}/fields", manifest)
    until(lambda: bed.phase(name, "conf") == "Ready")
    assert (bed.copy("configmap", "conf", namespace) or {})["data"] == {"key": "2", "extra": "ours"}


def test_claims_are_ready_when_bound_or_when_their_class_binds_late(bed: Bed, namespace: str) -> None:
    """Facts chapter 5: claims are placed, too; a claim that waits for its first pod must not count as failed."""
    def claim(name: str, mode: str) -> dict[str, Any]:
        bed.member.apply({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": mode.lower()},
                          "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode})
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": mode.lower(),
                         "resources": {"requests": {"storage": "1Gi"}}}}
    name = bed.schedule(f"{namespace}/claims", claim("late", "WaitForFirstConsumer"), claim("now", "Immediate"))
    until(lambda: (bed.phase(name, "late"), bed.phase(name, "now")) == ("Ready", "Applied"))


def test_a_namespace_with_foreign_objects_stays(bed: Bed, namespace: str) -> None:
    """Facts chapter 11: a namespace that the agent made is removed only if it is empty, also of custom resources that
    the agent may not list."""
    name = bed.schedule(f"{namespace}/stays", configmap("conf", namespace))
    until(lambda: bed.phase(name, "conf") == "Ready")
    bed.member.apply(WIDGETS)
    bed.member.kubectl("wait", "--for=condition=Established", "crd/widgets.example.org")
    bed.member.apply({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {
        "name": "w", "namespace": namespace}})
    bed.delete(name)
    assert "deletionTimestamp" not in bed.member.get("namespace", namespace)["metadata"]
    bed.member.kubectl("delete", "crd", "widgets.example.org")


def test_jobs_never_run_again_for_the_same_uid(bed: Bed, namespace: str) -> None:
    """Chapter 12, row 20: finished jobs run again elsewhere; here not, even if they were removed in the cluster. A new
    uid is a new job."""
    work = job("work", namespace)
    name = bed.schedule(f"{namespace}/job", work)
    until(lambda: any(entry["type"] == "Complete" for entry in bed.observed(name).get("work", {}).get(
        "status", {}).get("conditions", ())))
    first = (bed.copy("job", "work", namespace) or {})["metadata"]["uid"]
    bed.member.kubectl("delete", "job", "work", "-n", namespace)
    work["metadata"]["labels"] = {"changed": "true"}
    bed.schedule(f"{namespace}/job", work)
    until(lambda: bed.phase(name, "work") == "Ready")
    assert bed.copy("job", "work", namespace) is None
    bed.schedule(f"{namespace}/job", work, uids={"work": "uid-2"})
    until(lambda: bed.copy("job", "work", namespace))
    second = (bed.copy("job", "work", namespace) or {})["metadata"]["uid"]
    assert second != first
    bed.schedule(f"{namespace}/job", work, uids={"work": "uid-3"})
    until(lambda: (bed.copy("job", "work", namespace) or {"metadata": {"uid": second}})["metadata"]["uid"] != second)


def test_immutable_fields_fail_and_nothing_is_deleted(bed: Bed, namespace: str) -> None:
    """A change of an immutable field is reported with the field; the running copy stays."""
    name = bed.schedule(f"{namespace}/immutable", deployment("fixed", 1, namespace))
    until(lambda: bed.phase(name, "fixed") == "Ready")
    uid = (bed.copy("deployment", "fixed", namespace) or {})["metadata"]["uid"]
    changed = deployment("fixed", 1, namespace)
    changed["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    changed["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    bed.schedule(f"{namespace}/immutable", changed)
    until(lambda: bed.phase(name, "fixed") == "Failed")
    assert "spec.selector" in bed.observed(name)["fixed"]["message"]
    assert (bed.copy("deployment", "fixed", namespace) or {})["metadata"]["uid"] == uid
    bed.schedule(f"{namespace}/immutable", deployment("fixed", 2, namespace))
    until(lambda: bed.phase(name, "fixed") == "Ready")


def test_a_stuck_deletion_blocks_no_other_schedule(bed: Bed, namespace: str) -> None:
    """More schedules than workers wait for the end of their copies, and another one is still carried out."""
    names = [bed.schedule(f"{namespace}/stuck-{number}", configmap(f"stuck-{number}", namespace))
             for number in range(20)]
    until(lambda: all(bed.phase(name, f"stuck-{number}") == "Ready" for number, name in enumerate(names)))
    patch = '{"metadata": {"finalizers": ["example.com/stuck"]}}'
    maps = [f"configmap/stuck-{number}" for number in range(20)]
    for path in maps:
        bed.member.kubectl("patch", path, "-n", namespace, "-p", patch)
    bed.nova.kubectl("delete", "schedule", *names, "-n", NAMESPACE, "--wait=false")
    until(lambda: all("deletionTimestamp" in item["metadata"] for item in bed.member.get(
        "configmaps", "-n", namespace, "-l", MANAGED_BY)["items"]))
    other = bed.schedule(f"{namespace}/other", configmap("other", namespace))
    until(lambda: bed.phase(other, "other") == "Ready")
    for path in maps:
        bed.member.kubectl("patch", path, "-n", namespace, "-p", '{"metadata": {"finalizers": null}}')
    until(lambda: not set(names) & set(bed.nova.kubectl(
        "get", "schedules", "-n", NAMESPACE, "-o", "jsonpath={.items[*].metadata.name}").split()))


def test_copies_without_a_report_are_pruned_after_a_crash(bed: Bed, namespace: str) -> None:
    """An agent that was killed between an apply and its report prunes the copy by its label."""
    name = bed.schedule(f"{namespace}/crash", configmap("listed", namespace))
    until(lambda: bed.phase(name, "listed") == "Ready")
    bed.agent.stop()
    orphan = configmap("orphan", namespace)
    orphan["metadata"]["labels"] = {MANAGED_BY: name}
    bed.member.kubectl("apply", "--server-side", "--field-manager=nova-agent", "-f", "-", stdin=json.dumps(orphan))
    bed.member.apply(configmap("foreign", namespace))
    bed.agent = bed.start("agent")
    until(lambda: bed.copy("configmap", "orphan", namespace) is None)
    assert bed.copy("configmap", "foreign", namespace) is not None
    assert bed.copy("configmap", "listed", namespace) is not None


def test_bad_manifests_are_reported_and_change_nothing(bed: Bed, namespace: str) -> None:
    """Bad input: damaged manifests and manifests of another object are a clear message."""
    name = bed.schedule(f"{namespace}/bad", configmap("bad", namespace))
    until(lambda: bed.phase(name, "bad") == "Ready")
    for packed, message in (("###", "spec.manifests"), (schedules.pack([]), "0 manifests for 1 objects"),
                            (schedules.pack([configmap("evil", "kube-system")]), "is of ConfigMap/kube-system/evil")):
        patch = json.dumps({"spec": {"manifests": packed}})
        bed.nova.kubectl("patch", "schedule", name, "-n", NAMESPACE, "--type=merge", "-p", patch)
        until(lambda: bed.phase(name, "bad") == "Failed")
        assert message in bed.observed(name)["bad"]["message"]
    assert bed.copy("configmap", "bad", namespace) is not None
    assert bed.copy("configmap", "evil", "kube-system") is None


def test_the_report_counts_free_resources_and_running_schedules(bed: Bed, namespace: str) -> None:
    """Promise P3: the report contains what is free per node, and the generations whose pods are included."""
    name = bed.schedule(f"{namespace}/report", deployment("big", 2, namespace, cpu="2"))

    def report() -> Any:
        items = bed.nova.get("clusterreports", "-n", NAMESPACE)["items"]
        return items[0]["report"] if items else {}  # an agent that has just started has not reported yet
    until(lambda: report().get("applied", {}).get(name) == 1)
    first = report()
    assert first["version"].startswith("v1.20")
    assert {"Deployment.apps", "ConfigMap", "CronJob.batch"} <= set(first["kinds"])
    free = sum(int(node["available"]["cpu"].removesuffix("m")) * (1 if "m" in node["available"]["cpu"] else 1000)
               for node in first["nodes"])
    assert free <= 12_000
    never = bed.schedule(f"{namespace}/never", deployment("huge", 1, namespace, cpu="100"))
    until(lambda: bed.phase(never, "huge") == "Applied")
    bed.member.kubectl("cordon", "fake-1")
    until(lambda: [node.get("schedulable", True) for node in report()["nodes"]] == [True, False])
    bed.member.kubectl("uncordon", "fake-1")
    assert report()["sequence"] > first["sequence"]
    assert never not in report()["applied"]


def fenced_bed(bed: Bed, namespace: str) -> str:
    """Create a fenced schedule with a Deployment, a StatefulSet, a DaemonSet, a Job and a Pod, and wait for it."""
    web = deployment("web", 3, namespace)
    daemon = {**deployment("daemon", 1, namespace), "kind": "DaemonSet"}
    del daemon["spec"]["replicas"]
    stateful = {**deployment("state", 2, namespace), "kind": "StatefulSet"}
    stateful["spec"]["serviceName"] = "state"
    work = job("work", namespace, pod_annotations={"lab/run-for": "600"})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": namespace},
           "spec": web["spec"]["template"]["spec"]}
    cron = {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": "cron", "namespace": namespace},
            "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job("unused", namespace)["spec"]}}}
    name = bed.schedule(f"{namespace}/fenced", web, daemon, stateful, work, pod, cron, failover="Fenced")
    until(lambda: bed.observed(name) and all(entry["phase"] == "Ready" for entry in bed.observed(name).values()))
    return name


def pods(bed: Bed, namespace: str) -> int:
    return len(bed.member.get("pods", "-n", namespace)["items"])


def test_fenced_workloads_stop_without_the_control_plane_and_return(bed: Bed, namespace: str) -> None:
    """Promise P2: without a renewal for the fence time the agent stops fenced workloads by itself, and no others; they
    return after the control plane confirmed them."""
    name = fenced_bed(bed, namespace)
    plain = bed.schedule(f"{namespace}/plain", deployment("plain", 1, namespace))
    until(lambda: bed.phase(plain, "plain") == "Ready")
    assert pods(bed, namespace) == 3 + 2 + 2 + 1 + 1 + 1
    bed.nova.cut()
    until(lambda: pods(bed, namespace) == 1, 90)
    assert bed.replicas("plain", namespace) == 1
    assert bed.replicas("web", namespace) == 0
    assert (bed.copy("cronjob", "cron", namespace) or {})["spec"]["suspend"]
    bed.nova.heal()
    until(lambda: bed.replicas("web", namespace) == 3, 90)
    until(lambda: pods(bed, namespace) == 3 + 2 + 2 + 1 + 1 + 1)
    until(lambda: all(entry["phase"] == "Ready" for entry in bed.observed(name).values()))
    assert not (bed.copy("cronjob", "cron", namespace) or {})["spec"].get("suspend")
    annotations = (bed.copy("deployment", "web", namespace) or {})["metadata"]["annotations"]
    assert "nova.elotl.co/fenced" not in annotations


def test_a_restarted_agent_fences_without_the_control_plane(bed: Bed, namespace: str) -> None:
    """Promise P2: all that fencing needs is in the member, so an agent that starts during a partition fences, too; what
    was moved away meanwhile does not run again after the partition."""
    name = fenced_bed(bed, namespace)
    bed.agent.stop(signal.SIGKILL)
    bed.delete(name, wait=False)
    bed.nova.cut()
    bed.agent = bed.start("agent")
    until(lambda: pods(bed, namespace) == 0, 60)
    bed.nova.heal()
    until(lambda: name not in bed.nova.kubectl("get", "schedules", "-n", NAMESPACE, "-o", "name"), 120)
    assert pods(bed, namespace) == 0
    events = bed.member.kubectl("get", "events", "-n", namespace, "-o", "json")
    scaled = [event for event in json.loads(events)["items"] if event["reason"] == "ScalingReplicaSet"]
    assert [event for event in scaled if "up" in event["message"]] == scaled[:1]


def test_a_second_agent_is_refused_until_the_lease_expires(bed: Bed, namespace: str) -> None:
    """Facts chapter 6: a second agent under a name that exists is refused; it takes over after the first one died."""
    def lease() -> dict[str, Any]:
        return bed.nova.get("lease", "heartbeat", "-n", NAMESPACE)["spec"]
    name = bed.schedule(f"{namespace}/second", configmap("conf", namespace))
    until(lambda: bed.phase(name, "conf") == "Ready", 90)
    first = lease()
    second = bed.start("second")
    try:
        until(lambda: "Another agent of cluster agents holds its Lease" in second.output())
        assert lease()["holderIdentity"] == first["holderIdentity"]
        bed.agent.stop(signal.SIGKILL)
        until(lambda: lease()["holderIdentity"] != first["holderIdentity"], 90)
        assert lease()["leaseTransitions"] == first["leaseTransitions"] + 1
        bed.schedule(f"{namespace}/second", configmap("conf", namespace, "2"))
        until(lambda: bed.phase(name, "conf") == "Ready")
    finally:
        bed.agent = second
