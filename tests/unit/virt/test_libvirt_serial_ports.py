"""Serial ports of guests as TCP ports of their host: allocation and definition."""

from __future__ import annotations

import dataclasses
import os
import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from lxml import etree

from nova import exception
from nova.conf import CONF, register
from nova.virt.libvirt.guests import serial_ports_of
from nova.virt.libvirt.xml import domain_xml, migration_xml
from nova.virt.libvirt.xml.definition import Definition
from nova.virt.libvirt.xml.guest_config import guest_config
from nova.virt.libvirt.xml.layout import layout
from nova.virt.libvirt.xml.settings import Spice
from nova.virt.serial_ports import SerialPorts
from tests.integration.processes import free_port
from tests.unit.virt.test_libvirt_domain_xml import DISKS, HOST, SCHEMA, server

register()
LISTENING = dataclasses.replace(HOST, serial_listen="10.0.0.5")


@pytest.fixture
def few() -> Iterator[range]:
    """Yield a range of three free ports."""
    first = free_port(range(3))
    CONF.set_override("port_range", f"{first}:{first + 3}", group="serial_console")
    yield range(first, first + 3)
    CONF.clear_override("port_range", group="serial_console")


def definition(*ports: int, log: str = DISKS.console_log) -> str:
    instance = server({"hw:serial_port_count": str(len(ports) or 1)})
    config = dataclasses.replace(guest_config(instance, LISTENING), serial_tcp=ports)
    local = dataclasses.replace(DISKS, console_log=log)
    return domain_xml.domain_xml(instance, config, local, layout(config, local, [], Definition("")), LISTENING)


def test_allocated_serial_port_is_not_allocated_twice(few: range) -> None:
    ports = SerialPorts()
    assert {*ports.take(1, ()), *ports.take(2, ())} == set(few)
    with pytest.raises(exception.SocketPortRangeExhausted):
        ports.take(1, ())


def test_serial_ports_in_use_are_not_allocated(few: range) -> None:
    with socket.create_server(("127.0.0.1", few[1])):
        assert SerialPorts().take(1, {few[0]}) == (few[2],)


def test_failed_serial_port_allocation_takes_no_port(few: range) -> None:
    ports = SerialPorts()
    with pytest.raises(exception.SocketPortRangeExhausted):
        ports.take(4, ())
    assert set(ports.take(3, ())) == set(few)


def test_serial_ports_listen_on_tcp_and_the_first_is_logged() -> None:
    text = definition(10001, 10002)
    assert serial_ports_of(text) == (10001, 10002)
    first, second = ET.fromstring(text).findall("devices/serial")
    assert first.find("source").attrib == {"mode": "bind", "host": "10.0.0.5", "service": "10001"}  # type: ignore[union-attr]
    assert first.find("log") is not None
    assert second.find("log") is None


@pytest.mark.skipif(not os.path.exists(SCHEMA), reason="no schemas of libvirt")
def test_definition_with_serial_ports_is_valid() -> None:
    etree.RelaxNG(etree.parse(SCHEMA)).assertValid(etree.fromstring(definition(10001, 10002)))


def test_pty_serial_devices_have_no_tcp_ports() -> None:
    assert serial_ports_of(definition()) == ()


@pytest.mark.parametrize(("here", "there"), [((10001,), (10777,)), ((), (10777,)), ((10001,), ())])
def test_migrated_guest_has_the_serial_ports_of_its_destination(here: tuple[int, ...], there: tuple[int, ...]) -> None:
    running = ET.fromstring(definition(*here))
    devices, port = running.find("devices"), running.find("devices/serial")
    assert devices is not None
    assert port is not None
    # libvirt adds the local source to a running guest, and the first port a second time as the console.
    if not here:
        ET.SubElement(port, "source", path="/dev/pts/7")
    ET.SubElement(ET.SubElement(devices, "console", type=port.get("type", "")), "target", type="serial", port="0")
    text = migration_xml.for_destination(ET.tostring(running, encoding="unicode"), definition(*there, log="/there/log"))
    assert serial_ports_of(text) == there
    moved = ET.fromstring(text)
    assert moved.find("devices/console") is None
    assert moved.find("devices/serial/log").get("file") == "/there/log"  # type: ignore[union-attr]
    assert "/dev/pts/7" not in text


def test_migrated_graphics_listen_on_the_destination_addresses() -> None:
    def screens(vnc: str, spice: str) -> ET.Element:
        instance, config = server(), guest_config(server(), HOST)
        host = dataclasses.replace(HOST, vnc_listen=vnc, spice=Spice(spice))
        return ET.fromstring(domain_xml.domain_xml(instance, config, DISKS, layout(config, DISKS, [], Definition("")),
                                                   host))

    running, there = screens("10.0.0.1", "10.1.0.1"), screens("10.0.0.2", "10.1.0.2")
    moved = ET.fromstring(migration_xml.for_destination(ET.tostring(running, encoding="unicode"),
                                                        ET.tostring(there, encoding="unicode")))
    assert [(screen.get("type"), screen.find("listen").get("address"))  # type: ignore[union-attr]
            for screen in moved.findall("devices/graphics")] == [("vnc", "10.0.0.2"), ("spice", "10.1.0.2")]
