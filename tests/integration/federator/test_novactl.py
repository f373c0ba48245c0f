"""The program novactl against real API servers: facts chapters 2, 7, 8 and 10.

The hosting cluster has fake nodes: its pods become ready and run nothing. The Nova API server is a control plane of its
own, to which the kubeconfig of the tests points.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
import yaml

from nova.common.errors import Refused
from nova.federator.client import certificates
from nova.federator.client.certificates import Authority
from nova.federator.client.manifests import INSTALL
from nova.federator.client.renewal import DIGEST, NEXT, Renewal
from nova.federator.clusters.join import Credentials
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig, decode, load
from nova.federator.local.cluster import ClusterOptions, LocalCluster
from nova.federator.local.fake_nodes import NodeOptions
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster, until
from tests.integration.federator.federation import Federation
from tests.integration.port_relay import start_relay

HOSTING = ClusterOptions(controllers=True, scheduler=True, fsync=False, small=True, prefix=clusters.END_WITH_TESTS,
                         nodes=NodeOptions(count=3))
SECTION = "Checking presence of Nova Custom Resource Definitions"
HEALTHY = ["Checking status of Nova Control Plane Components", "* API Server status... Running √",
           "* Kube-controller-manager status... Running √", "* ETCD status... Running √",
           "* Nova scheduler status... Running √", "Nova Control Plane is healthy √"]
NO_CLUSTERS = ["0 workload clusters connected ‼",
               "please connect at least one Cluster, otherwise Nova does not have a target cluster to run your"
               " workloads. Connecting clusters can be done by running novactl install agent <cluster-name> in correct"
               " Kube context."]
NO_POLICIES = ["* 0 SchedulePolicies defined ‼",
               "please create at least one SchedulePolicy, otherwise Nova does not know where to run your workloads."
               " SchedulePolicy spec: https://docs.elotl.co/nova/intro"]
INSTALLED = "All Nova Custom Resource Definitions installed √"


class Bed:
    """A hosting cluster and a Nova API server, with a kubeconfig of both."""

    def __init__(self, hosting: Cluster, nova: Cluster, directory: pathlib.Path) -> None:
        self.hosting, self.nova, self.home = hosting, nova, directory
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(clusters.merge({"kind-cp": hosting.config, "nova": nova.config}))

    def novactl(self, *arguments: str, code: int = 0, environment: Mapping[str, str] | None = None,
                kubeconfig: pathlib.Path | None = None) -> tuple[str, str]:
        """Run novactl and return its output and its errors."""
        variables = {**os.environ, "HOME": str(self.home), "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        result = subprocess.run([sys.executable, "-m", "nova.cli.federation.main", *arguments], capture_output=True,
                                text=True, timeout=240, env={**variables, **(environment or {})}, check=False)
        assert result.returncode == code, f"novactl {' '.join(arguments)}: {result.stdout}{result.stderr}"
        return result.stdout, result.stderr

    def status(self, code: int = 0) -> list[str]:
        output, _errors = self.novactl("--context=nova", "--hosting-cluster-context=kind-cp",
                                       "--hosting-cluster-nova-namespace=elotl", "status", code=code)
        return output.splitlines()


@pytest.fixture(scope="module")
def bed(control_plane: Cluster, cluster_directory: pathlib.Path, tmp_path_factory: pytest.TempPathFactory,
        ) -> Iterator[Bed]:
    """Yield a hosting cluster in which the control plane was installed as the guide does."""
    hosting, = clusters.start([LocalCluster(cluster_directory / "hosting", "hosting", HOSTING)])
    try:
        for number in range(3):
            hosting.kubectl("label", "node", f"{NodeOptions().prefix}{number}",
                            f"topology.kubernetes.io/zone=zone-{number}")
            hosting.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"etcd-{number}"},
                           "spec": {"capacity": {"storage": "50Gi"}, "accessModes": ["ReadWriteOnce"],
                                    "hostPath": {"path": f"/nonexistent/{number}"}}})
        bed = Bed(hosting, control_plane, tmp_path_factory.mktemp("novactl"))
        _install(bed)
        yield bed
    finally:
        clusters.remove([hosting])


def _install(bed: Bed) -> None:
    """Run the commands of the guide up to the control plane's components."""
    kubectl = bed.hosting.kubectl
    kubectl("create", "namespace", "elotl")
    kubectl("create", "-f", str(INSTALL / "base/control-plane/apiserver.yaml"), "-n", "elotl")
    _set_address(bed, {"ip": "198.51.100.7"})
    output, _errors = bed.novactl("--context=kind-cp", "install", "certs", "--apiserver-public-endpoint=198.51.100.7",
                                  "--namespace=elotl", "--nova-node-ip=198.51.100.7")
    kubectl("create", "-f", "-", stdin=output)
    kubectl("apply", "-k", str(INSTALL / "overlays/cp-ha"), "-n", "elotl")
    for selector in ("app=etcd", "component=apiserver", "component=controller-manager", "component=nova-scheduler"):
        until(lambda selector=selector: len(bed.hosting.get("pods", "-n", "elotl", "-l", selector)["items"]) == 3)
        kubectl("wait", "pod", "--for=condition=Ready", "-n", "elotl", "-l", selector, "--timeout=100s", timeout=120)


