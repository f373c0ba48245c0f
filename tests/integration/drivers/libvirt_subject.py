"""The libvirt driver as a subject of the contract suite, with small QEMU guests in a libvirtd of its own."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import uuid
from typing import Any

from nova.conf import CONF, register
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.driver import Driver
from nova.virt.images.imagecache import ImageCache
from tests.integration.drivers.subject import Subject, file_volume
from tests.integration.libvirt_fixtures import PrivateLibvirt, server, small_disks, wait_for_console

_OPTIONS = {"virt_type": "qemu", "device_detach_attempts": 2, "device_detach_timeout": 30}
_BRIDGE = "br-contract"


class LibvirtSubject(Subject):
    """Guests print "login: " and obey the power button (tests/data/small_guest.s); they do not notice new devices."""

    elsewhere = {"volumes.attach": "test_libvirt_devices.py", "interfaces.attach": "test_libvirt_devices.py"}

    def __init__(self, place: pathlib.Path, image: pathlib.Path, daemon: PrivateLibvirt) -> None:
        register(CONF)
        self._place, self._image, self._daemon = place, image, daemon
        CONF.set_override("state_path", str(place))
        CONF.set_override("connection_uri", daemon.uri, "libvirt")
        for name, value in _OPTIONS.items():
            CONF.set_override(name, value, "libvirt")
        daemon.run("ip", "link", "add", _BRIDGE, "type", "bridge")
        self._host = f"contract-{uuid.uuid4().hex[:8]}"
        super().__init__()

    def make_driver(self) -> Driver:
        from nova.virt.libvirt.driver import LibvirtDriver

        return LibvirtDriver(self._host)

    def server(self, **fields: Any) -> Instance:
        return server(**fields)

    def files(self, instance: Instance) -> BootFiles:
        disks = small_disks(self._image)
        root = ImageCache().adopt("i.raw", lambda path: shutil.copyfile(str(disks.root), path) and None,
                                  os.path.getsize(str(disks.root)))
        return dataclasses.replace(disks, root=root)

    def volume(self, number: int) -> BlockDevice:
        return file_volume(self._place, number)

    def interface(self, number: int) -> VIF:
        return VIF(id=str(uuid.UUID(int=number)), network_id="n", label="l", mac=f"fa:16:3e:00:00:{number:02x}",
                   devname=f"tapcontract{number}", bridge=_BRIDGE)

    def wait_until_booted(self, instance: Instance, times: int = 1) -> None:
        wait_for_console(self.driver, instance, b"login:", times)

    def close(self) -> None:
        super().close()
        self._daemon.run("ip", "link", "del", _BRIDGE)
        for name in ("connection_uri", *_OPTIONS):
            CONF.clear_override(name, "libvirt")
        CONF.clear_override("state_path")
