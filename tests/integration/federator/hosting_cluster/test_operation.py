"""Operation of a control plane in pods of a hosting cluster: interrupted restorations, and renewal of certificates.

A hosting cluster of a single node and a workload cluster, described in hosting.py; the control plane has a replica of
each component. Takes about ten minutes: tools/run-tests.sh federator -k test_operation
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from nova.common.errors import Invalid
from nova.federator.local.binaries import Binaries
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster, deployment, until
from tests.integration.federator.hosting_cluster import hosting

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(2400)]

NAMESPACE = "nova-system"
_HOSTING, _WORKLOAD = hosting.CONTEXTS[:2]
_VOLUME = 1 << 30  # bytes of the volume of etcd
_AT_HOSTING = (f"--hosting-cluster-context={_HOSTING}", f"--namespace={NAMESPACE}")


class Operator:
    """The shell of an administrator of a control plane in pods. ``volume``: the directory of the volume of etcd."""

    def __init__(self, binaries: Binaries, started: list[Cluster], directory: pathlib.Path) -> None:
        self.hosting, self.workload = started
        self.directory, self.volume = directory, directory / "volume-0"
        (directory / "bin").mkdir()
        (directory / "bin/kubectl").symlink_to(binaries.path("kubectl"))
        contexts = directory / "contexts"
        contexts.write_text(clusters.merge({cluster.name: cluster.config for cluster in started}))
        self.kubeconfig = directory / ".nova/test/nova-kubeconfig"
        self.environment = {
            **os.environ, "HOME": str(directory), "PATH": f"{directory}/bin:{os.environ['PATH']}",
            "KUBECONFIG": f"{self.kubeconfig}:{contexts}"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-m", "nova.cli.federation.main", *arguments], text=True, bufsize=1,
                                env={**self.environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def novactl(self, *arguments: str, code: int | None = 0) -> str:
        """Run novactl and return its output, with errors. ``code``: the expected exit code, or None for any."""
        begin = time.monotonic()
        with self.start(*arguments) as process:
            output, _none = process.communicate(timeout=1200)
        print(f"[{time.monotonic() - begin:.1f} s] novactl {' '.join(arguments)}\n{output}")
        assert code is None or process.returncode == code, output
        return output

    def nova(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl in the control plane and return its output, with errors."""
        result = subprocess.run([self.directory / "bin/kubectl", "--context=nova", "--request-timeout=20s", *arguments],
                                env=self.environment, text=True, timeout=60, check=False, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
        assert result.returncode == 0 or not check, f"{arguments}: {result.stdout}"
        return result.stdout

    def ready(self, field: str = "status") -> str:
        """Return a field of the condition Ready of the workload cluster, or an error."""
        return self.nova("get", "cluster", _WORKLOAD, "-o",
                         f"jsonpath={{.status.conditions[?(@.type=='Ready')].{field}}}", check=False)

    def pods(self) -> set[str]:
        """Return the pods of the Deployment web and of the agent in the workload cluster, with their restarts."""
        items = self.workload.get("pods", "-A", "-l", "app=web")["items"]
        items += self.workload.get("pods", "-n", NAMESPACE, "-l", "component=nova-agent")["items"]
        return {f"{item['metadata']['uid']} {item['status']['containerStatuses'][0]['restartCount']}" for item in items
                if item["status"].get("containerStatuses")}

    def kill(self, line: str, delay: float, *arguments: str) -> None:
        """Run novactl and kill it some seconds after it has printed a line."""
        with self.start(*arguments) as process:
            assert process.stdout
            while not (text := process.stdout.readline()).startswith(line):
                assert text, f"novactl {' '.join(arguments)} ended before it printed {line}"
            time.sleep(delay)
            process.kill()


@pytest.fixture(scope="module")
def operator(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[Operator]:
    directory = cluster_directory / "operation"
    volume = directory / "volume-0"
    volume.mkdir(parents=True)
    # The volume has a file system of its own, which the nodes see because it exists before them.
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_VOLUME}", "tmpfs", volume], check=True)
    running: list[Cluster] = []
    try:
        try:
            running = hosting.start(directory, hosting.CONTEXTS[:2], nodes=1)
        except Invalid as error:
            pytest.skip(error.message)
        with hosting.load_balancer(running[0]):
            hosting.add_volumes(running[0], directory)
            operator = Operator(binaries, running, directory)
            operator.novactl("install", "control-plane", "test", f"--context={_HOSTING}", f"--namespace={NAMESPACE}",
                             "--timeout=600")
            operator.novactl("install", "agent", _WORKLOAD, f"--context={_WORKLOAD}", f"--namespace={NAMESPACE}")
            until(lambda: operator.ready() == "True", timeout=120)
            yield operator
    finally:
        clusters.remove(running)
        subprocess.run(["umount", "--lazy", volume], check=True)


def test_an_interrupted_restoration_can_be_repeated(operator: Operator, tmp_path: pathlib.Path) -> None:
    """novactl is killed at several points. The last attempt ends with the data of the backup, and with the data before
    the first attempt in the volume."""
    file = tmp_path / "nova.db"
    operator.nova("create", "configmap", "stored")
    operator.novactl("backup", str(file), *_AT_HOSTING)
    operator.nova("create", "configmap", "later")
    for line, delay in (("Stopping", 0.3), ("Restoring", 0.0), ("Restoring", 3.0), ("Restoring", 6.0),
                        ("Restoring", 9.0), ("Starting", 0.0)):
        operator.kill(line, delay, "restore", str(file), *_AT_HOSTING)
    assert "is restored" in operator.novactl("restore", str(file), *_AT_HOSTING)
    names = operator.nova("get", "configmaps", "-o", "name")
    assert "configmap/stored" in names
    assert "configmap/later" not in names
    assert "√" in operator.novactl("status", *_AT_HOSTING[:1], f"--hosting-cluster-nova-namespace={NAMESPACE}")
    assert "restore-etcd" not in operator.hosting.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name")
    folders = sorted(path.name for path in operator.volume.iterdir())
    assert folders[0] == "data"
    assert 1 <= len(folders[1:]) <= 3
    assert b"configmaps/default/later" in (operator.volume / folders[1] / "member/snap/db").read_bytes()
    until(lambda: operator.ready() == "True", timeout=120)


def test_a_full_volume_leaves_the_control_plane_as_it_was(operator: Operator, tmp_path: pathlib.Path) -> None:
    """The error names the cause; the command succeeds when there is space. The data are larger than the free space, in
    which the running etcd continues."""
    file, filler, content = tmp_path / "nova.db", operator.volume / "filler", tmp_path / "content"
    for number in range(24):
        content.write_bytes(os.urandom(700_000))
        operator.nova("create", "configmap", f"large-{number}", f"--from-file={content}")
    operator.novactl("backup", str(file), *_AT_HOSTING)
    operator.nova("create", "configmap", "after-the-backup")
    state = os.statvfs(operator.volume)
    assert file.stat().st_size > 16 << 20
    subprocess.run(["fallocate", "--length", str(state.f_bavail * state.f_frsize - (8 << 20)), filler], check=True)
    output = operator.novactl("restore", str(file), *_AT_HOSTING, code=1)
    assert "no space left on device" in output
    assert "runs with its previous data. Repeat the command" in output
    assert "after-the-backup" in operator.nova("get", "configmaps")
    assert not (operator.volume / "restored").exists()
    filler.unlink()
    operator.novactl("restore", str(file), *_AT_HOSTING)
    assert "after-the-backup" not in operator.nova("get", "configmaps")
    until(lambda: operator.ready() == "True", timeout=120)


def test_no_agent_loses_its_connection_while_certificates_are_renewed(operator: Operator) -> None:
    """Issue 27, certs renew, with real pods: the cluster stays ready and its pods run on, also if the command is killed
    in both stages and repeated."""
    web = deployment("web", 2, annotations={"nova.elotl.co/cluster": _WORKLOAD})
    subprocess.run([operator.directory / "bin/kubectl", "--context=nova", "apply", "-f", "-"], check=True, text=True,
                   input=json.dumps(web), env=operator.environment, timeout=60)
    until(lambda: operator.nova("get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}") == "2", 120)
    pods, transition = operator.pods(), operator.ready("lastTransitionTime")
    renew = ("certs", "renew", f"--context={_HOSTING}", f"--namespace={NAMESPACE}")
    for line, delay in (("Creating", 0.0), ("Adding", 2.0), ("Restarting API", 5.0), ("Waiting", 0.0),
                        ("Replacing", 1.0), ("Restarting API", 1.0)):
        operator.kill(line, delay, *renew)
    assert "Certificates renewed" in operator.novactl(*renew)
    assert "certificate" in operator.nova("get", "clusters", check=False), "kubeconfig files must be written again"
    operator.kubeconfig.write_text(operator.novactl("get", "kubeconfig", *renew[2:]))
    until(lambda: "no longer trusted" in operator.novactl(*renew, "--finish", code=None), 240, interval=5.0)
    assert (operator.ready(), operator.ready("lastTransitionTime")) == ("True", transition)
    operator.nova("scale", "deployment/web", "--replicas=3")
    until(lambda: len(operator.pods()) == 4 and pods < operator.pods(), timeout=120)