def _set_address(bed: Bed, ingress: dict[str, str]) -> None:
    """Do the work of a load balancer: write the address of the Service."""
    path = "/api/v1/namespaces/elotl/services/apiserver/status"
    async def patch() -> None:
        async with Api(bed.hosting.config) as api:
            await api.patch(path, {"status": {"loadBalancer": {"ingress": [ingress]}}})
    asyncio.run(patch())


def _cluster(name: str, ready: str, message: str = "", **conditions: str) -> dict[str, Any]:
    time = "2026-11-29T12:00:00Z"
    return {"apiVersion": "cluster.elotl.co/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"name": name}, "status": {"lastUpdateTime": time, "conditions": [
                {"type": kind, "status": status, "reason": "Tested", "message": message, "lastHeartbeatTime": time,
                 "lastTransitionTime": time} for kind, status in {"Ready": ready, **conditions}.items()]}}


@pytest.fixture
def nova(bed: Bed) -> Iterator[Cluster]:
    """Yield the Nova API server and remove the users' objects afterwards."""
    yield bed.nova
    bed.nova.kubectl("delete", "clusters,schedulepolicies,schedulegroups", "--all")


def test_the_manifests_are_valid_for_a_real_api_server(bed: Bed) -> None:
    """Facts chapter 8: every folder of the guide, validated by the server."""
    for folder in ("base/control-plane", "overlays/cp-ha", "base/agent", "overlays/workload-cluster-1",
                   "overlays/workload-cluster-2"):
        bed.hosting.kubectl("apply", "-k", str(INSTALL / folder), "--dry-run=server")


def test_status_without_clusters_prints_the_lines_of_the_guide(bed: Bed) -> None:
    """Facts chapter 10: status, with no cluster and no policy."""
    assert bed.status() == [*HEALTHY, SECTION, "* Cluster CRD presence... installed √", *NO_CLUSTERS,
                            "* SchedulePolicy CRD presence... installed √", *NO_POLICIES,
                            "* ScheduleGroup CRD presence... installed √", INSTALLED]


def test_status_with_clusters_prints_the_lines_of_the_guide(bed: Bed, nova: Cluster) -> None:
    """Facts chapter 10: a line per cluster, by name; no line about policies once there is a policy."""
    nova.apply(_cluster("kind-workload-2", "True"), _cluster("kind-workload-1", "True"))
    lines = ["* Cluster CRD presence... installed √", "* Cluster kind-workload-1 connected and ready √",
             "* Cluster kind-workload-2 connected and ready √", "* SchedulePolicy CRD presence... installed √"]
    end = ["* ScheduleGroup CRD presence... installed √", INSTALLED]
    assert bed.status() == [*HEALTHY, SECTION, *lines, *NO_POLICIES, *end]
    nova.apply({"apiVersion": "policy.elotl.co/v1alpha1", "kind": "SchedulePolicy", "metadata": {"name": "p"},
                "spec": {"resourceSelectors": {"labelSelectors": [{"matchExpressions": []}]}}})
    assert bed.status() == [*HEALTHY, SECTION, *lines, *end]


