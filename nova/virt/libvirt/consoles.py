"""Consoles of guests of libvirt."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects.servers.console import SERIAL, SPICE, VNC, ConsoleAddress
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.virt.libvirt import power, serial_ports
from nova.virt.libvirt.files import console, directories
from nova.virt.libvirt.guests import Guests


class Consoles(guest_driver.Consoles):
    def __init__(self, guests: Guests) -> None:
        self._guests = guests

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
    devices = ET.fromstring(definition)  # noqa: S314 - libvirt's own output
    if protocol == VNC:
        port = _port(devices.find("devices/graphics[@type='vnc']"), "port")
        return ConsoleAddress(host=CONF.vnc.server_proxyclient_address, port=port) if port else None
    if protocol == SPICE:
        screen = devices.find("devices/graphics[@type='spice']")
        port, secure = _port(screen, "port"), _port(screen, "tlsPort")
        return ConsoleAddress(host=CONF.spice.server_proxyclient_address, port=port or 0, tls_port=secure) \
            if port or secure else None
    return None


def _port(item: ET.Element | None, name: str) -> int | None:
    """Return the port if something listens on it."""
    value = item.get(name, "") if item is not None else ""
    return int(value) if value.isdecimal() and int(value) > 0 else None
