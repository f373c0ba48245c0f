"""The driver of containers (libvirt with virt_type lxc) as a subject of the contract suite, with real containers."""

from __future__ import annotations

import contextlib
import pathlib
import uuid
from typing import Any

from nova.conf import CONF, register
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt.driver import LibvirtDriver
from tests.integration.containers.container_lab import container_daemon, make_archive, missing_for_containers
from tests.integration.drivers.subject import Subject, file_volume, wait_for
from tests.integration.libvirt_fixtures import server

READY = b"container ready: "


class LxcSubject(Subject):
    def __init__(self, place: pathlib.Path) -> None:
        register(CONF)
        self.place, self._stack = place, contextlib.ExitStack()
        self.daemon = self._stack.enter_context(container_daemon())
        for option, value, group in (("state_path", str(place), None), ("virt_type", "lxc", "libvirt"),
                                     ("connection_uri", self.daemon.uri, "libvirt")):
            CONF.set_override(option, value, group)
            self._stack.callback(CONF.clear_override, option, group)
        self._archive = make_archive(place / "root.tar")
        super().__init__()

    @classmethod
    def missing(cls) -> str:
        return missing_for_containers()

    def make_driver(self) -> LibvirtDriver:
        return LibvirtDriver("lxc-contract")

    def server(self, **fields: Any) -> Instance:
        instance = server(disk_format="raw", flavor={"memory_mb": 64, **fields.pop("flavor", {})}, **fields)
        assert instance.image is not None
        instance.image.properties = {}
        return instance

    def files(self, instance: Instance) -> BootFiles:
        return BootFiles(root=str(self._archive), root_format="raw")

    def volume(self, number: int) -> BlockDevice:
        return file_volume(self.place, number)

    def interface(self, number: int) -> VIF:
        return VIF(id=str(uuid.UUID(int=number)), network_id="n", label="l", mac=f"fa:16:3e:00:00:{number:02x}",
                   devname=f"taplxc{number}", bridge="br0")

    def wait_until_booted(self, instance: Instance, times: int = 1) -> None:
        wait_for(lambda: self._boots(instance) >= times, 60, "the container boots")

    def _boots(self, instance: Instance) -> int:
        with contextlib.suppress(Exception):
            return self.driver.consoles.output(instance).count(READY)
        return 0

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._stack.close()