def test_status_marks_clusters_that_are_not_ready(bed: Bed, nova: Cluster) -> None:
    """Issue 27: a broken part gets a × line with the reason, and exit code 1. Standby is a warning."""
    nova.apply(_cluster("a", "Unknown", "no heartbeat for 60 s"), _cluster("b", "False", Standby="True"))
    nova.apply({"apiVersion": "cluster.elotl.co/v1alpha1", "kind": "Cluster", "metadata": {"name": "c"},
                "spec": {"name": "c"}})
    lines = bed.status(code=1)
    assert [line for line in lines if line.startswith("* Cluster ")] == [
        "* Cluster CRD presence... installed √", "* Cluster a not ready: no heartbeat for 60 s ×",
        "* Cluster b in standby ‼", "* Cluster c not ready: its agent has not reported yet ×"]
    assert lines[:6] == HEALTHY
    nova.kubectl("delete", "cluster", "a", "c")
    assert "* Cluster b in standby ‼" in bed.status(), "a warning alone is exit code 0"
    waking = _cluster("b", "False", Standby="False")
    waking["status"]["conditions"][0]["reason"] = "Waking"
    nova.apply(waking)
    assert "* Cluster b is being woken from standby ‼" in bed.status()


def test_status_marks_broken_components(bed: Bed) -> None:
    """Issue 27: a component that is scaled to 0, deleted, or has too few replicas."""
    kubectl = bed.hosting.kubectl
    kubectl("scale", "deployment/kube-controller-manager", "--replicas=0", "-n", "elotl")
    scheduler = json.loads(kubectl("get", "deployment/nova-scheduler", "-n", "elotl", "-o", "json"))
    kubectl("delete", "deployment/nova-scheduler", "-n", "elotl", "--cascade=foreground")
    kubectl("cordon", f"{NodeOptions().prefix}0")
    try:
        kubectl("delete", "pod", "-n", "elotl", "-l", "component=apiserver", "--field-selector",
                f"spec.nodeName={NodeOptions().prefix}0")
        lines = until(lambda: (lines := bed.status(code=1)) and any("2 of 3" in line for line in lines) and lines)
        assert lines[:6] == [
            HEALTHY[0], "* API Server status... Running: 2 of 3 replicas are ready ‼",
            "* Kube-controller-manager status... Not running: it is scaled to 0 replicas ×", HEALTHY[3],
            "* Nova scheduler status... deployment nova-scheduler does not exist in namespace elotl ×",
            "Nova Control Plane is not healthy ×"]
    finally:
        kubectl("uncordon", f"{NodeOptions().prefix}0")
        kubectl("apply", "-k", str(INSTALL / "overlays/cp-ha"), "-n", "elotl")
        assert scheduler["spec"]["replicas"] == 3
    until(lambda: bed.novactl("status", "--hosting-cluster-context=kind-cp") and True if _ready(bed) else False)


def _ready(bed: Bed) -> bool:
    workloads = bed.hosting.get("deployments,statefulsets", "-n", "elotl")["items"]
    return all(workload["status"].get("readyReplicas") == 3 for workload in workloads)


def test_status_marks_missing_custom_resources(bed: Bed, cluster_directory: pathlib.Path) -> None:
    """Facts chapter 10, seen from an API server without the custom resources: the hosting cluster itself."""
    path = bed.home / "wrong"
    path.write_text(clusters.merge({"kind-cp": bed.hosting.config, "nova": bed.hosting.config}))
    output, _errors = bed.novactl("status", "--hosting-cluster-context=kind-cp", code=1, kubeconfig=path)
    assert output.splitlines()[6:] == [
        SECTION, "* Cluster CRD presence... not installed ×", "* SchedulePolicy CRD presence... not installed ×",
        "* ScheduleGroup CRD presence... not installed ×",
        "Nova Custom Resource Definitions are missing: kubectl create -f install/base/control-plane/nova_crds.yaml ×"]


