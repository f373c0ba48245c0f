"""Small roles of the driver: local disks, the power state, the consoles and the rescue of guests.

In a rescue, the rescue disk is the guest's first disk, and the guest gets the hardware that the rescue image requests.
With the image property hw_rescue_device or hw_rescue_bus it is the last disk, and the hardware stays unchanged."""

import dataclasses
import logging
import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import libvirt
import msgspec

from nova import exception
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.requirements.hardware_values import BLOCK_BUSES
from nova.objects.requirements.properties import choice
from nova.objects.servers import states
from nova.objects.servers.console import SERIAL, SPICE, VNC, ConsoleAddress
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.guest_files import directories, disk_server
from nova.virt.images import qemuimg
from nova.virt.libvirt import power
from nova.virt.libvirt.files import copies, disk_making, disks
from nova.virt.libvirt.files.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.guests import Role, define_domain, serial_ports_of
from nova.virt.libvirt.xml import domain_xml
from nova.virt.libvirt.xml.guest_config import GuestConfig
from nova.virt.libvirt.xml.layout import GuestDisk, rescue_layout
from nova.virt.libvirt.xml.xmltree import attribute

LOG = logging.getLogger(__name__)


class Disks(Role, guest_driver.Disks):
    def prepare(self, instance: Instance, files: BootFiles) -> None:
        self._guests.config(instance)
        with self._guests.locks.hold(instance.uuid):
            disk_making.make(instance, files, self._guests.name)

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        uuid, guests = instance.uuid, self._guests
        if directories.text(uuid, directories.MARK) == token:
            return
        guests.config(instance)
        disk_server.stop(uuid)
        guests.shut_down_if_present(uuid, timeout)
        with guests.locks.hold(uuid):
            if directories.is_aside(uuid) and not guests.exists(uuid):  # a failed move left it renamed
                directories.put_back(uuid, guests.name)
            disk_making.make_anew(instance, files, guests.name, token, keep_ephemerals, lambda: (
                guests.on_domain_or(uuid, lambda domain: power.remove(domain, keep_nvram=False), None)))

    def exist(self, instance: Instance) -> bool:
        return disks.has_any(directories.directory(instance.uuid)) and not copies.is_incomplete(instance.uuid)

    def used_images(self) -> Sequence[str]:
        return sorted(disks.bases_in_use())


class BasicPower(Role, guest_driver.Power):
    """The power methods that virtual machines and containers support."""

    def on(self, instance: Instance, paused: bool = False) -> None:
        self._guests.start(instance, paused=paused)

    def off(self, instance: Instance, timeout: int = 0) -> None:
        if timeout > 0:
            self._guests.shut_down(instance.uuid, timeout)
        self._guests.change(instance.uuid, power.stop)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        if hard:
            self._guests.start(instance, fresh=True)
            return
        seconds = CONF.libvirt.wait_soft_reboot_seconds if timeout is None else timeout
        stopped = seconds > 0 and self._guests.shut_down(instance.uuid, seconds)
        if not stopped:
            LOG.info("[instance: %s] The guest did not shut down within %s s: power-cycling it", instance.uuid, seconds)
        self._guests.start(instance, fresh=not stopped, must_exist=True)

    def pause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.pause)

    def unpause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.unpause)


class Power(BasicPower):
    def suspend(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.save)

    def resume(self, instance: Instance) -> None:
        with self._guests.locks.hold(instance.uuid):
            if self._guests.power_state(instance.uuid) == states.POWER_SUSPENDED:
                self._guests.give_keys(instance.uuid, instance.block_devices, instance.tpm_secret)
                self._guests.on_domain(instance.uuid, power.start)
                return
        self._guests.start(instance)

    def trigger_crash_dump(self, instance: Instance) -> None:
        self._guests.on_domain(instance.uuid, power.interrupt)


