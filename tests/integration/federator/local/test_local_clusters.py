"""Clusters on this machine behave as Kubernetes, as far as tests and novactl up rely on it; start, stop, repair."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from nova.common.errors import Refused, ReportedError
from nova.federator.local.binaries import Binaries
from nova.federator.local.cluster import ClusterOptions, LocalCluster
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster, deployment, job, until

BARE = ClusterOptions(fsync=False, small=True, prefix=clusters.END_WITH_TESTS)


def test_deployment_of_three_becomes_available_on_a_light_member(members: list[Cluster]) -> None:
    """Facts, chapter 1: the workload cluster's own controllers create ReplicaSets and pods."""
    members[0].apply(deployment("three", 3))
    members[0].kubectl("rollout", "status", "deployment/three", "--timeout=60s", timeout=90)
    status = members[0].get("deployment", "three")["status"]
    assert (status["replicas"], status["availableReplicas"]) == (3, 3)
    pods = members[0].get("pods", "-l", "app=three")["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert len({pod["status"]["podIP"] for pod in pods}) == 3
    assert {pod["spec"]["nodeName"] for pod in pods} <= {"fake-0", "fake-1"}


def test_jobs_complete_or_fail_by_the_exit_code_of_their_pod(members: list[Cluster]) -> None:
    members[1].apply(job("good"), job("bad", pod_annotations={"lab/exit-code": "3"}))
    members[1].kubectl("wait", "--for=condition=complete", "job/good", "--timeout=60s", timeout=90)
    members[1].kubectl("wait", "--for=condition=failed", "job/bad", "--timeout=60s", timeout=90)
    bad, = members[1].get("pods", "-l", "job-name=bad")["items"]
    assert bad["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_deletion_in_the_foreground_ends_after_all_pods(members: list[Cluster]) -> None:
    members[0].apply(deployment("deleted", 2))
    members[0].kubectl("rollout", "status", "deployment/deleted", "--timeout=60s", timeout=90)
    members[0].kubectl("delete", "deployment", "deleted", "--cascade=foreground", "--timeout=60s", timeout=90)
    assert members[0].get("pods,replicasets", "-l", "app=deleted")["items"] == []


def test_annotations_delay_pods_and_keep_them_from_being_ready(members: list[Cluster]) -> None:
    members[2].apply(deployment("late", pod_annotations={"lab/start-delay": "3600"}),
                     deployment("never", pod_annotations={"lab/never-ready": "true"}))
    until(lambda: members[2].get("pods", "-l", "app=never")["items"][0]["status"]["phase"] == "Running"
          if members[2].get("pods", "-l", "app=never")["items"] else None)
    assert "availableReplicas" not in members[2].get("deployment", "never")["status"]
    late, = members[2].get("pods", "-l", "app=late")["items"]
    assert late["status"]["phase"] == "Pending"
    members[2].kubectl("delete", "deployment", "late", "never")


def test_pods_that_no_node_can_hold_stay_pending(members: list[Cluster]) -> None:
    """The real scheduler counts the requests against the size of the fake nodes."""
    members[2].apply(deployment("large", cpu="9"))
    until(lambda: any(condition.get("reason") == "Unschedulable" for pod in
                      members[2].get("pods", "-l", "app=large")["items"]
                      for condition in pod["status"].get("conditions", ())))
    members[2].kubectl("delete", "deployment", "large")


def test_a_cut_cluster_answers_nobody_and_continues_after_healing(members: list[Cluster]) -> None:
    members[0].cut()
    output = members[0].kubectl("get", "--raw=/version", "--request-timeout=2s", check=False)
    assert re.search(r"[Tt]imeout|deadline exceeded", output)
    assert "1.20" in members[1].kubectl("get", "--raw=/version")
    members[0].heal()
    assert "1.20" in members[0].kubectl("get", "--raw=/version")


def test_control_plane_creates_no_replica_sets_and_serves_the_custom_resources(control_plane: Cluster) -> None:
    """Facts, chapter 1: no pods run in the control plane; ServiceAccount admission is off."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "template"},
           "spec": {"containers": [{"name": "c", "image": "i"}]}}
    control_plane.apply(deployment("inert", 2), pod)
    assert "serviceAccountName" not in control_plane.get("pod", "template")["spec"]
    control_plane.kubectl("create", "namespace", "deleted")
    control_plane.kubectl("delete", "namespace", "deleted", "--timeout=60s", timeout=90)  # by the namespace controller
    assert control_plane.get("replicasets")["items"] == []
    control_plane.kubectl("delete", "deployment/inert", "pod/template", "--grace-period=0", "--force")
    assert [path for path in clusters.CRDS if path.exists()] == [] or "schedulepolicies" in control_plane.kubectl(
        "api-resources", "--api-group=policy.elotl.co")


def test_control_plane_accepts_bootstrap_tokens(control_plane: Cluster) -> None:
    """Facts, chapter 8: bootstrap tokens are on."""
    control_plane.apply({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
                         "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
                         "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
                                        "usage-bootstrap-authentication": "true"}})
    config = control_plane.config
    anonymous = control_plane.local.directory / "anonymous"
    anonymous.write_text(type(config)(server=config.server, ca=config.ca, token="abcdef.0123456789abcdef").render())
    until(lambda: 'User "system:bootstrap:abcdef" cannot list' in control_plane.kubectl(
        f"--kubeconfig={anonymous}", "get", "pods", check=False))


def test_resources_of_the_parts_are_measured(members: list[Cluster], control_plane: Cluster,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for cluster in (control_plane, members[0]):
            usage = cluster.local.usage()
            assert all(part.memory_bytes > 0 for part in usage.values())
            print(f"\n{cluster.name}: ", ", ".join(f"{name} {part.memory_bytes >> 20} MB {part.cpu_seconds:.1f} s CPU"
                                                   for name, part in usage.items()))
    assert members[0].local.usage().keys() == {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
                                               "fake-nodes"}
    assert control_plane.local.usage().keys() == {"etcd", "kube-apiserver", "kube-controller-manager"}


@pytest.fixture(scope="module")
def bare(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[Cluster]:
    """Yield a cluster of etcd and API server alone, with an object."""
    cluster, = clusters.start([LocalCluster(cluster_directory / "bare", "bare", BARE)])
    cluster.kubectl("create", "configmap", "data")
    yield cluster
    clusters.remove([cluster])


def pids(cluster: Cluster) -> dict[str, int]:
    processes = cluster.local.processes
    return {name: record.pid for name in processes.names() if (record := processes.record(name))}


def test_second_start_leaves_running_parts_alone_and_starts_missing_parts(bare: Cluster) -> None:
    """A start after a crash that ended the API server only, by another object as in a new process."""
    before = pids(bare)
    bare.kill("kube-apiserver")
    server = bare.config.server
    asyncio.run(LocalCluster(bare.local.directory, "bare", BARE).start(180))
    after = pids(bare)
    assert after["etcd"] == before["etcd"]
    assert after["kube-apiserver"] != before["kube-apiserver"]
    assert bare.config.server == server
    bare.kubectl("get", "configmap", "data")
    asyncio.run(LocalCluster(bare.local.directory, "bare", BARE).start(60))
    assert pids(bare) == after


def test_start_replaces_a_process_that_a_crash_left_unrecorded(bare: Cluster) -> None:
    """The record of etcd is lost, while the process holds its port and data."""
    before = pids(bare)
    bare.local.processes.forget("etcd")
    asyncio.run(LocalCluster(bare.local.directory, "bare", BARE).start(180))
    assert not pathlib.Path(f"/proc/{before['etcd']}").exists()
    bare.kubectl("get", "configmap", "data")


def test_stop_ends_all_processes_and_the_next_start_has_all_objects(bare: Cluster) -> None:
    before = pids(bare)
    asyncio.run(bare.local.stop())
    assert pids(bare) == {}
    assert not [pid for pid in before.values() if pathlib.Path(f"/proc/{pid}").exists()]
    asyncio.run(bare.local.start(180))
    bare.kubectl("get", "configmap", "data")


def test_supervision_restarts_a_part_that_ended(bare: Cluster) -> None:
    before = pids(bare)
    loop = asyncio.new_event_loop()
    task = loop.create_task(bare.local.supervise())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        bare.kill("kube-apiserver")
        until(lambda: pids(bare).get("kube-apiserver", before["kube-apiserver"]) != before["kube-apiserver"])
        until(lambda: bare.kubectl("get", "--raw=/readyz", check=False) == "ok")
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
    assert "supervisor" not in bare.local.processes.names()


def test_failed_start_leaves_nothing_behind(binaries: Binaries, tmp_path: pathlib.Path) -> None:
    """The port of the API server is in use. The error has its last output."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = ClusterOptions(fsync=False, small=True, port=listener.getsockname()[1], prefix=BARE.prefix)
        local = LocalCluster(tmp_path / "failed", "failed", options)
        with pytest.raises(ReportedError, match=r"(?s)kube-apiserver .*failed ended .*address already in use"):
            asyncio.run(local.start(180))
    assert not (tmp_path / "failed").exists()
    assert processes_with(str(tmp_path)) == []


def test_cancelled_start_leaves_nothing_behind(binaries: Binaries, tmp_path: pathlib.Path) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(LocalCluster(tmp_path / "cancelled", "cancelled", BARE).start(60))
        while not (tmp_path / "cancelled/run/kube-apiserver.json").exists():
            await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="Another process starts"):
            await LocalCluster(tmp_path / "cancelled", "cancelled", BARE).start(60)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    asyncio.run(cancel())
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


def processes_with(text: str) -> list[str]:
    """Return the command lines of running processes that contain the text."""
    commands = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [command for command in commands if text in command]


def test_missing_programs_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ReportedError, match=r"has no Kubernetes programs of recipe \d+ \(missing: etcd,.*build\.sh"):
        Binaries(tmp_path)


def test_records_hold_command_and_start_time(bare: Cluster) -> None:
    record = json.loads((bare.local.directory / "run/etcd.json").read_text())
    assert record["started"] > 0
    assert record["command"][0].endswith("/etcd")