def test_unreachable_servers_are_a_clear_line(bed: Bed) -> None:
    """Issue 27: an unreachable API server, another cluster's certificate, and no control plane in the namespace."""
    dead = Kubeconfig(server="https://127.0.0.1:9", context="nova")
    foreign = Kubeconfig(server=bed.nova.config.server, ca=bed.hosting.config.ca, context="nova")
    path = bed.home / "broken"
    for config, reason in ((dead, "127.0.0.1:9"), (foreign, "certificate verify failed")):
        path.write_text(clusters.merge({"kind-cp": bed.hosting.config, "nova": config}))
        output, errors = bed.novactl("status", "--hosting-cluster-context=kind-cp", code=1, kubeconfig=path)
        assert output.splitlines()[:7] == [*HEALTHY, SECTION]
        last = output.splitlines()[-1]
        assert last.startswith("* Nova API server is not usable: ")
        assert reason in last
        assert last.endswith(" ×")
        assert errors == ""
        for command in (("get", "schedulegroups"), ("join-command", "edge")):
            _output, errors = bed.novactl(*command, code=1, kubeconfig=path)
            assert errors.startswith("novactl: ")
            assert reason in errors
            assert errors.count("\n") == 1
    _output, errors = bed.novactl("get", "kubeconfig", "--context=nova", code=1)
    assert "has no Service apiserver: is this the hosting cluster" in errors


def test_a_frozen_server_is_reported_within_the_deadline(bed: Bed) -> None:
    """Issue 27: deadlines cover every request. The command must end although the server keeps the connection."""
    assert bed.nova.local.processes.signal("kube-apiserver", signal.SIGSTOP)
    try:
        output, _errors = bed.novactl("status", "--hosting-cluster-context=kind-cp", code=1)
    finally:
        bed.nova.local.processes.signal("kube-apiserver", signal.SIGCONT)
    assert output.splitlines()[-1].startswith("* Nova API server is not usable: ")


@pytest.mark.parametrize(("ingress", "server"), [
    ({"hostname": "nova.example.com"}, "https://nova.example.com"), ({"ip": "198.51.100.7"}, "https://198.51.100.7")])
def test_get_kubeconfig_prints_credentials_of_an_administrator(bed: Bed, ingress: dict[str, str], server: str) -> None:
    """Facts chapters 7 and 10: context nova, user nova-admin, server from the Service, ip or hostname."""
    _set_address(bed, ingress)
    output, _errors = bed.novactl("--context=kind-cp", "get", "kubeconfig", "-n", "elotl")
    document = yaml.safe_load(output)
    assert document["users"][0]["name"] == "nova-admin"
    assert document["preferences"] == {}
    config = decode(output.encode(), "output")
    files = certificates.files_of(bed.hosting.get("secret", "nova-cert", "-n", "elotl"))
    assert (config.server, config.context, config.ca) == (server, "nova", files["ca.crt"])
    assert (config.certificate, config.key) == (files["apiserver-client.crt"], files["apiserver-client.key"])


def test_get_schedulegroups_prints_a_table(bed: Bed, nova: Cluster) -> None:
    """Facts chapter 10: NAME / NOVA WORKLOAD CLUSTER / NOVA POLICY NAME, and "Not assigned yet."."""
    for name, target in (("demo-policy-4f068569", {"nova.elotl.co/target-cluster": "kind-workload-1"}),
                         ("demo-policy-f73297b2", {})):
        nova.apply({"apiVersion": "policy.elotl.co/v1alpha1", "kind": "ScheduleGroup",
                    "metadata": {"name": name, "labels": {"nova.elotl.co/matching-policy": "demo-policy", **target}},
                    "policy": {"name": "demo-policy", "namespace": ""}})
    output, _errors = bed.novactl("get", "schedulegroups")
    rule = f"  {'-' * 20}  {'-' * 38}  {'-' * 38}"
    assert output.splitlines() == [
        f"  {'NAME':20}  {'NOVA WORKLOAD CLUSTER':38}  NOVA POLICY NAME", rule,
        "", f"  demo-policy-4f068569  {'kind-workload-1':38}  demo-policy",
        "", f"  demo-policy-f73297b2  {'Not assigned yet.':38}  demo-policy", rule]


