"""Execution of both installations of doc/federator.md, command by command (issue 27, facts chapter 8).

Clusters with real pods, described in hosting.py. Takes about ten minutes: tools/run-tests.sh federator -k test_guide
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from nova.common.errors import Invalid
from nova.federator.client.manifests import INSTALL
from nova.federator.local.binaries import Binaries
from nova.federator.local.whole import WholeCluster
from tests.integration.federator import clusters
from tests.integration.federator.clusters import Cluster, until
from tests.integration.federator.hosting_cluster import hosting
from tests.paths import ROOT

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(2400)]

# Parts of the document that the test replaces, because they would change this machine or need the internet.
_REPLACED = {"pip install 'nova[federator]'": "true",
             "sudo novactl kubectl-install": "novactl kubectl-install --directory ../bin"}
_APPLICATION = {"image: busybox:1.36": "image: lab.local/web:1"}  # a copy of busybox
# Parts of printed output that differ in each installation.
_VARIABLE = (r"\(git: \w+\) built: \d+", r"Hello from web-\w+-\w+", r"\b\d+[smh]\w*$", r"1\.\d+ +workload-\d *")
_PATIENCE = 90.0  # seconds until a command prints the output of the document
_HOST = "nova.public.svc.cluster.local"  # a name of the hosting cluster that pods and the user resolve
_NAMESPACES = ("elotl", "nova-system")
# A user's shell in which the names of a file are added to those of the machine.
_NAMES = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')


class Step(NamedTuple):
    """Commands of the document. ``output``: what it prints for a single command, or None."""

    command: str
    output: str | None


def steps(title: str) -> list[Step]:
    """Return the commands of a section in their order."""
    section = (ROOT / "doc/federator.md").read_text().partition(f"\n## {title}\n")[2]
    result: list[Step] = []
    for block in re.findall(r"^```\n(.*?)^```$", section.partition("\n## ")[0], re.M | re.S):
        if not block.startswith("$ "):
            result.append(Step(block, None))
            continue
        for text in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _newline, output = text.partition("\n")
            result.append(Step(command, output or None))
    assert result
    return result


class Guide:
    """The shell of a user who follows the document. Variables remain from one step to the next."""

    def __init__(self, binaries: Binaries, started: list[Cluster], directory: pathlib.Path) -> None:
        self.directory, self._state = directory / "nova", directory / "state"
        self.directory.mkdir()
        shutil.copytree(INSTALL, self.directory / "install")
        sample = self.directory / "install/samples/web.yaml"
        for text, other in _APPLICATION.items():
            assert text in sample.read_text()
            sample.write_text(sample.read_text().replace(text, other))
        programs = directory / "bin"
        programs.mkdir()
        (programs / "kubectl").symlink_to(binaries.path("kubectl"))
        (programs / "novactl").symlink_to(pathlib.Path(sys.executable).with_name("novactl"))
        (directory / ".kube").mkdir()
        (directory / ".kube/config").write_text(clusters.merge({cluster.name: cluster.config for cluster in started}))
        self._environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        self._environment |= {"HOME": str(directory), "PATH": f"{programs}:{os.environ['PATH']}"}
        self._state.write_text("")
        self._hosts = directory / "hosts"
        self._hosts.write_text(pathlib.Path("/etc/hosts").read_text())

    def run(self, command: str, check: bool = True) -> str:
        """Run commands and return their output. Raises AssertionError if a command fails, unless ``check`` is False."""
        begin = time.monotonic()
        script = f'set -aeo pipefail; . "{self._state}"; {command}\nexport -p > "{self._state}"'
        result = subprocess.run([*_NAMES, self._hosts, "bash", "-c", script], cwd=self.directory, text=True,
                                env=self._environment, check=False, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=1500)
        print(f"[{time.monotonic() - begin:.1f} s] {command}\n{result.stdout}")
        assert result.returncode == 0 or not check, f"{command}\n{result.stdout}"
        return result.stdout

    def follow(self, title: str, changes: Mapping[str, str] | None = None) -> None:
        """Run all commands of a section."""
        self.take(steps(title), changes)

    def take(self, commands: Sequence[Step], changes: Mapping[str, str] | None = None) -> None:
        """Run commands. ``changes``: patterns of text, and other text, by which a user adapts them."""
        for step in commands:
            for text, other in _REPLACED.items():
                step = step._replace(command=step.command.replace(text, other))
            for pattern, other in (changes or {}).items():
                step = step._replace(command=re.sub(pattern, other, step.command, flags=re.M))
            self._take(step)

    def name_hosting_cluster(self, started: list[Cluster]) -> None:
        """Give the hosting cluster the name _HOST, for the user by a file and in other clusters by a Service."""
        assert isinstance(started[0].local, WholeCluster)
        address, (service, namespace) = started[0].local.address, _HOST.split(".")[:2]
        with self._hosts.open("a") as file:
            file.write(f"{address} {_HOST}\n")
        metadata = {"name": service, "namespace": namespace}
        for cluster in started[1:]:
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
                          {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None"}},
                          {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
                           "subsets": [{"addresses": [{"ip": address}]}]})

    def _take(self, step: Step) -> None:
        """Run a step. The document does not say how long a change takes, so its output is awaited."""
        deadline = time.monotonic() + _PATIENCE
        if step.output is None:
            self.run(step.command)
            return
        while _constant(output := self.run(step.command, check=False)) != _constant(step.output):
            assert time.monotonic() < deadline, f"{step.command}\nexpected:\n{step.output}printed:\n{output}"
            time.sleep(2)


def _constant(output: str) -> str:
    for pattern in _VARIABLE:
        output = re.sub(pattern, "…", output, flags=re.M)
    return re.sub(r" +", " ", output)


@pytest.fixture(scope="module")
def started(binaries: Binaries, cluster_directory: pathlib.Path) -> Iterator[list[Cluster]]:
    directory = cluster_directory / "guide"
    directory.mkdir()
    try:
        running = hosting.start(directory)
    except Invalid as error:
        pytest.skip(error.message)
    with hosting.load_balancer(running[0]):
        yield running
    clusters.remove(running)


@pytest.fixture
def guide(binaries: Binaries, started: list[Cluster], tmp_path: pathlib.Path) -> Iterator[Guide]:
    """Yield a user's shell. Afterwards nothing of Nova may be left in any cluster."""
    hosting.add_volumes(started[0], tmp_path)
    yield Guide(binaries, started, tmp_path)
    for cluster in started:
        until(lambda cluster=cluster: not {f"namespace/{name}" for name in _NAMESPACES}.intersection(
            cluster.kubectl("get", "namespaces", "-o", "name").split()))
        assert "nova" not in cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
        cluster.kubectl("delete", "persistentvolumes", "--all")