class Consoles(Role, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        return disks.console_output(instance.uuid, lines)

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        return self._guests.on_domain(uuid, lambda domain: _address(domain, protocol))


def _address(domain: libvirt.virDomain, protocol: str) -> ConsoleAddress | None:
    if power.is_arriving(domain):
        raise exception.GuestNotFound(instance_uuid=domain.UUIDString())
    if not domain.isActive():
        raise exception.GuestNotRunning(instance_uuid=domain.UUIDString())
    definition = domain.XMLDesc(0)
    if protocol == SERIAL:
        ports = serial_ports_of(definition)
        return ConsoleAddress(host=CONF.serial_console.proxyclient_address, port=ports[0]) if ports else None
    domain_xml = ET.fromstring(definition)  # noqa: S314 - libvirt's own output
    if protocol == VNC:
        port = _port(domain_xml, VNC, "port")
        return ConsoleAddress(host=CONF.vnc.server_proxyclient_address, port=port) if port else None
    if protocol == SPICE:
        port, secure = _port(domain_xml, SPICE, "port"), _port(domain_xml, SPICE, "tlsPort")
        return ConsoleAddress(host=CONF.spice.server_proxyclient_address, port=port or 0, tls_port=secure) \
            if port or secure else None
    return None


def _port(domain: ET.Element, protocol: str, name: str) -> int | None:
    """Return the port of the guest's screen, or None if the guest does not listen on a port."""
    value = attribute(domain, f"devices/graphics[@type='{protocol}']", name)
    return int(value) if value.isdecimal() and int(value) > 0 else None


_DEVICE, _BUS = "hw_rescue_device", "hw_rescue_bus"


class Rescue(Role, guest_driver.Rescue):
    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        uuid, guests = instance.uuid, self._guests
        config = guests.config(_hardware(instance, image), is_new=not _is_stable(image))
        kind, bus = _rescue_device(image, config)
        guests.shut_down_if_present(uuid, timeout)
        with guests.locks.hold(uuid):
            guests.give_keys(uuid, instance.block_devices)
            disk_making.make_rescue(instance, image, files, guests.definition_now(uuid), guests.name)
            local = _rescue_files(instance, kind)
            disk = GuestDisk(disks.RESCUE, bus, device=kind, local=local.root, boot_order=1)
            previous = guests.previous(uuid)
            own = disks.inspect_disks(instance)
            drive = local.config_drive or own.config_drive
            laid = rescue_layout(config, dataclasses.replace(own, config_drive=drive), instance.block_devices,
                                 previous, disk, _is_stable(image))
            xml = domain_xml.domain_xml(_hardware(instance, image), guests.with_ports(instance, config), local, laid,
                                        guests.settings, previous)
            name = instance.name_by(guests.settings.names)
            guests.on_domain_or(uuid, power.stop, None)
            guests.call(lambda connection: define_domain(connection, name, xml), uuid)
            guests.on_domain(uuid, power.start)

    def end(self, instance: Instance) -> None:
        uuid, guests = instance.uuid, self._guests
        with guests.locks.hold(uuid):
            if not os.path.exists(os.path.join(directories.directory(uuid), disks.BEFORE_RESCUE)):
                return
            guests.on_domain_or(uuid, power.stop, None)
            guests.redefine(instance)


def _is_stable(image: Image) -> bool:
    return bool(image.properties.get(_DEVICE) or image.properties.get(_BUS))


def _hardware(instance: Instance, image: Image) -> Instance:
    return instance if _is_stable(image) else msgspec.structs.replace(instance, image=image)


def _rescue_files(instance: Instance, kind: str) -> LocalDisks:
    """Return the files of the guest with the boot files of the rescue in place of its own."""
    place = directories.directory(instance.uuid)

    def path(name: str) -> str | None:
        candidate = os.path.join(place, name)
        return candidate if os.path.exists(candidate) else None

    root, drive = os.path.join(place, disks.RESCUE), path(disks.RESCUE_DRIVE)
    return dataclasses.replace(
        disks.inspect_disks(instance), root=LocalDisk(root, device=kind, base=disks.base_of(root)),
        config_drive=LocalDisk(drive, "raw", "cdrom" if qemuimg.is_iso(drive) else "disk") if drive else None,
        kernel=path(disks.RESCUE_KERNEL), ramdisk=path(disks.RESCUE_RAMDISK))


def _rescue_device(image: Image, config: GuestConfig) -> tuple[str, str]:
    """Return the kind and the bus of the rescue device."""
    kind = choice(_DEVICE, image.properties.get(_DEVICE), ("disk", "cdrom")) or (
        "cdrom" if image.disk_format == "iso" else "disk")
    return kind, choice(_BUS, image.properties.get(_BUS), BLOCK_BUSES[kind]) or (
        config.cdrom_bus if kind == "cdrom" else config.disk_bus)