def test_join_command_installs_an_agent(bed: Bed, members: list[Cluster], nova: Cluster) -> None:
    """Facts chapters 6 and 10: the printed command installs the agent; a second agent is refused; uninstall."""
    output, _errors = bed.novactl("join-command", "edge", "--server=https://nova.example.com")
    comment, command = output.splitlines()
    assert comment.startswith("# ")
    assert " --namespace=shop --init-kubeconfig=" in bed.novactl("join-command", "edge", "--namespace=shop")[0]
    program, *arguments = command.split()
    assert program == "novactl"
    path = bed.home / "member"
    path.write_text(members[0].config.render())
    output, _errors = bed.novactl(*arguments, kubeconfig=path)
    assert output == "Agent of cluster edge installed in namespace elotl.\n"
    secret = members[0].get("secret", "nova-cluster-init-kubeconfig", "-n", "elotl")
    init = decode(base64.b64decode(secret["data"]["kubeconfig"]), "secret")
    assert (init.server, init.certificate, init.key) == ("https://nova.example.com", b"", b"")
    token = nova.get("secret", f"bootstrap-token-{init.token.partition('.')[0]}", "-n", "kube-system")
    assert token["metadata"]["annotations"] == {"nova.elotl.co/cluster": "edge"}
    rules = until(lambda: members[0].get("clusterrole", "nova-agent").get("rules"))
    assert all("*" not in rule["resources"] for rule in rules), "the API server aggregates the rights"
    until(lambda: members[0].get("deployment", "nova-agent", "-n", "elotl")["status"].get("readyReplicas") == 1)
    _output, errors = bed.novactl(*arguments, code=1, kubeconfig=path)
    assert "already has the agent of cluster edge" in errors
    _output, errors = bed.novactl("uninstall", "agent", "other", code=1, kubeconfig=path)
    assert "belongs to cluster edge, not to other" in errors
    bed.novactl("uninstall", "agent", "edge", kubeconfig=path)
    until(lambda: "NotFound" in members[0].kubectl("get", "namespace", "elotl", check=False))
    assert "NotFound" in members[0].kubectl("get", "clusterrole", "nova-agent", check=False)


def test_a_name_that_exists_in_nova_is_refused(bed: Bed, members: list[Cluster], nova: Cluster) -> None:
    """Facts chapter 6: "already exists in Nova, please choose another name", unless
    NOVA_EXIT_IF_CLUSTER_EXISTS=false."""
    nova.apply(_cluster("taken", "True"))
    path = bed.home / "both"
    path.write_text(clusters.merge({"kind-workload-1": members[0].config, "nova": bed.nova.config}))
    arguments = ("install", "agent", "taken", "--context=kind-workload-1", "--namespace=nova-taken")
    _output, errors = bed.novactl(*arguments, code=1, kubeconfig=path)
    assert errors == "novactl: taken already exists in Nova, please choose another name.\n"
    assert "NotFound" in members[0].kubectl("get", "namespace", "nova-taken", check=False)
    bed.novactl(*arguments, kubeconfig=path, environment={"NOVA_EXIT_IF_CLUSTER_EXISTS": "false"})
    assert members[0].get("deployment", "nova-agent", "-n", "nova-taken")
    bed.novactl("uninstall", "agent", "taken", "--context=kind-workload-1", "--namespace=nova-taken", kubeconfig=path)


def test_uninstall_leaves_a_namespace_that_it_did_not_create(bed: Bed, members: list[Cluster]) -> None:
    """Promise P9: nothing that Nova does not own is deleted."""
    member = members[1]
    member.kubectl("create", "namespace", "shared")
    member.kubectl("create", "configmap", "precious", "-n", "shared")
    path = bed.home / "member"
    path.write_text(clusters.merge({"member": member.config, "nova": bed.nova.config}))
    bed.novactl("install", "agent", "guest", "-n", "shared", kubeconfig=path)
    _output, errors = bed.novactl("uninstall", "agent", "guest", "-n", "other", code=1, kubeconfig=path)
    assert "is in namespace shared, not other" in errors
    assert member.get("clusterrolebinding", "nova-agent")
    bed.novactl("uninstall", "agent", "guest", "-n", "shared", kubeconfig=path)
    assert member.get("configmap", "precious", "-n", "shared")
    assert "deletionTimestamp" not in member.get("namespace", "shared")["metadata"]
    assert "NotFound" in member.kubectl("get", "deployment", "nova-agent", "-n", "shared", check=False)


