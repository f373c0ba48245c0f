"""The guests of a host in libvirt: queries, definition, start, removal, and a lock per guest."""

import contextlib
import dataclasses
import logging
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import TypeVar

import libvirt

from nova import exception
from nova.conf import CONF
from nova.objects.servers.guest import Diagnostics, GuestStatus
from nova.objects.servers.instance import BlockDevice, DeviceAddress, Instance
from nova.virt.guest_files import directories
from nova.virt.guest_files.local_guests import LocalGuests
from nova.virt.guest_locks import LOCK_TIMEOUT, GuestLocks
from nova.virt.libvirt import diagnostics, errors, power, secrets
from nova.virt.libvirt.files import disks, tpm
from nova.virt.libvirt.host import Host
from nova.virt.libvirt.node import inventory
from nova.virt.libvirt.node.capabilities import Capabilities, foreign, of_guests, of_host
from nova.virt.libvirt.xml import domain_xml
from nova.virt.libvirt.xml.definition import Definition, device_addresses
from nova.virt.libvirt.xml.guest_config import GuestConfig, default_machine, guest_config
from nova.virt.libvirt.xml.guest_platforms import FOREIGN
from nova.virt.libvirt.xml.layout import layout
from nova.virt.libvirt.xml.settings import Settings, from_conf, with_cells, with_cpu
from nova.virt.serial_ports import SerialPorts

