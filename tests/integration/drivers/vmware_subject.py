"""The VMware driver as a subject of the contract suite, on a simulated vCenter."""

from __future__ import annotations

import pathlib
import ssl
import uuid
from typing import Any

from pyVim.connect import SmartConnect
from pyVmomi import vim

from nova.conf import CONF, register
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.objects.volumes.volume import VolumeConnection
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.vmware.driver import VmwareDriver
from tests.integration.drivers import vcsim_server
from tests.integration.drivers.subject import Subject, wait_for
from tests.integration.drivers.vcsim_server import Vcsim
from tests.integration.libvirt_fixtures import server
from tests.polling import poll


class VmwareSubject(Subject):
    measures_cpu_time = False

    def __init__(self, place: pathlib.Path, *arguments: str) -> None:
        register(CONF)
        self.place, self.vcsim = place, Vcsim(place, *arguments)
        self.options: dict[str, Any] = {
            "host_ip": "127.0.0.1", "host_port": self.vcsim.port, "host_username": "user", "host_password": "pass",
            "ca_file": self.vcsim.ca_file, "cluster_name": "DC0_C0", "task_poll_interval": 0.05,
            "serial_port_service_uri": "vspc", "serial_log_dir": str(self.vcsim.serial_logs), "cache_prefix": "nova"}
        for name, value in self.options.items():
            CONF.set_override(name, value, "vmware")
        CONF.set_override("state_path", str(place))
        pathlib.Path(CONF.instances_path).mkdir(parents=True)
        self._image = place / "image.raw"
        self._image.write_bytes(b"a disk".ljust(1 << 20, b"\0"))
        self.admin: Any = SmartConnect(
            host="127.0.0.1", port=self.vcsim.port, user="user", pwd="pass",
            sslContext=ssl.create_default_context(cafile=self.vcsim.ca_file)).content
        self.datastore = pathlib.Path(self.admin.rootFolder.childEntity[0].datastore[0].summary.url)
        self._volumes: dict[int, BlockDevice] = {}
        super().__init__()

    @classmethod
    def missing(cls) -> str:
        return vcsim_server.missing()

    def make_driver(self) -> VmwareDriver:
        return VmwareDriver("vmware-contract")

    def server(self, **fields: Any) -> Instance:
        instance = server(disk_format="raw", **fields)
        assert instance.image is not None
        instance.image.properties = {}
        return instance

    def files(self, instance: Instance) -> BootFiles:
        return BootFiles(root=str(self._image), root_format="raw")

    def volume(self, number: int) -> BlockDevice:
        """Return a volume like those of Cinder: the only disk of a machine that is never started."""
        if number not in self._volumes:
            identity = str(uuid.UUID(int=number))
            connection = VolumeConnection(volume_id=identity, protocol="vmdk", path=self._backing(f"volume-{number}"))
            self._volumes[number] = BlockDevice(source="volume", destination="volume", volume_id=identity,
                                                uuid=str(uuid.UUID(int=99 + number)), connection=connection)
        return self._volumes[number]

    def _backing(self, name: str) -> str:
        device, datacenter = vim.vm.device, self.admin.rootFolder.childEntity[0]
        disk = device.VirtualDisk(key=-2, controllerKey=-1, unitNumber=0, capacityInKB=64 << 10,
                                  backing=device.VirtualDisk.FlatVer2BackingInfo(fileName="", diskMode="persistent"))
        controller = device.VirtualLsiLogicController(key=-1, busNumber=0, sharedBus="noSharing")
        spec = vim.vm.ConfigSpec(name=name, guestId="otherGuest", files=vim.vm.FileInfo(vmPathName="[LocalDS_0]"),
                                 deviceChange=[device.VirtualDeviceSpec(operation="add", device=controller),
                                               device.VirtualDeviceSpec(operation="add", fileOperation="create",
                                                                        device=disk)])
        pool = datacenter.hostFolder.childEntity[0].resourcePool
        task = datacenter.vmFolder.CreateVM_Task(spec, pool)
        assert poll(lambda: task.info.state == "success", 10), task.info.error
        return str(task.info.result._moId)

    def interface(self, number: int) -> VIF:
        return VIF(id=str(uuid.UUID(int=number)), network_id="n", label="l", mac=f"fa:16:3e:00:00:{number:02x}",
                   devname=f"tap{number}", bridge="br-int" if number == 2 else "VM Network")

    def wait_until_booted(self, instance: Instance, times: int = 1) -> None:
        wait_for(lambda: self.driver.consoles.output(instance).count(b"guest ready") >= times, 10, "the guest boots")

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.vcsim.stop()
            for name in self.options:
                CONF.clear_override(name, "vmware")
            CONF.clear_override("state_path")