def _secret(bed: Bed, name: str) -> dict[str, bytes]:
    return certificates.files_of(bed.hosting.get("secret", name, "-n", "elotl"))


def _renewal(bed: Bed, api: Api, lines: list[str]) -> Renewal:
    """Return a renewal whose Nova API server is the one of the tests, which has certificates of its own."""
    return Renewal(api, "elotl", lambda _config: Api(bed.nova.config), lines.append)


def test_certificates_are_renewed_with_an_overlap(bed: Bed, nova: Cluster) -> None:
    """Issue 27, certs renew: interrupted after each write and repeated; at each point all present certificates are
    trusted, and pods restart once per stage."""
    bed.hosting.kubectl("scale", "deployments,statefulsets", "--all", "--replicas=1", "-n", "elotl")  # saves a minute
    before = {name: _secret(bed, name) for name in ("nova-cert", "etcd-cert", "nova-ca")}
    lines: list[str] = []
    interruptions = 0

    class Interrupted(Exception):
        pass

    async def renew(writes: int) -> bool:
        """Renew, and fail before the write with this number. Return True if the renewal was completed."""
        async with Api(bed.hosting.config) as api:
            left = [writes]
            for method in ("patch", "create", "delete"):
                original = getattr(api, method)

                async def guarded(*arguments: Any, original: Any = original, **options: Any) -> Any:
                    left[0] -= 1
                    if left[0] < 0:
                        raise Interrupted
                    return await original(*arguments, **options)
                setattr(api, method, guarded)
            try:
                await _renewal(bed, api, lines).renew()
            except Interrupted:
                return False
        return True

    # One write more per attempt, so that each write is the last of an attempt; completed writes are not repeated.
    while not asyncio.run(renew(1)):
        interruptions += 1
        assert interruptions < 40, lines
        _assert_trusted(bed)
    after = {name: _secret(bed, name) for name in before}
    assert interruptions > 10
    for name, file in (("nova-cert", "ca.crt"), ("nova-cert", "front-proxy-ca.crt"), ("etcd-cert", "ca.crt")):
        bundle = certificates.split_bundle(after[name][file])
        assert bundle[0] == certificates.split_bundle(before[name][file])[0]
        assert len(bundle) == 2
    Authority.load(after["nova-ca"]["ca.crt"], after["nova-ca"]["ca.key"])
    assert after["nova-ca"]["ca.crt"] != before["nova-ca"]["ca.crt"]
    assert after["nova-cert"]["sa.key"] == before["nova-cert"]["sa.key"], "tokens stay valid"
    new = after["nova-ca"]["ca.crt"]
    assert certificates.issued_by(after["nova-cert"]["apiserver.crt"], new)
    assert not certificates.issued_by(before["nova-cert"]["apiserver.crt"], new)
    assert "NotFound" in bed.hosting.kubectl("get", "secret", NEXT, "-n", "elotl", check=False)
    published = bed.nova.get("configmap", "nova-ca", "-n", "kube-public")["data"]["ca.crt"]
    assert published.encode() == after["nova-cert"]["ca.crt"]
    _finish(bed, nova, lines, new)


def _assert_trusted(bed: Bed) -> None:
    """Check that the stored certificates are issued by authorities in the stored lists."""
    control, etcd = _secret(bed, "nova-cert"), _secret(bed, "etcd-cert")
    for bundle, leaf in ((control["ca.crt"], control["apiserver.crt"]),
                         (control["ca.crt"], control["apiserver-client.crt"]),
                         (control["ca.crt"], _secret(bed, "nova-ca")["ca.crt"]),
                         (control["front-proxy-ca.crt"], control["front-proxy-client.crt"]),
                         (etcd["ca.crt"], control["apiserver-etcd-client.crt"]), (etcd["ca.crt"], etcd["server.crt"])):
        assert any(certificates.issued_by(leaf, authority) for authority in certificates.split_bundle(bundle))