def test_highly_available_installation(guide: Guide) -> None:
    for text in _REPLACED:
        assert sum(text in step.command for step in steps("Highly available installation")) == 1, text
    guide.follow("Highly available installation")


def test_another_namespace_a_host_name_and_a_node_port(guide: Guide, started: list[Cluster]) -> None:
    """Commands that take a namespace or the address of the API server work with other ones. Between installation and
    uninstallation, the optional components are added."""
    guide.name_hosting_cluster(started)
    guide.follow("No load balancer", {"nova.example.com": _HOST})
    changes = {"INSTALL_NAMESPACE=elotl": f"INSTALL_NAMESPACE={_NAMESPACES[1]}",
               r"^.*\.status\.loadBalancer.*\n": ""}
    installation = steps("Highly available installation")
    end = next(number for number, step in enumerate(installation) if "kubectl nova backup" in step.command)
    guide.take(installation[:end], changes)
    guide.follow("Alerts and standby in the hosting cluster")
    check_components(guide)
    guide.take(installation[end:], changes)


def check_components(guide: Guide) -> None:
    """An alert from a pod of the hosting cluster arrives in the control plane, and the helper can be executed."""
    alert = json.dumps({"alerts": [{"labels": {"alertname": "Test", "app": "database"}}]})
    sender = ("kubectl --context=kind-cp run sender --image=lab.local/web:1 --restart=Never --rm -i -q --command --"
              f" wget -qO- --header=\"Authorization: Bearer TOKEN\" --post-data='{alert}'"
              " http://nova-alerts.${INSTALL_NAMESPACE}.svc.cluster.local:9099/alerts")
    assert "401" in guide.run(sender, check=False)
    guide.run("token=$(kubectl --context=kind-cp get secret nova-alerts -n ${INSTALL_NAMESPACE}"
              " -o jsonpath='{.data.token}' | base64 -d)")
    assert json.loads(guide.run(sender.replace("TOKEN", "${token}"))) == {"received": 1, "created": 1}
    labels = guide.run("kubectl --context=nova get receivedalerts -o jsonpath='{.items[*].spec.labels}'")
    assert json.loads(labels) == {"alertname": "Test", "app": "database"}
    guide.run("address=$(kubectl --context=kind-workload-1 get pods -n ${INSTALL_NAMESPACE} -l component=nova-agent"
              " -o jsonpath='{.items[0].status.podIP}')")
    reader = ("kubectl --context=kind-workload-1 run reader --image=lab.local/web:1 --restart=Never --rm -i -q"
              " --command -- wget -qO- ${address}:9101/metrics")
    assert "nova_federator_agent_heartbeat_age_seconds" in guide.run(reader)
    helper = ("kubectl --context=kind-cp exec -n ${INSTALL_NAMESPACE} deployment/nova-scheduler --"
              " sh -c '$NOVA_STANDBY_HELPER suspend west'")
    assert "this helper cannot suspend the cluster west" in guide.run(helper, check=False)


def test_short_installation(guide: Guide) -> None:
    guide.run("novactl kubectl-install --directory ../bin")
    guide.follow("Short installation")
