"""Neutron ports of a host on a real Open vSwitch database (without the switch)."""

from __future__ import annotations

import datetime
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from nova import exception
from nova.network.neutron.host import NeutronHostNetwork
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid
from nova.objects.networks.network import VIF, RuleSet
from nova.objects.servers.instance import Instance
from tests.integration.processes import Process, eventually

_TOOLS = ("ovsdb-tool", "ovsdb-server", "ovs-vsctl")
_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
pytestmark = pytest.mark.skipif(not all(shutil.which(tool, path=_PATH) for tool in _TOOLS),
                                reason=f"needs {', '.join(_TOOLS)} (openvswitch-switch)")


@pytest.fixture
def switch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OVS_RUNDIR", str(tmp_path))
    subprocess.run(["ovsdb-tool", "create", f"{tmp_path}/conf.db", "/usr/share/openvswitch/vswitch.ovsschema"],
                   check=True)
    server = Process("ovsdb", ["ovsdb-server", f"{tmp_path}/conf.db", f"--remote=punix:{tmp_path}/db.sock",
                               f"--unixctl={tmp_path}/db.ctl"], tmp_path / "log")
    server.start()
    eventually((tmp_path / "db.sock").exists, 30, "the database accepts connections")
    vsctl("init", "--", "add-br", "br-int")
    yield
    server.kill()


def vsctl(*words: str) -> str:
    done = subprocess.run(["ovs-vsctl", "--no-wait", *words], check=True, capture_output=True, text=True)
    return done.stdout


def guest(*ports: str) -> Instance:
    vifs = [VIF(id=port, network_id="n", label="n", mac="fa:16:3e:00:00:01", bridge="br-int", devname=f"tap{port}"[:14])
            for port in ports]
    return Instance(uuid=new_uuid(), project_id="p", user_id="u", display_name="s", hostname="s", network_info=vifs,
                    flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1, root_gb=1),
                    created_at=datetime.datetime.now(datetime.UTC))


def as_libvirt_plugs(instance: Instance) -> None:
    for vif in instance.network_info:
        ids = {"attached-mac": vif.mac, "iface-id": vif.id, "vm-id": instance.uuid, "iface-status": "active"}
        words = [f'external-ids:{name}="{value}"' for name, value in ids.items()]
        vsctl("add-port", vif.bridge, vif.devname, "--", "set", "Interface", vif.devname, *words)


@pytest.mark.usefixtures("switch")
def test_switch_ports_are_listed_and_removed_by_guest_and_by_vif(monkeypatch: pytest.MonkeyPatch) -> None:
    # No switch daemon is running that would apply the changes.
    monkeypatch.setattr("nova.network.neutron.host.COMMAND", ("ovs-vsctl", "--no-wait"))
    network, one, other = NeutronHostNetwork(), guest(new_uuid(), new_uuid()), guest(new_uuid())
    network.plug(one, RuleSet())
    as_libvirt_plugs(one)
    as_libvirt_plugs(other)
    assert network.guests() == {one.uuid, other.uuid}
    network.unplug_vif(one, one.network_info[0])
    network.unplug_vif(one, one.network_info[0])
    assert vsctl("list-ports", "br-int").split() == sorted(
        [one.network_info[1].devname, other.network_info[0].devname])
    network.unplug_guest(other.uuid)
    network.unplug(one)
    assert (network.guests(), vsctl("list-ports", "br-int")) == (set(), "")


@pytest.mark.usefixtures("switch")
@pytest.mark.parametrize("way", ["unplug", "unplug_vif", "unplug_guest"])
def test_bridge_of_a_trunk_exists_while_its_guest_is_plugged(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr("nova.network.neutron.host.COMMAND", ("ovs-vsctl", "--no-wait"))
    network, one = NeutronHostNetwork(), guest(new_uuid())
    vif, = one.network_info
    vif.bridge, vif.details = "tbr-12345678-ab", {"bridge_name": "tbr-12345678-ab", "datapath_type": "netdev"}
    for _time in range(2):
        network.plug(one, RuleSet())
    as_libvirt_plugs(one)
    assert vsctl("list-br").split() == ["br-int", vif.bridge]
    assert vsctl("get", "Bridge", vif.bridge, "datapath_type").strip() == "netdev"
    for _time in range(2):
        {"unplug": lambda: network.unplug(one), "unplug_vif": lambda: network.unplug_vif(one, vif),
         "unplug_guest": lambda: network.unplug_guest(one.uuid)}[way]()
    assert vsctl("list-br").split() == ["br-int"]
    assert network.guests() == set()


@pytest.mark.usefixtures("switch")
def test_plug_fails_without_the_integration_bridge() -> None:
    vsctl("del-br", "br-int")
    with pytest.raises(exception.NetworkSetupError):
        NeutronHostNetwork().plug(guest(new_uuid()), RuleSet())
