"""``novactl up``: a federation on one machine (issue 27, done when 3), its repair, backup and removal (promise P11)."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from nova.federator.client.local import LocalFederation
from nova.federator.local.binaries import Binaries
from tests.integration.federator.clusters import Cluster, deployment, until

EXPECTED = """Checking status of Nova Control Plane Components
* API Server status... Running √
* Kube-controller-manager status... Running √
* ETCD status... Running √
* Nova scheduler status... Running √
Nova Control Plane is healthy √
Checking presence of Nova Custom Resource Definitions
* Cluster CRD presence... installed √
* Cluster kind-workload-1 connected and ready √
* Cluster kind-workload-2 connected and ready √
* SchedulePolicy CRD presence... installed √
* 0 SchedulePolicies defined ‼
please create at least one SchedulePolicy, otherwise Nova does not know where to run your workloads. SchedulePolicy \
spec: https://docs.elotl.co/nova/intro
* ScheduleGroup CRD presence... installed √
All Nova Custom Resource Definitions installed √
"""


class Local:
    """A federation that novactl started."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.novactl("up", "--demo", "2")
        self.federation = LocalFederation(directory)
        self.nova = Cluster(self.federation.nova)
        self.members = [Cluster(member) for member in self.federation.members]

    def novactl(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "nova.cli.federation.main", *arguments, f"--directory={self.directory}"]
        environment = {**os.environ, "KUBECONFIG": str(self.directory / "kubeconfig")}
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
        assert result.returncode == code, result.stderr
        return result.stdout + result.stderr

    def replicas(self) -> list[int]:
        """Return the available replicas of the Deployment web in each member."""
        result = []
        for member in self.members:
            items = member.get("deployment", "--field-selector=metadata.name=web")["items"]
            result.append(items[0].get("status", {}).get("availableReplicas", 0) if items else 0)
        return result


    def homes(self, name: str) -> list[bool]:
        """Return True for each member that has a Deployment."""
        return [bool(member.get("deployment", f"--field-selector=metadata.name={name}")["items"])
                for member in self.members]


@pytest.fixture(scope="module")
def local(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[Local]:
    local = Local(cluster_directory / "up")
    yield local
    if local.directory.exists():
        local.novactl("down", "--delete")


def web(**fields: Any) -> dict[str, Any]:
    return deployment("web", annotations={"nova.elotl.co/spread-onto": "kind-workload-1,kind-workload-2"}, **fields)


def test_status_is_all_good_and_each_cluster_has_a_context(local: Local) -> None:
    """Facts chapter 10: the lines of status."""
    assert local.novactl("status") == EXPECTED
    contexts = yaml.safe_load((local.directory / "kubeconfig").read_text())["contexts"]
    assert [context["name"] for context in contexts] == ["nova", "kind-workload-1", "kind-workload-2"]


def test_ended_processes_are_restarted_and_a_second_run_repairs(local: Local) -> None:
    local.nova.apply(web(replicas=4))
    until(lambda: local.replicas() == [2, 2])
    for processes, name in ((local.federation.processes, "nova-scheduler"),
                            (local.federation.processes, "nova-agent-kind-workload-1"),
                            (local.federation.nova.processes, "kube-apiserver")):
        assert processes.signal(name, signal.SIGKILL)
        until(lambda processes=processes, name=name: processes.record(name), 60)
    assert local.federation.processes.signal("supervisor", signal.SIGKILL)
    local.federation.processes.signal("nova-scheduler", signal.SIGKILL)  # unless it ended with the API server
    assert "× " not in local.novactl("up") + local.novactl("status")
    local.nova.kubectl("scale", "deployment/web", "--replicas=6")
    until(lambda: local.replicas() == [3, 3])


def test_a_lost_control_plane_is_restored_from_a_backup(local: Local, tmp_path: pathlib.Path) -> None:
    """Promise P11: clusters go on, backup and restore bring the control plane back, and agents reconnect by
    themselves."""
    moved = deployment("moved", annotations={"nova.elotl.co/cluster": "kind-workload-1"})
    local.nova.apply(web(replicas=4), moved)
    until(lambda: local.replicas() == [2, 2] and local.homes("moved") == [True, False])
    uids = [member.get("deployment", "web")["metadata"]["uid"] for member in local.members]
    file = tmp_path / "nova.db"
    local.novactl("backup", str(file))
    assert file.stat().st_mode & 0o077 == 0
    moved["metadata"]["annotations"]["nova.elotl.co/cluster"] = "kind-workload-2"
    local.nova.apply(moved, deployment("later", annotations={"nova.elotl.co/cluster": "kind-workload-1"}))
    until(lambda: local.homes("moved") == [False, True] and local.homes("later") == [True, False])
    local.nova.kubectl("delete", "deployment", "web")
    until(lambda: local.replicas() == [0, 0])
    local.novactl("restore", str(file))
    until(lambda: local.replicas() == [2, 2])
    until(lambda: local.homes("moved") == [True, False], 120)
    assert local.homes("later") == [True, False], "its object is unknown, and nothing is deleted without one"
    assert "× " not in local.novactl("status")
    assert [member.get("deployment", "web")["metadata"]["uid"] for member in local.members] != uids
    file.write_bytes(file.read_bytes()[:-1])
    assert "is not a complete backup" in local.novactl("restore", str(file), code=1)
    assert "× " not in local.novactl("status"), "the control plane was not stopped"


def test_down_keeps_objects_and_deletes_everything_on_request(local: Local) -> None:
    local.novactl("down")
    assert "Not running ×" in local.novactl("status", code=1)
    local.novactl("up")
    until(lambda: local.replicas() == [2, 2])
    local.novactl("down", "--delete")
    assert not local.directory.exists()
    assert "has no federation" in local.novactl("backup", "x", code=1)
