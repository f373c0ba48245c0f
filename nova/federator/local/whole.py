"""A cluster on this machine whose nodes run real pods, in a network namespace of its own. Needs root.

The namespace has the address 10.200.INDEX.2 and reaches the machine at 10.200.INDEX.1; pods are in 10.244.INDEX.0/24.
All nodes share the namespace, its address and one network of pods.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from nova.common import files
from nova.common.errors import Invalid, ReportedError
from nova.federator.api.objects import holds
from nova.federator.kube.client import Api, ApiError
from nova.federator.kube.config import Kubeconfig
from nova.federator.local.binaries import CONTROL_PLANE, NODE, Binaries
from nova.federator.local.cluster import ClusterOptions, LocalCluster, Part
from nova.federator.local.images import PAUSE, write_images
from nova.federator.local.pki import Authority
from nova.federator.local.processes import until

_COMMAND_TIMEOUT = 30.0  # timeout of a command, in seconds
_IMPORT_TIMEOUT = 300.0  # timeout of the import of images, in seconds
_POD_LOGS = pathlib.Path("/var/log/pods")
_CUT = (("raw", "PREROUTING", "-i"), ("mangle", "POSTROUTING", "-o"))  # iptables rules that drop packets of the machine


class _Node(NamedTuple):
    """A kubelet and a containerd, with a directory and a mount namespace. ``number``: 0 for the first node."""

    name: str
    directory: pathlib.Path
    number: int

    @property
    def socket(self) -> pathlib.Path:
        return self.directory / "containerd.sock"

    @property
    def mounts(self) -> pathlib.Path:
        """Return the file of the mount namespace."""
        return self.directory / "namespace/mnt"

    def part(self, program: str) -> str:
        """Return the name of the process of a program."""
        return f"{program}-{self.number + 1}" if self.number else program


class WholeCluster(LocalCluster):
    """A cluster that runs real pods. ``index``: 0 to 250, unique on the machine. ``nodes``: number of nodes."""

    def __init__(self, directory: pathlib.Path, name: str, index: int, options: ClusterOptions | None = None,
                 binaries: Binaries | None = None, nodes: int = 1) -> None:
        if not 0 <= index <= 250:
            raise Invalid("index must be between 0 and 250.")
        if os.geteuid() != 0:
            raise Invalid("A whole cluster needs root: it creates network namespaces and mounts.")
        options = options or ClusterOptions()
        self.namespace, self._link, self._index = f"nova-k8s-{index}", f"nova-k8s{index}", index
        self.address, self.gateway = f"10.200.{index}.2", f"10.200.{index}.1"
        super().__init__(directory, name, msgspec.structs.replace(
            options, nova=False, controllers=True, scheduler=True, nodes=None, address=self.address, port=6443,
            prefix=(*options.prefix, "nsenter", f"--net=/run/netns/{self.namespace}")),
            binaries or Binaries(programs=(*CONTROL_PLANE, *NODE)))
        self._nodes = [_Node(f"{name}-node{f'-{number + 1}' if number else ''}",
                             self.directory / f"node-{number + 1}" if number else self.directory, number)
                       for number in range(nodes)]

    async def import_images(self, archive: pathlib.Path) -> None:
        """Add the images of a Docker or OCI archive to all nodes. Raises ReportedError."""
        for node in self._nodes:
            await self._ctr(node, "images", "import", str(archive), timeout=_IMPORT_TIMEOUT)

    async def cut(self) -> None:
        """Drop all packets between the namespace and the machine. Connections inside the cluster continue."""
        for table, chain, direction in _CUT:
            await self._iptables("-t", table, "-I", chain, direction, "eth0", "-j", "DROP")

    async def heal(self) -> None:
        for table, chain, direction in _CUT:
            await self._iptables("-t", table, "-D", chain, direction, "eth0", "-j", "DROP")

    async def stop(self, kill: bool = False) -> None:
        """Stop pods, node and cluster, and remove mounts, links and the namespace."""
        if not self.directory.exists():
            return
        await self.processes.stop(["supervisor"])
        await self.processes.stop(("kube-proxy", *(node.part("kubelet") for node in self._nodes)), kill=kill)
        await self._remove_containers()
        await self.processes.stop([node.part("containerd") for node in self._nodes])
        await super().stop(kill)
        await self._clean()

    async def _remove_containers(self) -> None:
        for node in (node for node in self._nodes if self.processes.record(node.part("containerd"))):
            with contextlib.suppress(ReportedError):
                for task in (await self._ctr(node, "task", "ls", "-q")).split():
                    with contextlib.suppress(ReportedError):
                        await self._ctr(node, "task", "rm", "-f", task)
                for container in (await self._ctr(node, "container", "ls", "-q")).split():
                    with contextlib.suppress(ReportedError):
                        await self._ctr(node, "container", "rm", container)

    async def _clean(self) -> None:
        directory = f"{self.directory.resolve()}/"
        mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((mount for mount in mounts if mount.startswith(directory)), reverse=True):
            with contextlib.suppress(ReportedError):
                await _run("umount", "-l", mount)
        if pathlib.Path(f"/run/netns/{self.namespace}").exists():
            await _run("ip", "netns", "delete", self.namespace)
        if pathlib.Path(f"/sys/class/net/{self._link}").exists():
            with contextlib.suppress(ReportedError):  # the link may disappear with the namespace meanwhile
                await _run("ip", "link", "delete", self._link)

    async def _undo(self, started: list[str], new: bool) -> None:
        if new:
            await self._remove_containers()
        await super()._undo(started, new)
        if new:
            await self._clean()

    async def _prepare(self) -> None:
        """Create the network namespace and the configuration files of the nodes."""
        if not pathlib.Path(f"/run/netns/{self.namespace}").exists():
            await _run("ip", "netns", "add", self.namespace)
        if not pathlib.Path(f"/sys/class/net/{self._link}").exists():
            await _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns",
                       self.namespace)
            await _run("ip", "address", "add", f"{self.gateway}/30", "dev", self._link)
            await _run("ip", "link", "set", self._link, "up")
            for command in (("address", "add", f"{self.address}/30", "dev", "eth0"), ("link", "set", "eth0", "up"),
                            ("link", "set", "lo", "up"), ("route", "add", "default", "via", self.gateway)):
                await _run("ip", "-netns", self.namespace, *command)
            await self._inside("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.route_localnet=1")
        (self.directory / "cni").mkdir(mode=0o700, exist_ok=True)
        files.replace(self.directory / "cni/10-bridge.conflist", json.dumps(self._network_configuration()))
        for node in self._nodes:
            (node.directory / "kubelet").mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(node.directory / "containerd.toml", self._containerd_configuration(node))
            files.replace(node.directory / "kubelet.json", json.dumps(self._kubelet_configuration(node)))
            if not os.path.ismount(node.mounts):
                await self._isolate(node)
        archive = self.binaries.cache / "images-1.tar"
        if not archive.exists():
            write_images(pathlib.Path(self.binaries.path("busybox")), archive)

    async def _isolate(self, node: _Node) -> None:
        """Create the mount namespace of a node with its own pod logs: a kubelet deletes logs of pods of other nodes."""
        logs, place = node.directory / "logs", node.mounts.parent
        for directory in (logs, place, _POD_LOGS):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        await _run("mount", "--bind", str(place), str(place))
        await _run("mount", "--make-private", str(place))  # required for a file of a mount namespace
        node.mounts.touch()
        await _run("unshare", f"--mount={node.mounts}", "mount", "--bind", str(logs), str(_POD_LOGS))

    def _write_credentials(self) -> None:
        super()._write_credentials()
        authority = Authority(self.pki, "ca", "")
        for node in self._nodes:
            authority.issue(node.part("kubelet"), f"system:node:{node.name}", "system:nodes",
                            hosts=(self.address, node.name))
        authority.issue("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        authority.issue("kube-proxy", "system:kube-proxy")
        for name in ("kube-proxy", *(node.part("kubelet") for node in self._nodes)):
            certificate, key = ((self.pki / f"{name}.{kind}").read_bytes() for kind in ("crt", "key"))
            login = Kubeconfig(server=self.config.server, ca=authority.pem, certificate=certificate, key=key,
                               context=self.name)
            files.replace(self.directory / f"{name}.kubeconfig", login.render(name))

    async def _start_others(self, parts: Mapping[str, Part], started: list[str]) -> None:
        later = {"kube-proxy", *(node.part(program) for node in self._nodes for program in ("containerd", "kubelet"))}
        await super()._start_others({name: parts[name] for name in parts.keys() - later}, started)
        for node in self._nodes:
            name = node.part("containerd")
            await self._start_part(name, parts[name], started)
            self._waiting_for = f"containerd does not respond; log: {self.processes.log(name)}"
            await until(node.socket.exists, _COMMAND_TIMEOUT)
        await self.import_images(self.binaries.cache / "images-1.tar")
        async with Api(self.config) as api:
            with contextlib.suppress(ApiError):  # exists
                await api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
                    "metadata": {"name": "nodes"}, "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"},
                    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}]})
            for name in (*(node.part("kubelet") for node in self._nodes), "kube-proxy"):
                await self._start_part(name, parts[name], started)
            for node in self._nodes:
                self._waiting_for = f"Node {node.name} is not ready; log: {self.processes.log(node.part('kubelet'))}"
                while not await _ready(api, node.name):
                    self._check_running(tuple(later))
                    await asyncio.sleep(0.2)

    def _part_names(self) -> list[str]:
        return [*super()._part_names(), "dns", "kube-proxy",
                *(node.part(program) for node in self._nodes for program in ("kubelet", "containerd"))]

    def _parts(self) -> dict[str, Part]:
        path = {"PATH": f"{self.binaries.directory}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"}
        program = self.binaries.path
        parts = {**super()._parts(), "dns": Part((
            sys.executable, "-m", "nova.federator.local.dns", f"--kubeconfig={self.kubeconfig}",
            f"--address={self.address}"))}
        for node in self._nodes:
            name, inside = node.part("kubelet"), ("nsenter", f"--mount={node.mounts}")
            parts[node.part("containerd")] = Part((
                *inside, program("containerd"), "-c", str(node.directory / "containerd.toml")), path)
            parts[name] = Part((
                *inside, program("kubelet"), f"--config={node.directory}/kubelet.json", "--container-runtime=remote",
                f"--kubeconfig={self.directory}/{name}.kubeconfig", f"--hostname-override={node.name}",
                f"--container-runtime-endpoint=unix://{node.socket}", f"--node-ip={self.address}",
                f"--root-dir={node.directory}/kubelet", f"--cert-dir={self.pki}"), path)
        parts["kube-proxy"] = Part((
            program("kube-proxy"), f"--kubeconfig={self.directory}/kube-proxy.kubeconfig",
            "--proxy-mode=iptables", f"--cluster-cidr=10.244.{self._index}.0/24",
            f"--hostname-override={self._nodes[0].name}", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
            "--metrics-bind-address=127.0.0.1:10249"), path)
        return parts

    def _api_server(self) -> tuple[str, ...]:
        client = self.pki / "apiserver-kubelet-client"
        return (*super()._api_server(), f"--kubelet-client-certificate={client}.crt",
                f"--kubelet-client-key={client}.key", "--kubelet-preferred-address-types=InternalIP")

    def _advertising(self) -> tuple[str, ...]:
        return (f"--advertise-address={self.address}",)

    def _containerd_configuration(self, node: _Node) -> str:
        plugin, directory = 'plugins."io.containerd.grpc.v1.cri"', node.directory
        return f"""version = 2
