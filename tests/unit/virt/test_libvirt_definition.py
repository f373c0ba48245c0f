"""The domain definition from a source host: device addresses are kept, other parts are not trusted."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, exception
from nova.conf import CONF
from nova.objects.servers.moves import DiskSource
from nova.virt.guest_files import directories
from nova.virt.libvirt.cold_migration import ColdMigration
from nova.virt.libvirt.guests import MOVED_DEFINITION
from nova.virt.libvirt.xml.definition import Definition
from tests.unit.virt.guests import server

HOSTILE = """
<domain><os><type machine="pc-q35-8.2">hvm</type><nvram>/etc/shadow</nvram></os><devices>
  <emulator>/bin/sh</emulator>
  <disk type="file"><source file="/var/lib/nova/instances/x/disk"/><target dev="vda" bus="virtio"/>
    <backingStore type="file"><source file="/etc/shadow"/></backingStore>
    <address type="pci" bus="0x03"/></disk>
  <disk type="block"><source dev="/dev/sda"/><target dev="vdb" bus="virtio"/><serial>volume</serial></disk>
  <interface type="bridge"><mac address="fa:16:3e:00:00:01"/><source bridge="br-other"/><model type="virtio"/>
    <address type="pci" bus="0x01"/></interface>
  <controller type="pci" index="1" model="pcie-root-port"><target chassis="1" port="0x10"/></controller>
</devices></domain>
"""


class Nobody:
    """A fake of the guests of a host without guests."""

    name = "here"

    def __init__(self) -> None:
        self.locks = self

    def hold(self, _uuid: str, _timeout: object = None) -> Any:
        return contextlib.nullcontext()

    def exists(self, _uuid: str) -> bool:
        return False


@pytest.fixture(autouse=True)
def state(tmp_path: pathlib.Path) -> Iterator[None]:
    conf.register()
    CONF.set_override("state_path", str(tmp_path))
    yield
    CONF.clear_override("state_path")


def received(definition: str) -> str:
    instance = server()
    ColdMigration(Nobody()).receive_disks(instance, DiskSource(host="hostile", definition=definition))  # type: ignore[arg-type]
    return pathlib.Path(directories.directory(instance.uuid), MOVED_DEFINITION).read_text()


def test_definition_from_another_host_has_no_file_or_device_references() -> None:
    text = received(HOSTILE)
    assert Definition(text).nvram == ""
    for told in ("/etc/shadow", "/dev/sda", "/bin/sh", "/var/lib", "br-other"):
        assert told not in text


def test_device_names_and_addresses_of_the_source_are_kept() -> None:
    known = Definition(received(HOSTILE))
    assert known.machine == "pc-q35-8.2"
    assert {key: (disk.target, disk.bus) for key, disk in known.disks.items()} == {
        "disk": ("vda", "virtio"), "volume": ("vdb", "virtio")}
    card = known.interface("fa:16:3e:00:00:01")
    assert card is not None
    for item, bus in ((card, "0x01"), (known.disks["disk"].element, "0x03")):
        address = item.find("address")
        assert address is not None
        assert address.get("bus") == bus
    port = known.devices.find("controller/target")
    assert port is not None
    assert port.attrib == {"chassis": "1", "port": "0x10"}


def test_invalid_domain_definition_is_refused() -> None:
    with pytest.raises(exception.MigrationError, match="cannot be read"):
        received("<domain>")