def test_agents_follow_the_authorities_of_the_control_plane(
        bed: Bed, members: list[Cluster], tmp_path: pathlib.Path) -> None:
    """Issue 27, certs renew: an agent adopts the published authorities, confirms them, and renews; a stage waits for
    this confirmation. The stored authorities survive a restart, and a new bootstrap kubeconfig replaces them."""
    federation = Federation(bed.nova, members[2:3], tmp_path / "federation")
    name = members[2].name
    try:
        with federation:
            asyncio.run(_follow(bed, members[2]))
            bed.nova.kubectl("delete", "cluster", name)  # the scheduler drains it
    finally:
        bed.nova.kubectl("delete", "configmap", "nova-ca", "-n", "kube-public", "--ignore-not-found")
        members[2].kubectl("delete", "secret", "nova-agent-credentials", "-n", "elotl")


async def _follow(bed: Bed, member: Cluster) -> None:
    own, other = bed.nova.config.ca, Authority.create("kubernetes-ca").pem
    stored = {"data": certificates.secret("nova-cert", "", {"ca.crt": own + other})["data"]}
    signing = {"data": certificates.secret("nova-ca", "", {"ca.crt": own})["data"]}
    lines: list[str] = []
    async with Api(bed.hosting.config) as hosting, Api(member.config) as api:
        await hosting.patch("/api/v1/namespaces/elotl/secrets/nova-cert", stored)
        await hosting.patch("/api/v1/namespaces/elotl/secrets/nova-ca", signing)
        renewal = _renewal(bed, hosting, lines)
        with pytest.raises(Refused, match=f"do not trust the new authorities yet: {member.name}"):
            await renewal._wait_for_agents(0.0)
        bootstrap = bed.nova.config
        credentials = Credentials(api, "elotl", member.name, lambda: bootstrap)
        config = await credentials.obtain()
        async with Api(config) as nova:
            assert await credentials.refresh(config, nova) is config, "nothing is published yet"
            await hosting.patch("/api/v1/namespaces/elotl/secrets/nova-cert", {
                "data": certificates.secret("nova-cert", "", {"ca.crt": other})["data"]})
            await renewal._publish()
            with pytest.raises(ApiError, match="certificate verify failed"):
                await credentials.refresh(config, nova)
            assert (await credentials.obtain()).ca == own, "authorities that do not fit are not adopted"
            await hosting.patch("/api/v1/namespaces/elotl/secrets/nova-cert", stored)
            await renewal._publish()
            renewed = await credentials.refresh(config, nova)
            assert renewed.ca == own + other
            assert renewed.certificate != config.certificate
            assert await credentials.refresh(renewed, nova) is renewed
        await renewal._wait_for_agents(0.0)
        again = await Credentials(api, "elotl", member.name, lambda: bootstrap).obtain()
        assert (again.ca, again.certificate) == (own + other, renewed.certificate)
        missing = Credentials(api, "elotl", member.name, lambda: load([bed.home / "missing"]))
        assert msgspec.structs.replace(await missing.obtain(), context=again.context) == again
        replaced = msgspec.structs.replace(bootstrap, ca=own + other + own)
        assert (await Credentials(api, "elotl", member.name, lambda: replaced).obtain()).ca == replaced.ca


def _finish(bed: Bed, nova: Cluster, lines: list[str], new: bytes) -> None:
    """Run stage 3: refused while a cluster's agent has no new certificate."""
    nova.apply(_cluster("late", "True"))

    async def run(stage: str) -> None:
        async with Api(bed.hosting.config) as api:
            await getattr(_renewal(bed, api, lines), stage)()
    with pytest.raises(Refused, match="novactl certs renew --finish"):
        asyncio.run(run("renew"))
    with pytest.raises(Refused, match="previous authority: late"):
        asyncio.run(run("finish"))
    nova.kubectl("delete", "cluster", "late")
    for _attempt in range(2):
        asyncio.run(run("finish"))
    assert _secret(bed, "nova-cert")["ca.crt"] == new
    assert len(certificates.split_bundle(_secret(bed, "etcd-cert")["ca.crt"])) == 1
    _assert_trusted(bed)
    nova.kubectl("delete", "configmap", "nova-ca", "-n", "kube-public")  # agents of other tests read it
    template = bed.hosting.get("deployment", "apiserver", "-n", "elotl")["spec"]["template"]
    assert template["metadata"]["annotations"][DIGEST]


