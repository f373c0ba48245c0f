"""The libvirt driver: QEMU guests, emulated (qemu) or virtualized (kvm).

A guest is a domain with the server's uuid and name, marked with Nova's metadata element, and a
directory with its files. Both are made anew from the description of the server whenever it starts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects import states
from nova.objects.compute import ComputeNode, GuestStatus
from nova.objects.instance import Instance
from nova.virt.driver import Disks, Driver, EventHandler
from nova.virt.libvirt import (
    console,
    diagnostics,
    disks,
    domain_xml,
    errors,
    inventory,
    power,
    settings,
    wishes,
)
from nova.virt.libvirt.capabilities import Capabilities, of_guests, of_host
from nova.virt.libvirt.events import EventReporter
from nova.virt.libvirt.host import Host

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_URIS = {"kvm": "qemu:///system", "qemu": "qemu:///system", "lxc": "lxc:///"}


class LibvirtDriver(Driver):
    """Actions on one guest never overlap, except that nothing waits for a guest that shuts down slowly."""

    capabilities = frozenset({"console_output", "diagnostics", "pause", "suspend"})

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._host = Host(CONF.libvirt.connection_uri or _URIS[CONF.libvirt.virt_type])
        self._locks = _Locks()
        self._events: EventReporter | None = None
        self._found: Capabilities | None = None
        self._settings: settings.Settings | None = None

    # --- the host ----------------------------------------------------------------------------------
    def start(self, on_event: EventHandler) -> None:
        if CONF.libvirt.virt_type == "lxc":
            raise exception.NotSupported("[libvirt]virt_type lxc is not supported yet.")
        disks.make_instances_path()
        self._host.start()
        self._learn()
        self._events = EventReporter(self._look, self.guests, on_event)
        self._events.start()
        self._host.on_lifecycle = self._events.changed
        self._host.on_connected = self._reconnected

    def stop(self) -> None:
        self._host.on_lifecycle = self._host.on_connected = None
        if self._events is not None:
            self._events.stop()
        self._host.stop()

    def nodes(self) -> list[ComputeNode]:
        found = self._found or self._learn()
        return [self._host.call(lambda connection: inventory.take(connection, self.host, found))]

    # --- life of a guest ---------------------------------------------------------------------------
    def prepare(self, instance: Instance, disks_: Disks) -> None:
        wishes.check(instance)
        with self._locks.hold(instance.uuid):
            disks.make(instance, disks_)

    def spawn(self, instance: Instance, disks_: Disks) -> None:
        self._start(instance)

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        self._remove(instance.uuid, keep_disks)

    def traces(self) -> set[str]:
        return super().traces() | disks.kept()

    def remove_leftovers(self, uuid: str) -> None:
        self._remove(uuid, keep_disks=False)

    def power_on(self, instance: Instance) -> None:
        self._start(instance)

    def power_off(self, instance: Instance, timeout: int = 0) -> None:
        if timeout > 0:
            self._shut_down(instance.uuid, timeout)
        with self._locks.hold(instance.uuid):
            self._on_domain(instance.uuid, power.stop)

    def reboot(self, instance: Instance, hard: bool, timeout: int = 0) -> None:
        if hard:
            self._start(instance, fresh=True)
            return
        stopped = self._shut_down(instance.uuid, timeout or CONF.libvirt.wait_soft_reboot_seconds)
        if not stopped:
            LOG.info("Server %s did not shut down by itself; its reboot is a hard one", instance.uuid)
        self._start(instance, fresh=not stopped, must_exist=True)

    def pause(self, instance: Instance) -> None:
        self._change(instance.uuid, power.pause)

    def unpause(self, instance: Instance) -> None:
        self._change(instance.uuid, power.unpause)

    def suspend(self, instance: Instance) -> None:
        self._change(instance.uuid, power.save)

    def resume(self, instance: Instance) -> None:
        with self._locks.hold(instance.uuid):
            if self._on_domain(instance.uuid, power.state) == states.POWER_SUSPENDED:
                self._on_domain(instance.uuid, power.start)
                return
        self._start(instance)

    # --- looking -----------------------------------------------------------------------------------
    def guests(self) -> list[GuestStatus]:
        return self._host.call(self._list)

    def power_state(self, uuid: str) -> int:
        return self._on_domain(uuid, power.state)

    def console_output(self, instance: Instance, lines: int | None = None) -> bytes:
        return console.read(disks.directory(instance.uuid), instance.uuid, lines)

    def diagnostics(self, instance: Instance) -> dict[str, Any]:
        return self._host.call(
            lambda connection: diagnostics.collect(connection, connection.lookupByUUIDString(instance.uuid), instance),
            instance.uuid)

    def used_images(self) -> Sequence[str]:
        return sorted(disks.bases_in_use())

    # --- inside: the host --------------------------------------------------------------------------
    def _reconnected(self) -> None:
        """It may be another version of libvirt now, and events may have been missed."""
        self._found = None
        if self._events is not None:
            self._events.reconnected()

    def _learn(self) -> Capabilities:
        """Read what the host can do, once; refuse a configuration that it cannot fulfil."""
        host = self._host.call(of_host)
        virt_type = CONF.libvirt.virt_type
        if virt_type not in {kind for arch, kind, _mode in host.guests if arch == host.arch}:
            raise exception.NotSupported(
                f"This host has no guests of the type {virt_type}; set [libvirt]virt_type to another one.")
        plain = settings.from_conf(self.host, host.arch, host.host_uuid,
                                   direct_io=disks.supports_direct_io(CONF.instances_path),
                                   known_machines=host.machines)
        machines = ("pc", "q35") if host.arch == "x86_64" else (domain_xml.default_machine(plain),)
        found = self._host.call(lambda connection: of_guests(connection, host, plain, machines))
        chosen = settings.with_cpu(plain, found.cpu_modes, found.models)
        if chosen.cpu_mode == "custom":
            found = self._host.call(lambda connection: of_guests(connection, host, chosen, machines))
        self._settings, self._found = chosen, found
        return found

    def _list(self, connection: libvirt.virConnect) -> list[GuestStatus]:
        found = []
        for domain in connection.listAllDomains():
            try:
                if self._is_ours(domain):
                    found.append(GuestStatus(uuid=domain.UUIDString(), power_state=power.state(domain)))
            except libvirt.libvirtError as error:
                if not errors.is_missing(error):
                    raise
        return found

    def _is_ours(self, domain: libvirt.virDomain) -> bool:
        """Whether it is a guest of this nova-compute; the host may have others."""
        try:
            text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, domain_xml.NAMESPACE)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                return False
            raise
        return domain_xml.owner_of(text) == self.host

    def _look(self, uuid: str) -> int:
        def look(domain: libvirt.virDomain) -> int:
            if not self._is_ours(domain):
                raise exception.GuestNotFound(instance_uuid=uuid)
            return power.state(domain)

        return self._on_domain(uuid, look)

    # --- inside: one guest -------------------------------------------------------------------------
    def _on_domain(self, uuid: str, action: Callable[[libvirt.virDomain], T]) -> T:
        """``action(domain)``, repeated when libvirtd restarts. Raises GuestNotFound."""
        return self._host.call(lambda connection: action(connection.lookupByUUIDString(uuid)), uuid)

    def _change(self, uuid: str, action: Callable[[libvirt.virDomain], None]) -> None:
        with self._locks.hold(uuid):
            self._on_domain(uuid, action)

    def _shut_down(self, uuid: str, timeout: float) -> bool:
        """Without the guest's lock: a hard reboot or a delete does not wait for a slow guest."""
        return self._host.call(lambda connection: power.shut_down(connection, uuid, timeout), uuid)

    def _start(self, instance: Instance, fresh: bool = False, must_exist: bool = False) -> None:
        """Make the guest run under its definition of now; ``fresh``: by a power cycle, whatever it does now."""
        if self._settings is None:
            self._learn()
        assert self._settings is not None
        with self._locks.hold(instance.uuid):
            if must_exist:
                self.power_state(instance.uuid)
            xml = domain_xml.domain_xml(instance, disks.look(instance), self._settings)
            self._host.call(lambda connection: _run(connection, instance, xml, fresh), instance.uuid)

    def _remove(self, uuid: str, keep_disks: bool) -> None:
        disks.directory(uuid)
        with self._locks.hold(uuid):
            with contextlib.suppress(exception.GuestNotFound):
                self._on_domain(uuid, lambda domain: power.remove(domain, keep_disks))
            if not keep_disks:
                disks.remove(uuid)


