"""Small roles of the driver: local disks, the power state and the consoles of guests."""

import contextlib
import logging
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.console import SERIAL, SPICE, VNC, ConsoleAddress
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.libvirt import agent, power, serial_ports
from nova.virt.libvirt.files import console, directories, disk_making, disk_server, disks
from nova.virt.libvirt.guests import Role
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

        def remove_guest() -> None:
            with contextlib.suppress(exception.GuestNotFound):
                guests.on_domain(uuid, lambda domain: power.remove(domain, keep_nvram=False))

        if directories.mark(uuid) == token:
            return
        guests.config(instance)
        disk_server.stop(uuid)
        guests.shut_down_if_present(uuid, timeout)
        with guests.locks.hold(uuid):
            if directories.is_aside(uuid) and not guests.exists(uuid):  # Left by a move that could not restore it.
                directories.put_back(uuid, guests.name)
            disk_making.make_anew(instance, files, guests.name, token, keep_ephemerals, remove_guest)

    def exist(self, instance: Instance) -> bool:
        return disks.has_any(directories.directory(instance.uuid))

    def used_images(self) -> Sequence[str]:
        return sorted(disks.bases_in_use())


class Power(Role, guest_driver.Power):
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
            LOG.info("[instance: %s] The guest did not shut down in time: continuing with a hard reboot", instance.uuid)
        self._guests.start(instance, fresh=not stopped, must_exist=True)

    def pause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.pause)

    def unpause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.unpause)

    def suspend(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.save)

    def resume(self, instance: Instance) -> None:
        with self._guests.locks.hold(instance.uuid):
            if self._guests.power_state(instance.uuid) == states.POWER_SUSPENDED:
                self._guests.give_keys(instance.uuid, instance.block_devices)
                self._guests.on_domain(instance.uuid, power.start)
                return
        self._guests.start(instance)

    def trigger_crash_dump(self, instance: Instance) -> None:
        self._guests.on_domain(instance.uuid, lambda domain: agent.interrupt(domain, instance.uuid))


class Consoles(Role, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        return console.read(directories.directory(instance.uuid), instance.uuid, lines)

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        return self._guests.on_domain(uuid, lambda domain: _address(domain, protocol))


def _address(domain: libvirt.virDomain, protocol: str) -> ConsoleAddress | None:
    if power.is_arriving(domain):
        raise exception.GuestNotFound(instance_uuid=domain.UUIDString())
    if not domain.isActive():
        raise exception.GuestNotRunning(instance_uuid=domain.UUIDString())
    definition = domain.XMLDesc(0)
    if protocol == SERIAL:
        ports = serial_ports.of_definition(definition)
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
    """Return the port of a screen if something listens on it."""
    value = attribute(domain, f"devices/graphics[@type='{protocol}']", name)
    return int(value) if value.isdecimal() and int(value) > 0 else None
