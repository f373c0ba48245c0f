"""The containers of a host in libvirt: their settings, definitions and statistics."""

import dataclasses

import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.virt.guest_files import directories
from nova.virt.libvirt import power
from nova.virt.libvirt.containers.consoles import ConsoleReader
from nova.virt.libvirt.files import disks, loop_devices
from nova.virt.libvirt.guests import Guests
from nova.virt.libvirt.host import Host
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.node.capabilities import Capabilities, of_host
from nova.virt.libvirt.xml.container_xml import container_config, container_xml
from nova.virt.libvirt.xml.guest_config import GuestConfig
from nova.virt.libvirt.xml.layout import layout, serial_of
from nova.virt.libvirt.xml.settings import Settings, from_conf, with_cells


class Containers(Guests):
    """The containers of Nova. ``consoles``: the reader of their terminals."""

    request_shutdown = staticmethod(power.signal_init)

    def __init__(self, name: str, host: Host) -> None:
        super().__init__(name, host)
        self.consoles = ConsoleReader(host.uri, name, self.serial_ports)

    def learn(self) -> tuple[Capabilities, Settings]:
        host = self.host.call(of_host)
        if "lxc" not in {kind for arch, kind, _mode in host.guests if arch == host.arch}:
            raise exception.NotSupported("This host has no containers: install libvirt's lxc driver, or set "
                                         "[libvirt]virt_type to another value.")
        plain = from_conf(self.name, host.arch, host.host_uuid,
                          direct_io=directories.supports_direct_io(CONF.instances_path))
        settings = with_cells(dataclasses.replace(plain, vnc_listen=None, spice=None), host.cells)
        capabilities = dataclasses.replace(host, model_traits=frozenset(inventory.network_traits()))
        self._capabilities, self._settings = capabilities, settings
        return capabilities, settings

    def config(self, instance: Instance, is_new: bool = False) -> GuestConfig:
        return container_config(instance, self.settings, is_new or instance.launched_at is None)

    def definition_of(self, instance: Instance) -> str:
        config, uuid = self.config(instance), instance.uuid
        devices = [self.as_block_device(uuid, device) if device.is_volume else device
                   for device in instance.block_devices]
        # The layout contains only the volumes: the container's file systems have no disk names.
        volumes = layout(config, disks.LocalDisks(console_log=""), devices, self.previous(uuid))
        local = disks.inspect_disks(instance)
        root, drive = (dataclasses.replace(disk, path=loop_devices.link(uuid, disk.path)) if disk is not None else None
                       for disk in (local.root, local.config_drive))
        return container_xml(instance, config, dataclasses.replace(local, root=root, config_drive=drive), volumes,
                             self.settings)

    def as_block_device(self, uuid: str, device: BlockDevice) -> BlockDevice:
        """Return the volume as a block device, perhaps a loop device. Raises InvalidDiskInfo."""
        wanted = msgspec.structs.replace(device, disk_bus=None, device_type="disk")
        return loop_devices.connect(uuid, serial_of(device), wanted)

    def start(self, instance: Instance, fresh: bool = False, must_exist: bool = False, paused: bool = False) -> None:
        super().start(instance, fresh, must_exist, paused)
        self.consoles.follow(instance.uuid)

    def _remove(self, uuid: str, keep_disks: bool) -> None:
        super()._remove(uuid, keep_disks)
        loop_devices.release_all(uuid)

    # Containers have no guest agent.
    set_password = guest_driver.Guests.set_password