root = "{directory}/containerd"
state = "{directory}/containerd-state"
[grpc]
  address = "{node.socket}"
[{plugin}]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[{plugin}.containerd]
  snapshotter = "overlayfs"
[{plugin}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{plugin}.containerd.runtimes.runc.options]
  BinaryName = "{self.binaries.path("runc")}"
  SystemdCgroup = false
[{plugin}.cni]
  bin_dir = "{self.binaries.cache}/cni"
  conf_dir = "{self.directory}/cni"
"""

    def _network_configuration(self) -> dict[str, object]:
        addresses = {"type": "host-local", "dataDir": f"{self.directory}/cni-addresses",
                     "ranges": [[{"subnet": f"10.244.{self._index}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": True, "hairpinMode": True,
                  "ipam": addresses}
        return {"cniVersion": "0.4.0", "name": self.name,
                "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}

    def _kubelet_configuration(self, node: _Node) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": f"{self.pki}/ca.crt"}},
            "authorization": {"mode": "Webhook"}, "address": self.address, "port": 10250 + node.number,
            "readOnlyPort": 0, "healthzPort": 0, "tlsCertFile": f"{self.pki}/{node.part('kubelet')}.crt",
            "tlsPrivateKeyFile": f"{self.pki}/{node.part('kubelet')}.key",
            "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failSwapOn": False,
            "resolvConf": "/etc/resolv.conf", "imageGCHighThresholdPercent": 100, "nodeStatusUpdateFrequency": "2s",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "maxPods": 100, "containerLogMaxSize": "1Mi", "clusterDomain": "cluster.local",
            "clusterDNS": [self.address]}

    async def _ctr(self, node: _Node, *arguments: str, timeout: float = _COMMAND_TIMEOUT) -> str:
        return await _run(self.binaries.path("ctr"), "--address", str(node.socket), "--namespace", "k8s.io",
                          *arguments, path=str(self.binaries.directory), timeout=timeout)

    async def _inside(self, *command: str) -> str:
        return await _run("nsenter", f"--net=/run/netns/{self.namespace}", *command)

    async def _iptables(self, *arguments: str) -> None:
        await self._inside("iptables", "-w", *arguments)


async def _ready(api: Api, name: str) -> bool:
    try:
        node = await api.get(f"/api/v1/nodes/{name}")
    except ApiError:
        return False
    return holds(node.get("status"), "Ready")


async def _run(*command: str, path: str = "", timeout: float = _COMMAND_TIMEOUT) -> str:
    """Run a command and return its output. Raises ReportedError if the command fails or exceeds ``timeout`` seconds."""
    environment = {**os.environ, **({"PATH": f"{path}:{os.environ.get('PATH', '')}"} if path else {})}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(timeout):
            output, errors = await process.communicate()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if isinstance(error, TimeoutError):
            raise ReportedError(f"{' '.join(command)} did not end within {timeout:.0f} s.") from None
        raise
    if process.returncode:
        raise ReportedError(f"{' '.join(command)} failed: {errors.decode(errors='replace').strip()}")
    return output.decode(errors="replace")
