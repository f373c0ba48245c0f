"""The User Mode Linux driver as a subject of the contract suite, with real guests."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import uuid
from typing import Any

from nova.conf import CONF, register
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.images.imagecache import ImageCache
from nova.virt.uml.driver import UmlDriver
from tests.integration.drivers.subject import Subject, file_volume, wait_for
from tests.integration.libvirt_fixtures import server

READY = b"nova guest ready"


class UmlSubject(Subject):
    """``image``: the directory of the guest image."""

    def __init__(self, place: pathlib.Path, image: pathlib.Path) -> None:
        register(CONF)
        self.place, self._image = place, image
        self.bridge = f"bruml{uuid.uuid4().hex[:6]}"
        CONF.set_override("state_path", str(place))
        CONF.set_override("wait_soft_reboot_seconds", 60, "uml")
        # Processes of other test runs on the machine must have other users.
        first = 700_000_000 + os.getpid() * 64
        CONF.set_override("user_ids", f"{first}-{first + 63}", "uml")
        subprocess.run(["ip", "link", "add", self.bridge, "type", "bridge"], check=True, timeout=30)
        super().__init__()

    @classmethod
    def missing(cls) -> str:
        return "" if os.geteuid() == 0 and shutil.which("linux.uml") else "needs root and user-mode-linux"

    def make_driver(self) -> UmlDriver:
        return UmlDriver("uml-contract")

    def server(self, **fields: Any) -> Instance:
        """The flavor has no size of the root disk, so the disk is a copy-on-write file of the cached image itself."""
        sizes = {"root_gb": 0, "memory_mb": 64, **fields.pop("flavor", {})}
        instance = server(disk_format="raw", flavor=sizes, **fields)
        assert instance.image is not None
        instance.image.properties, instance.image.size = {}, self._root().stat().st_size
        return instance

    def files(self, instance: Instance) -> BootFiles:
        root = ImageCache().adopt("i.raw", lambda path: shutil.copyfile(self._root(), path) and None,
                                  self._root().stat().st_size)
        return BootFiles(root=root, root_format="raw")

    def _root(self) -> pathlib.Path:
        return self._image / "rootfs.img"

    def volume(self, number: int) -> BlockDevice:
        return file_volume(self.place, number)

    def interface(self, number: int) -> VIF:
        return VIF(id=str(uuid.UUID(int=number)), network_id="n", label="l", mac=f"fa:16:3e:00:00:{number:02x}",
                   devname=f"tap{self.bridge}{number}"[-15:], bridge=self.bridge, mtu=1400)

    def wait_until_booted(self, instance: Instance, times: int = 1) -> None:
        wait_for(lambda: self.driver.consoles.output(instance).count(READY) >= times, 90, "the guest boots")

    def console(self, instance: Instance) -> bytes:
        return self.driver.consoles.output(instance)

    def close(self) -> None:
        super().close()
        subprocess.run(["ip", "link", "del", self.bridge], check=True, timeout=30)
        CONF.clear_override("state_path")
        CONF.clear_override("wait_soft_reboot_seconds", "uml")
        CONF.clear_override("user_ids", "uml")
