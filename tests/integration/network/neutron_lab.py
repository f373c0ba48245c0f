"""A real Neutron (ML2/OVN) for real compute hosts: its API and OVN on this machine, Open vSwitch on each host.

Neutron is not a requirement of Nova: NOVA_TEST_NEUTRON names a virtual environment with Neutron, uWSGI and PyMySQL. OVN
and Open vSwitch are those of the system. Without Keystone, all clients are administrators, and a policy gives them the
rights of the role service. Networks are VLANs, which a cable between two hosts connects.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import requests

from tests.integration.hosts.two_hosts import RealHost
from tests.integration.processes import Process, eventually, free_port

_VENV = os.environ.get("NOVA_TEST_NEUTRON", "")
_TOOLS = ("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovn-northd", "ovn-controller")
_PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
_missing = [tool for tool in _TOOLS if not shutil.which(tool, path=_PATH)]
needs_neutron = pytest.mark.skipif(
    bool(_missing) or not (pathlib.Path(_VENV) / "bin/neutron-db-manage").exists() or not _VENV,
    reason=f"needs {', '.join(_missing)}" if _missing else "NOVA_TEST_NEUTRON names no environment with Neutron")
_START = 120.0

_NEUTRON = """\
[DEFAULT]
auth_strategy = noauth
core_plugin = ml2
api_paste_config = {venv}/etc/neutron/api-paste.ini
service_plugins = ovn-router
transport_url = fake:/
dhcp_agent_notification = False
rpc_workers = 0
api_workers = 1
state_path = {directory}
send_events_interval = 1
notify_nova_on_port_status_changes = True
notify_nova_on_port_data_changes = True
[oslo_policy]
policy_file = {directory}/policy.yaml
[oslo_messaging_notifications]
driver = noop
[oslo_concurrency]
lock_path = {directory}/lock
[database]
connection = {database}
[nova]
auth_type = none
endpoint = {nova}
endpoint_override = {nova}
"""
_POLICY = "".join(f'"{rule}": ""\n' for rule in (
    "create_port:binding:profile", "update_port:binding:profile", "create_port_binding", "get_port_binding",
    "update_port_binding", "delete_port_binding", "activate"))
_ML2 = """\
[ml2]
type_drivers = geneve,vlan,flat,local
tenant_network_types = vlan
mechanism_drivers = ovn
extension_drivers = port_security
[ml2_type_geneve]
max_header_size = 38
vni_ranges = 1:1000
[ml2_type_vlan]
network_vlan_ranges = physnet1:100:199
[ovn]
ovn_nb_connection = unix:{directory}/nb.sock
ovn_sb_connection = unix:{directory}/sb.sock
"""


class NeutronLab:
    """``url`` is the URL of the API. ``directory`` has the same path on the host."""

    def __init__(self, directory: pathlib.Path, database: str, nova: str, hosts: Sequence[RealHost]) -> None:
        self.directory, self.hosts = directory, hosts
        directory.mkdir(mode=0o755)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (directory / "neutron.conf").write_text(_NEUTRON.format(
            venv=_VENV, directory=directory, database=database, nova=nova))
        (directory / "policy.yaml").write_text(_POLICY)
        (directory / "ml2.ini").write_text(_ML2.format(directory=directory))
        self._environment = {
            "PATH": f"{_VENV}/bin:{_PATH}", "OVN_RUNDIR": str(directory), "OVS_RUNDIR": str(directory),
            "OS_NEUTRON_CONFIG_DIR": str(directory), "OS_NEUTRON_CONFIG_FILES": "neutron.conf;ml2.ini"}
        self._processes: list[Process] = []
        self._port = port

    def start(self) -> None:
        self._start_ovn()
        for number, host in enumerate(self.hosts, 1):
            self._start_switch(host, f"10.66.0.{number}")
        if len(self.hosts) == 2:
            self._connect(*self.hosts)
        self._check([f"{_VENV}/bin/neutron-db-manage", "--config-file", f"{self.directory}/neutron.conf",
                     "--config-file", f"{self.directory}/ml2.ini", "upgrade", "heads"])
        self._start("api", [
            f"{_VENV}/bin/uwsgi", "--home", _VENV, "--master", "--processes", "1", "--threads", "4", "--enable-threads",
            "--lazy-apps", "--die-on-term", "--buffer-size", "65535", "--set", "start-time=1",
            "--http", f"127.0.0.1:{self._port}", "--http-keepalive",
            "--http-auto-chunked", "--module", "neutron.wsgi.api:application"])
        eventually(self._answers, _START, f"Neutron responds\n{self._processes[-1].tail()}", interval=0.5)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()

    # --- API -----------------------------------------------------------------------------------------------
    def network(self, project: str, cidr: str) -> str:
        """Create a network with a subnet and return its id."""
        network = self.ask("POST", "/networks", {"network": {"name": "ovn", "tenant_id": project}})["network"]["id"]
        self.ask("POST", "/subnets", {"subnet": {"network_id": network, "cidr": cidr, "ip_version": 4,
                                                 "tenant_id": project}})
        return str(network)

    def port(self, network: str, project: str, **fields: Any) -> str:
        """Create a port with these further fields and return its id."""
        wanted = {"network_id": network, "tenant_id": project, **fields}
        return str(self.ask("POST", "/ports", {"port": wanted})["port"]["id"])

    def ports(self, **query: str) -> list[dict[str, Any]]:
        return self.ask("GET", "/ports", params=query)["ports"]  # type: ignore[no-any-return]

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = requests.request(method, f"{self.url}/v2.0{path}", json=body, timeout=60, **more)
        assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json() if answer.content else None

    # --- processes -----------------------------------------------------------------------------------------
    def _start_ovn(self) -> None:
        for name in ("nb", "sb"):
            self._check(["ovsdb-tool", "create", f"{self.directory}/{name}.db", f"/usr/share/ovn/ovn-{name}.ovsschema"])
            self._start(name, ["ovsdb-server", f"{self.directory}/{name}.db", f"--remote=punix:{self.directory}/"
                               f"{name}.sock", f"--unixctl={self.directory}/{name}.ctl"])
            eventually((self.directory / f"{name}.sock").exists, _START, f"the database {name} accepts connections")
        self._start("northd", ["ovn-northd", f"--ovnnb-db=unix:{self.directory}/nb.sock",
                               f"--ovnsb-db=unix:{self.directory}/sb.sock", f"--unixctl={self.directory}/northd.ctl"])

    def _start_switch(self, real: RealHost, address: str) -> None:
        """Start the switch with the sockets that libvirt and Nova expect, and a user-space datapath. ``address``: of
        the tunnels, on a bridge, because this datapath has no others. OVN tunnels packets also between the hosts of a
        port that migrates."""
        host = real.host
        for path in ("/run/openvswitch", "/run/ovn"):
            host.run(["mkdir", "-p", path])
        host.run(["ovsdb-tool", "create", "/run/openvswitch/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"])
        self._start(f"{host.name}-switch-db", host.command("ovsdb-server", "/run/openvswitch/conf.db",
                                              "--remote=punix:/run/openvswitch/db.sock",
                                              "--unixctl=/run/openvswitch/db.ctl"))
        eventually(lambda: not host.run(["ovs-vsctl", "--no-wait", "init"], check=False), _START,
                   "the switch has started")
        host.run(["ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".", f"external_ids:system-id={host.name}",
                  f"external_ids:hostname={host.name}", "other_config:userspace-tso-enable=true",
                  f"external_ids:ovn-remote=unix:{self.directory}/sb.sock", "external_ids:ovn-encap-type=geneve",
                  f"external_ids:ovn-encap-ip={address}", "external_ids:ovn-bridge=br-int",
                  "external_ids:ovn-bridge-datapath-type=netdev", "external_ids:ovn-bridge-mappings=physnet1:br-phy"])
        self._start(f"{host.name}-switch", host.command("ovs-vswitchd", "unix:/run/openvswitch/db.sock",
                                           "--unixctl=/run/openvswitch/switch.ctl"))
        for bridge in ("br-int", "br-phy"):
            host.run(["ovs-vsctl", "--may-exist", "add-br", bridge, "--", "set", "bridge", bridge,
                      "datapath_type=netdev"])
        host.run(["ip", "address", "add", f"{address}/24", "dev", "br-phy"])
        host.run(["ip", "link", "set", "br-phy", "up"])
        self._start(f"{host.name}-controller", host.command("ovn-controller", "unix:/run/openvswitch/db.sock"))

    @staticmethod
    def _connect(one: RealHost, other: RealHost) -> None:
        """Lay a cable between the provider bridges of two hosts."""
        subprocess.run(["ip", "link", "add", "phy0", "netns", str(one.host.pid), "type", "veth", "peer", "name", "phy0",
                        "netns", str(other.host.pid)], check=True, timeout=30)
        for real in (one, other):
            real.host.run(["ip", "link", "set", "phy0", "up"])
            real.host.run(["ovs-vsctl", "--may-exist", "add-port", "br-phy", "phy0"])

    def _start(self, name: str, command: list[str]) -> None:
        process = Process(name, command, self.directory / f"{name}.log", env=self._environment)
        process.start()
        self._processes.append(process)

    def _check(self, command: list[str]) -> None:
        done = subprocess.run(command, env={**os.environ, **self._environment}, capture_output=True, text=True,
                              check=False, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-3000:]}"

    def _answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.url}/v2.0/networks", timeout=30).status_code == 200
        return False


@contextlib.contextmanager
def neutron_lab(directory: pathlib.Path, database: str, nova: str, hosts: Sequence[RealHost]) -> Iterator[NeutronLab]:
    lab = NeutronLab(directory, database, nova, hosts)
    try:
        lab.start()
        yield lab
    finally:
        lab.close()