def _run(connection: libvirt.virConnect, instance: Instance, xml: str, fresh: bool) -> None:
    domain = _find(connection, instance.uuid)
    if domain is not None and fresh:
        power.stop(domain)
    elif domain is not None and domain.isActive():
        power.start(domain)
        return
    power.start(_define(connection, instance, xml))


def _define(connection: libvirt.virConnect, instance: Instance, xml: str) -> libvirt.virDomain:
    try:
        return connection.defineXML(xml)
    except libvirt.libvirtError as error:
        if f"domain '{instance.name}' already exists" in error.get_error_message():
            raise exception.Conflict(f"Another guest on the host has the name {instance.name}.") from error
        raise


def _find(connection: libvirt.virConnect, uuid: str) -> libvirt.virDomain | None:
    try:
        return connection.lookupByUUIDString(uuid)
    except libvirt.libvirtError as error:
        if errors.is_missing(error):
            return None
        raise


class _Locks:
    """A lock per guest, kept while somebody wants it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.RLock, int]] = {}

    @contextlib.contextmanager
    def hold(self, uuid: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(uuid, (threading.RLock(), 0))
            self._locks[uuid] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[uuid]
                if users == 1:
                    del self._locks[uuid]
                else:
                    self._locks[uuid] = (lock, users - 1)
