"""Attaching and detaching of devices, in the running guest and in its definition; interfaces of guests.

The running guest is changed first, so that the definition is right even after a crash in between."""

import copy
import logging
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects.networks.network import VIF
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework import guest_driver
from nova.virt.libvirt import errors
from nova.virt.libvirt.guests import Guests, Role
from nova.virt.libvirt.xml import device_xml
from nova.virt.libvirt.xml.definition import Definition

LOG = logging.getLogger(__name__)

# A function that returns a device of a definition, or None.
Finder = Callable[[Definition], ET.Element | None]

_LIVE, _CONFIG = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG
# The removal was already requested, or the guest is releasing the device.
_PASSING = frozenset({libvirt.VIR_ERR_DEVICE_MISSING, libvirt.VIR_ERR_OPERATION_FAILED,
                      libvirt.VIR_ERR_OPERATION_INVALID})


class HotplugRole(Role):
    """A role that attaches and detaches devices; both can be repeated."""

    def _attach(self, uuid: str, name: str, find: Finder, build: Callable[[list[Definition]], ET.Element],
                *volumes: BlockDevice) -> None:
        """Attach the device that ``build`` makes for the current definitions, unless they have it. ``volumes``:
        connected volumes whose keys libvirt needs. Raises DeviceAttachFailed."""
        with self._guests.locks.hold(uuid):
            self._guests.give_keys(uuid, volumes)
            live, config = definitions(self._guests, uuid)
            try:
                if live is not None and find(live) is None:
                    item = build([live, config])
                    self._guests.on_domain(uuid, lambda domain: domain.attachDeviceFlags(text_of(item), _LIVE))
                    live, config = definitions(self._guests, uuid)
                if find(config) is None:
                    there = find(live) if live is not None else None
                    # The same address as in the running guest, so that it does not change.
                    item = lasting(there) if there is not None else build([config])
                    self._guests.on_domain(uuid, lambda domain: domain.attachDeviceFlags(text_of(item), _CONFIG))
            except libvirt.libvirtError as error:
                self._guests.forget_keys(uuid)
                raise exception.DeviceAttachFailed(device=name, reason=error.get_error_message()) from error

    def _detach(self, uuid: str, name: str, find: Finder) -> None:
        """Detach a device. Succeeds if the device or the guest is not there. Raises DeviceDetachFailed."""
        try:
            self._detach_live(uuid, name, find)
            with self._guests.locks.hold(uuid):
                _live, config = definitions(self._guests, uuid)
                item = find(config)
                if item is not None:
                    self._guests.on_domain(uuid, lambda domain: domain.detachDeviceFlags(text_of(item), _CONFIG))
        except exception.GuestNotFound:
            LOG.debug("[instance: %s] The instance has no guest to detach %s from", uuid, name)

    def _detach_live(self, uuid: str, name: str, find: Finder) -> None:
        """Request the removal until the guest releases the device. The lock is held for requests only, so that
        high-priority actions need not wait."""
        attempts = CONF.libvirt.device_detach_attempts
        with self._guests.host.changes_of(uuid) as wait:
            for attempt in range(1, attempts + 1):
                with self._guests.locks.hold(uuid):
                    live, _config = definitions(self._guests, uuid)
                    item = find(live) if live is not None else None
                    if item is None:
                        return
                    self._ask(uuid, item)
                if self._released(uuid, find, wait, CONF.libvirt.device_detach_timeout):
                    return
                LOG.warning("[instance: %s] The guest did not release %s in %d s (attempt %d of %d)", uuid, name,
                            CONF.libvirt.device_detach_timeout, attempt, attempts)
        raise exception.DeviceDetachFailed(device=name, reason=f"the guest ignored {attempts} requests")

    def _ask(self, uuid: str, item: ET.Element) -> None:
        try:
            self._guests.on_domain(uuid, lambda domain: domain.detachDeviceFlags(text_of(item), _LIVE))
        except libvirt.libvirtError as error:
            if errors.is_disconnect(error) or error.get_error_code() not in _PASSING:
                raise
            LOG.debug("[instance: %s] %s", uuid, error)

    def _released(self, uuid: str, find: Finder, wait: Callable[[float], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            live, _config = definitions(self._guests, uuid)
            if live is None or find(live) is None:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            wait(min(left, 1.0))


class Interfaces(HotplugRole, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        if not device_xml.is_plugged(vif):
            return
        config = self._guests.config(instance)
        self._attach(instance.uuid, f"interface {vif.mac}", lambda current: current.interface(vif.mac),
                     lambda current: device_xml.add_interface(ET.Element("devices"), vif, config))

    def detach(self, instance: Instance, vif: VIF) -> None:
        self._detach(instance.uuid, f"interface {vif.mac}", lambda current: current.interface(vif.mac))


def definitions(guests: Guests, uuid: str) -> tuple[Definition | None, Definition]:
    """Return the live definition (None if stopped) and the persistent definition. Raises GuestNotFound."""
    def query(domain: libvirt.virDomain) -> tuple[Definition | None, Definition]:
        live = Definition(domain.XMLDesc(0)) if domain.isActive() else None
        return live, Definition(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

    return guests.on_domain(uuid, query)


def end_block_job(domain: libvirt.virDomain, target: str, flags: int = 0) -> None:
    """End the block job of a disk; ``flags``: of blockJobAbort. Succeeds if there is no job."""
    try:
        domain.blockJobAbort(target, flags)
    except libvirt.libvirtError as error:
        if not errors.says_no_job(error):
            raise
        LOG.debug("[instance: %s] Disk %s has no block job to end: %s", domain.UUIDString(), target, error)


def lasting(item: ET.Element) -> ET.Element:
    """Return a device of a running guest without its runtime-only parts."""
    lasting_item = copy.deepcopy(item)
    for tag in ("alias", "backingStore", "privateData"):
        for child in lasting_item.findall(tag):
            lasting_item.remove(child)
    source = lasting_item.find("source")
    if source is not None:
        source.attrib.pop("index", None)
    return lasting_item


def text_of(item: ET.Element) -> str:
    return ET.tostring(item, encoding="unicode")