LOG = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds that the guest agent, a program of a tenant, has to set a password (libvirt's default: no limit).
_AGENT_TIMEOUT = 10

# Name of the file, in the directory of a guest that moves, with the guest's definition on the source host.
MOVED_DEFINITION = "domain.xml"


class Guests(LocalGuests):
    """The guests of a host, with the connection, the host's settings and the locks that all roles of the driver use."""

    # Function that requests the shutdown of a running domain.
    request_shutdown = staticmethod(power.press_power_button)

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host
        self.locks = GuestLocks()
        self._capabilities: Capabilities | None = None
        self._settings: Settings | None = None
        self.serial_ports = SerialPorts()

    # --- the host ----------------------------------------------------------------------------------
    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities or self.learn()[0]

    @property
    def settings(self) -> Settings:
        return self._settings or self.learn()[1]

    def forget_capabilities(self) -> None:
        """Drop the cached capabilities: libvirt may have been upgraded."""
        self._capabilities = None

    def learn(self) -> tuple[Capabilities, Settings]:
        """Read the capabilities of the host. Raises NotSupported or InvalidInput for unsupported options."""
        host = self.host.call(of_host)
        virt_type = CONF.libvirt.virt_type
        if virt_type not in {kind for arch, kind, _mode in host.guests if arch == host.arch}:
            raise exception.NotSupported(
                f"This host does not support guests of the type {virt_type}; set [libvirt]virt_type to another type.")
        plain = from_conf(self.name, host.arch, host.host_uuid,
                          direct_io=directories.supports_direct_io(CONF.instances_path), machine_names=host.machines)
        default = default_machine(plain)
        machines = (default, *({"pc", "q35"} - {default})) if host.arch == "x86_64" else (default,)
        capabilities = self.host.call(lambda connection: of_guests(connection, host, plain, machines))
        if plain.spice and "spice" not in capabilities.graphics:
            raise exception.NotSupported("QEMU on this host does not support SPICE: set [spice]enabled = false.")
        chosen = with_cells(with_cpu(plain, capabilities.cpu_modes, capabilities.models), host.cells)
        if chosen.cpu_mode == "custom":
            capabilities = self.host.call(lambda connection: of_guests(connection, host, chosen, machines))
        others = self.host.call(lambda connection: foreign(
            connection, capabilities, chosen, {name: default_machine(chosen, name) for name in FOREIGN}))
        version = self.host.call(lambda connection: int(connection.getLibVersion()))
        emulator = next((path for arch, path, _machines in host.emulators if arch == host.arch), "")
        device_traits = inventory.traits_of_devices(
            inventory.devices_of(emulator), version, host.arch) | inventory.network_traits()
        # Return local variables: another thread may drop the cached values at any time.
        settings = dataclasses.replace(chosen, foreign=others, secure_boot=capabilities.secure_boot,
                                       tpm=capabilities.tpm)
        capabilities = dataclasses.replace(capabilities, foreign=others, model_traits=frozenset(device_traits))
        self._capabilities, self._settings = capabilities, settings
        return capabilities, settings

    # --- queries -----------------------------------------------------------------------------------
    def call(self, action: Callable[[libvirt.virConnect], T], uuid: str = "") -> T:
        """Call ``action(connection)`` like Host.call(), unless another action has bypassed this one."""
        def checked(connection: libvirt.virConnect) -> T:
            self.locks.check()
            return action(connection)

        return self.host.call(checked, uuid)

    def on_domain(self, uuid: str, action: Callable[[libvirt.virDomain], T]) -> T:
        """Call ``action(domain)`` like call(); repeated after a restart of libvirtd. Raises GuestNotFound."""
        return self.call(lambda connection: action(connection.lookupByUUIDString(uuid)), uuid)

    def on_domain_or(self, uuid: str, action: Callable[[libvirt.virDomain], T], otherwise: T) -> T:
        """Return the result of on_domain(), or ``otherwise`` if the guest does not exist."""
        try:
            return self.on_domain(uuid, action)
        except exception.GuestNotFound:
            return otherwise

    def power_state(self, uuid: str) -> int:
        def query(domain: libvirt.virDomain) -> int:
            if power.is_arriving(domain):
                raise exception.GuestNotFound(instance_uuid=uuid)
            return power.state(domain)

        return self.on_domain(uuid, query)

    def all(self) -> list[GuestStatus]:
        return self.host.call(self._list)

    def device_addresses(self, uuid: str) -> list[DeviceAddress]:
        return list(device_addresses(Definition(self.on_domain(uuid, lambda domain: str(domain.XMLDesc(0))))))

    def diagnostics(self, instance: Instance) -> Diagnostics:
        return self.host.call(
            lambda connection: diagnostics.collect(connection, connection.lookupByUUIDString(instance.uuid), instance),
            instance.uuid)

    def traces(self) -> set[str]:
        return super().traces() | directories.retained_servers()

    def set_password(self, instance: Instance, password: str) -> None:
        properties = instance.image.properties if instance.image else {}
        default = "Administrator" if properties.get("os_type") == "windows" else "root"

        def change(domain: libvirt.virDomain) -> None:
            try:
                domain.agentSetResponseTimeout(_AGENT_TIMEOUT)
                domain.setUserPassword(properties.get("os_admin_user") or default, password)
            except libvirt.libvirtError as error:
                if errors.is_disconnect(error) or errors.is_missing(error):
                    raise
                raise exception.InstancePasswordSetFailed(
                    instance=instance.uuid, reason=str(error.get_error_message() or error)) from error

        self.on_domain(instance.uuid, change)

    def actual_power_state(self, uuid: str) -> int:
        """Return the power state of a guest of this nova-compute that is on this host. Raises GuestNotFound."""
        def query(domain: libvirt.virDomain) -> int:
            if not self._is_ours(domain) or not power.is_here(domain):
                raise exception.GuestNotFound(instance_uuid=uuid)
            return power.state(domain)

        return self.on_domain(uuid, query)

    def _list(self, connection: libvirt.virConnect) -> list[GuestStatus]:
        guests = []
        for domain in connection.listAllDomains():
            try:
                if self._is_ours(domain) and power.is_here(domain):
                    guests.append(GuestStatus(uuid=domain.UUIDString(), power_state=power.state(domain)))
            except libvirt.libvirtError as error:
                if not errors.is_missing(error):
                    raise
        return guests

    def _is_ours(self, domain: libvirt.virDomain) -> bool:
        """Return True if the domain's metadata name this nova-compute as the owner."""
        try:
            text = domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, domain_xml.NAMESPACE)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                return False
            raise
        return domain_xml.owner_of(text) == self.name

    # --- definition --------------------------------------------------------------------------------
    def config(self, instance: Instance, is_new: bool = False) -> GuestConfig:
        """Return the virtual hardware of a server. A server that ran before keeps its architecture, unless ``is_new``.
        Raises InvalidInput, which names the unsupported property."""
        if is_new or instance.launched_at is None:
            return guest_config(instance, self.settings)
        return guest_config(instance, self.settings, self.previous(instance.uuid).architecture)

    def definition_of(self, instance: Instance) -> str:
        """Give libvirt the server's keys and return its domain definition. Raises InvalidInput, InvalidDiskInfo."""
        config = self.with_ports(instance, self.config(instance))
        self.give_keys(instance.uuid, instance.block_devices, instance.tpm_secret)
        local = disks.inspect_disks(instance)
        previous = self.previous(instance.uuid)
        return domain_xml.domain_xml(instance, config, local,
                                     layout(config, local, instance.block_devices, previous), self.settings, previous)

    def give_keys(self, uuid: str, devices: Sequence[BlockDevice], tpm_secret: str | None = None) -> None:
        """Give libvirt the keys of the guest's encrypted, connected volumes and of its virtual TPM."""
        if tpm_secret or any(device.connection and device.connection.key for device in devices):
            self.call(lambda connection: secrets.define(connection, uuid, devices, tpm_secret), uuid)

    def forget_keys(self, uuid: str) -> None:
        """Undefine the libvirt secrets that the guest does not use any longer. The caller holds the guest's lock."""
        def query(domain: libvirt.virDomain) -> str:
            return str(domain.XMLDesc(0)) + str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))

        if self.call(lambda connection: secrets.of_server(connection, uuid), uuid):
            defined = self.on_domain_or(uuid, query, "")
            self.call(lambda connection: secrets.undefine(connection, uuid, defined), uuid)

    def with_ports(self, instance: Instance, config: GuestConfig) -> GuestConfig:
        """Assign TCP ports to serial consoles; a running guest keeps its own. Raises SocketPortRangeExhausted."""
        if not self.settings.serial_listen or not config.serial_ports:
            return config
        all_ports = self.host.call(_serial_ports_of_all)
        running, has = all_ports.pop(instance.uuid, (False, ()))
        if not running or len(has) != config.serial_ports:
            taken = {port for _running, ports in all_ports.values() for port in ports}
            has = self.serial_ports.take(config.serial_ports, taken)
        return dataclasses.replace(config, serial_tcp=has)

    def previous(self, uuid: str) -> Definition:
        """Return the guest's definition before a rescue: from this host, else from the migration source, else empty."""
        return Definition(directories.text(uuid, disks.BEFORE_RESCUE) or self.definition_now(uuid)
                          or directories.text(uuid, MOVED_DEFINITION))

    def definition_now(self, uuid: str) -> str:
        """Return the guest's persistent libvirt definition, or "" if the guest does not exist."""
        return self.on_domain_or(uuid, lambda domain: str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)), "")

    def redefine(self, instance: Instance) -> None:
        """Define the guest again, for its next start. This host becomes the owner of the guest's disks."""
        directories.take(instance.uuid, self.name)
        self._define(instance, self.definition_of(instance))

    def _define(self, instance: Instance, xml: str) -> None:
        name = instance.name_by(self.settings.names)
        self.call(lambda connection: define_domain(connection, name, xml), instance.uuid)
        tpm.restore(instance.uuid, Definition(xml).tpm_version)  # libvirt removes states of defined guests only
        directories.remove_files(instance.uuid, disks.OF_RESCUE)

    def define(self, instance: Instance) -> list[DeviceAddress] | None:
        with self.locks.hold(instance.uuid):
            if self.is_active(instance.uuid):
                return None
            self.redefine(instance)
            return self.device_addresses(instance.uuid)

    # --- lifecycle ---------------------------------------------------------------------------------
    def stop(self, uuid: str) -> None:
        try:
            self.change(uuid, power.kill)
        except exception.GuestNotFound:
            LOG.debug("[instance: %s] The instance has no guest on this host", uuid)

    def start(self, instance: Instance, fresh: bool = False, must_exist: bool = False, paused: bool = False) -> None:
        """Start the guest with its current definition. ``fresh``: power-cycle a guest in any state. ``must_exist``:
        raise GuestNotFound instead of defining the guest. ``paused``: a stopped guest starts paused."""
        with self.locks.hold(instance.uuid, LOCK_TIMEOUT if fresh else None):
            exists = self.exists(instance.uuid)
            if must_exist and not exists:
                raise exception.GuestNotFound(instance_uuid=instance.uuid)
            xml = self.definition_of(instance)
            if "<tpm " in xml and not instance.tpm_secret and (fresh or not self.is_active(instance.uuid)):
                raise exception.TpmSecretUnavailable(instance_uuid=instance.uuid)
            if exists and fresh:
                self.on_domain(instance.uuid, power.stop)
            directories.take(instance.uuid, self.name)
            if not self.is_active(instance.uuid):
                self._define(instance, xml)
            self.on_domain(instance.uuid, lambda domain: power.start(domain, paused))

    def _remove(self, uuid: str, keep_disks: bool) -> None:
        """Stop and undefine the guest. Remove its files, unless they are retained or belong to another host."""
        directories.directory(uuid)
        with self.locks.hold(uuid, LOCK_TIMEOUT):
            self.on_domain_or(uuid, lambda domain: power.remove(domain, keep_disks), None)
            self.forget_keys(uuid)
            if not keep_disks:
                directories.remove(uuid, self.name)

    def change(self, uuid: str, action: Callable[[libvirt.virDomain], None]) -> None:
        """Call ``action(domain)`` under the guest's lock."""
        with self.locks.hold(uuid):
            self.on_domain(uuid, action)

    def shut_down(self, uuid: str, timeout: float) -> bool:
        """Request a shutdown; return True if the guest stops within ``timeout`` seconds. Waits without the lock."""
        with self.host.changes_of(uuid) as wait:
            return self.host.call(
                lambda connection: power.shut_down(connection, uuid, timeout, wait, press=self.request_shutdown), uuid)

    def shut_down_if_present(self, uuid: str, timeout: float) -> None:
        """Shut the guest down like shut_down(), if the guest exists and ``timeout`` is not 0."""
        if timeout > 0:
            with contextlib.suppress(exception.GuestNotFound):
                self.shut_down(uuid, timeout)

    def exists(self, uuid: str) -> bool:
        """Return True if the guest exists in libvirt."""
        return self.on_domain_or(uuid, lambda domain: True, False)

    def is_active(self, uuid: str) -> bool:
        """Return True if the guest is active. Return False if the guest does not exist."""
        return self.on_domain_or(uuid, lambda domain: bool(domain.isActive()), False)


class Role:
    """A role of the driver, which acts on the guests of its host."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests


def _serial_ports_of_all(connection: libvirt.virConnect) -> dict[str, tuple[bool, tuple[int, ...]]]:
    """Return for each domain its running state and the TCP ports of its serial consoles."""
    ports = {}
    for domain in connection.listAllDomains():
        try:
            ports[domain.UUIDString()] = bool(domain.isActive()), serial_ports_of(domain.XMLDesc(0))
        except libvirt.libvirtError as error:
            if not errors.is_missing(error):
                raise
    return ports


def define_domain(connection: libvirt.virConnect, name: str, xml: str) -> None:
    try:
        connection.defineXML(xml)
    except libvirt.libvirtError as error:
        if f"domain '{name}' already exists" in error.get_error_message():
            raise exception.Conflict(f"Another guest on the host has the name {name}.") from error
        raise


def serial_ports_of(text: str) -> tuple[int, ...]:
    """Return the ports that a domain's serial ports listen on."""
    devices = ET.fromstring(text)  # noqa: S314 - libvirt's own output
    sources = devices.iterfind("devices/serial[@type='tcp']/source[@mode='bind']")
    return tuple(int(port) for source in sources if (port := source.get("service", "")).isdecimal())