def test_install_and_uninstall_control_plane(bed: Bed) -> None:
    """Facts chapter 10: the printed lines. An installation that fails at its last step is completed by a second run,
    which keeps the certificates. The kubeconfig is stored for its owner only."""
    bed.hosting.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "second"},
                       "spec": {"capacity": {"storage": "50Gi"}, "accessModes": ["ReadWriteOnce"],
                                "hostPath": {"path": "/nonexistent/second"}}})
    command = ("install", "control-plane", "second", "--context=kind-cp", "--namespace=second", "--timeout=15")
    service = {"NOVA_API_PUBLIC_HOST_OVERRIDE": "127.0.0.1", "APISERVER_SERVICE_NODEPORT": "32222"}
    output, errors = bed.novactl(*command, code=1, environment=service)  # no API server is at this address
    assert output.splitlines() == [
        "Installing Nova Control Plane...", "Cluster name - second", "Creating namespace second in control plane",
        "Creating certificates", "Generating certificates", "Certificates successfully generated.",
        "Installing Kube API Server...", "Installing Nova Custom Resource Definitions..."], errors
    assert errors.startswith("novactl: ")
    assert errors.count("\n") == 1
    path = bed.home / ".nova/second/nova-kubeconfig"
    assert path.stat().st_mode & 0o777 == 0o600
    assert decode(path.read_bytes(), "kubeconfig").server == "https://127.0.0.1:32222"
    bed.hosting.kubectl("patch", "secret", "nova-cert", "-n", "second", "-p", json.dumps(_credentials(bed.nova.config)))
    with _relay(32222, int(bed.nova.config.server.rpartition(":")[2])):
        output, _errors = bed.novactl(*command, environment=service)
    assert output.splitlines() == [
        "Installing Nova Control Plane...", "Cluster name - second", "Creating namespace second in control plane",
        "Creating certificates", "Installing Kube API Server...", "Installing Nova Custom Resource Definitions...",
        "Nova Control Plane installed.", f"Kubeconfig: {path}"]
    assert decode(path.read_bytes(), "kubeconfig").ca == bed.nova.config.ca
    output, _errors = bed.novactl("uninstall", "control-plane", "second", "--context=kind-cp", "--namespace=second")
    assert output == "Nova Control Plane second uninstalled.\n"
    assert not path.exists()
    until(lambda: "NotFound" in bed.hosting.kubectl("get", "namespace", "second", check=False))


def test_uninstallation_deletes_nothing_in_a_namespace_without_a_control_plane(bed: Bed) -> None:
    bed.hosting.kubectl("create", "namespace", "foreign")
    bed.hosting.kubectl("create", "service", "clusterip", "etcd", "--tcp=2379", "-n", "foreign")
    _output, errors = bed.novactl("uninstall", "control-plane", "foreign", "--context=kind-cp",
                                  "--namespace=foreign", code=1)
    assert "Namespace foreign of" in errors
    assert errors.endswith(" has no Nova control plane.\n")
    assert bed.hosting.get("service", "etcd", "-n", "foreign")
    bed.hosting.kubectl("delete", "namespace", "foreign", "--wait=false")


def _credentials(config: Kubeconfig) -> dict[str, Any]:
    """Return a patch of the Secret nova-cert to the certificates of another control plane."""
    files = {"ca.crt": config.ca, "apiserver-client.crt": config.certificate, "apiserver-client.key": config.key}
    return {"data": certificates.secret("nova-cert", "", files)["data"]}


@contextlib.contextmanager
def _relay(port: int, target: int) -> Iterator[None]:
    """Relay a port of this machine to another one, as a node port does."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        start_relay(listener, lambda: socket.create_connection(("127.0.0.1", target), timeout=5))
        yield
        listener.shutdown(socket.SHUT_RDWR)
