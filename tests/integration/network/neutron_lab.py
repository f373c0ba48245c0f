"""A real Neutron (ML2/OVN) for one real compute host: its API and OVN on this machine, Open vSwitch on the host.

Neutron is not a requirement of Nova: NOVA_TEST_NEUTRON names a virtual environment with Neutron, uWSGI and PyMySQL. OVN
and Open vSwitch are those of the system. Without Keystone, all clients are administrators.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
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
service_plugins =
transport_url = fake:/
dhcp_agent_notification = False
rpc_workers = 0
api_workers = 1
state_path = {directory}
send_events_interval = 1
notify_nova_on_port_status_changes = True
notify_nova_on_port_data_changes = True
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

    def __init__(self, directory: pathlib.Path, database: str, nova: str, host: RealHost) -> None:
        self.directory, self.host = directory, host
        directory.mkdir(mode=0o755)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (directory / "neutron.conf").write_text(_NEUTRON.format(
            venv=_VENV, directory=directory, database=database, nova=nova))
        (directory / "ml2.ini").write_text(_ML2.format(directory=directory))
        self._environment = {
            "PATH": f"{_VENV}/bin:{_PATH}", "OVN_RUNDIR": str(directory), "OVS_RUNDIR": str(directory),
            "OS_NEUTRON_CONFIG_DIR": str(directory), "OS_NEUTRON_CONFIG_FILES": "neutron.conf;ml2.ini"}
        self._processes: list[Process] = []
        self._port = port

    def start(self) -> None:
        self._start_ovn()
        self._start_switch()
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

    def port(self, network: str, project: str) -> str:
        return str(self.ask("POST", "/ports", {"port": {"network_id": network, "tenant_id": project}})["port"]["id"])

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

    def _start_switch(self) -> None:
        """Start the switch with the sockets that libvirt and Nova expect, and a user-space datapath."""
        host = self.host.host
        for path in ("/run/openvswitch", "/run/ovn"):
            host.run(["mkdir", "-p", path])
        host.run(["ovsdb-tool", "create", "/run/openvswitch/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"])
        self._start("switch-db", host.command("ovsdb-server", "/run/openvswitch/conf.db",
                                              "--remote=punix:/run/openvswitch/db.sock",
                                              "--unixctl=/run/openvswitch/db.ctl"))
        eventually(lambda: not host.run(["ovs-vsctl", "--no-wait", "init"], check=False), _START,
                   "the switch has started")
        host.run(["ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".", f"external_ids:system-id={host.name}",
                  f"external_ids:hostname={host.name}", "other_config:userspace-tso-enable=true",
                  f"external_ids:ovn-remote=unix:{self.directory}/sb.sock", "external_ids:ovn-encap-type=geneve",
                  f"external_ids:ovn-encap-ip={host.address}", "external_ids:ovn-bridge=br-int",
                  "external_ids:ovn-bridge-datapath-type=netdev", "external_ids:ovn-bridge-mappings=physnet1:br-phy"])
        self._start("switch", host.command("ovs-vswitchd", "unix:/run/openvswitch/db.sock",
                                           "--unixctl=/run/openvswitch/switch.ctl"))
        for bridge in ("br-int", "br-phy"):
            host.run(["ovs-vsctl", "--may-exist", "add-br", bridge, "--", "set", "bridge", bridge,
                      "datapath_type=netdev"])
        self._start("controller", host.command("ovn-controller", "unix:/run/openvswitch/db.sock"))

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
def neutron_lab(directory: pathlib.Path, database: str, nova: str, host: RealHost) -> Iterator[NeutronLab]:
    lab = NeutronLab(directory, database, nova, host)
    try:
        lab.start()
        yield lab
    finally:
        lab.close()
