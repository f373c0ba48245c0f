"""The devices of a domain: disks, interfaces, serial ports, screens and auxiliary devices."""

import copy
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from nova import exception
from nova.objects.networks.network import VIF
from nova.objects.volumes.share import ShareMapping
from nova.objects.volumes.volume import VolumeConnection
from nova.virt.libvirt.files.disks import LocalDisk
from nova.virt.libvirt.xml import guest_parts
from nova.virt.libvirt.xml.guest_config import GuestConfig
from nova.virt.libvirt.xml.layout import TPM, GuestDisk, secret_of
from nova.virt.libvirt.xml.settings import Settings
from nova.virt.libvirt.xml.xmltree import element

# Protocols of network disks that QEMU itself implements.
_NETWORK_PROTOCOLS = ("rbd", "iscsi", "nbd")
# Protocols of volumes that can receive the SCSI commands of a guest (device_type=lun).
_PASSED_THROUGH = ("block", "iscsi")
# Numbers of PCI Express ports: for fixed devices (screen, balloon and others), and spare ones for hotplug.
_PORTS_OF_HELPERS, _SPARE_PORTS = 6, 8


def add(domain: ET.Element, config: GuestConfig, disks: Sequence[GuestDisk], interfaces: Sequence[VIF],
        shares: Sequence[ShareMapping], console_log: str, settings: Settings) -> ET.Element:
    """Append <devices>; return it."""
    devices = element(domain, "devices")
    for disk in disks:
        add_disk(devices, disk, config, settings)
    _add_controllers(devices, config, disks, len(interfaces) + len(shares), settings)
    for mapping in shares:
        # virtiofsd, a separate process, serves this directory of the host to the guest.
        item = element(devices, "filesystem", type="mount", accessmode="passthrough")
        element(item, "driver", type="virtiofs")
        element(item, "source", dir=mapping.path)
        element(item, "target", dir=mapping.tag)
    for vif in interfaces:
        if is_plugged(vif):
            add_interface(devices, vif, config)
    for port in range(config.serial_ports):
        # Only the output of the first port is logged.
        serial = element(devices, "serial", type="tcp" if config.serial_tcp else "pty")
        if config.serial_tcp:
            element(serial, "source", mode="bind", host=settings.serial_listen, service=config.serial_tcp[port])
            element(serial, "protocol", type="raw")
        if port == 0:
            element(serial, "log", file=console_log, append="on")
        element(serial, "target", port=port)
    guest_parts.add_devices(devices, config.parts)
    _add_screen(devices, config, settings)
    if config.guest_agent:
        element(element(devices, "channel", type="unix"), "target", type="virtio", name="org.qemu.guest_agent.0")
    _add_helpers(devices, config, settings)
    return devices


# --- disks -----------------------------------------------------------------------------------------
def add_disk(devices: ET.Element, disk: GuestDisk, config: GuestConfig, settings: Settings) -> ET.Element:
    """Append a <disk>; return it."""
    if disk.unchanged is not None:
        item = copy.deepcopy(disk.unchanged)
        for boot in item.findall("boot"):
            item.remove(boot)
        if disk.boot_order:
            element(item, "boot", order=disk.boot_order)
        devices.append(item)
        return item
    if disk.local is not None:
        item = _local_disk(devices, disk, disk.local, settings)
        limits = config.disk_limits if disk.device == "disk" else ()
    else:
        assert disk.volume is not None
        item = _volume(devices, disk, disk.volume, settings)
        limits = tuple(sorted(disk.volume.limits.items()))
    driver = item.find("driver")
    if config.packed and disk.bus == "virtio" and driver is not None:
        driver.set("packed", "on")
    element(item, "target", dev=disk.target, bus=disk.bus)
    if disk.boot_order:
        element(item, "boot", order=disk.boot_order)
    if limits:
        tune = element(item, "iotune")
        for name, value in limits:
            element(tune, name, value)
    if disk.volume is not None:
        element(item, "serial", disk.key)
        if disk.volume.shareable:
            element(item, "shareable")
    if disk.device == "cdrom" or (disk.volume is not None and disk.volume.read_only):
        element(item, "readonly")
    return item


def _local_disk(devices: ET.Element, disk: GuestDisk, local: LocalDisk, settings: Settings) -> ET.Element:
    item = element(devices, "disk", type="file", device=disk.device)
    element(item, "driver", name="qemu", type=local.format, cache=settings.cache,
            discard=settings.discard if disk.device == "disk" else None)
    element(item, "source", file=local.path)
    if local.base is not None:
        # Declare all backing files, so that QEMU does not probe them and root remains owner of the shared base image.
        path, image_format = local.base
        base = element(item, "backingStore", type="file")
        element(base, "format", type=image_format)
        element(element(base, "source", file=path), "seclabel", model="dac", relabel="no")
        element(base, "backingStore")
    return item


def _volume(devices: ET.Element, disk: GuestDisk, volume: VolumeConnection, settings: Settings) -> ET.Element:
    network = volume.protocol in _NETWORK_PROTOCOLS
    kind = "network" if network else volume.protocol
    if kind not in ("file", "block", "network"):
        raise exception.InvalidDiskInfo(reason=f"volumes of the protocol {volume.protocol} are not supported")
    if disk.device == "lun" and volume.protocol not in _PASSED_THROUGH:
        raise exception.InvalidDiskInfo(
            reason=f"device_type=lun: volumes of the protocol {volume.protocol} do not accept SCSI commands of guests")
    item = element(devices, "disk", type=kind, device=disk.device)
    # Bypass the page cache of the host wherever possible, since another host may read the volume next.
    cache = settings.cache if kind == "file" and not volume.shareable else "none"
    element(item, "driver", name="qemu", type=volume.format, cache=cache,
            discard="unmap" if volume.discard and disk.device == "disk" else None)
    if not network:
        source = element(item, "source", **{"file" if kind == "file" else "dev": volume.path})
        _add_encryption(source, disk)
        if volume.format != "raw":
            # The definition names each backing file, so that QEMU does not follow the names in the files.
            above = item
            for path, disk_format in volume.below:
                above = element(above, "backingStore", type="file")
                element(above, "format", type=disk_format)
                element(above, "source", file=path)
            element(above, "backingStore")
        return item
    if volume.auth_user and volume.secret_uuid:
        auth = element(item, "auth", username=volume.auth_user)
        element(auth, "secret", type="ceph" if volume.protocol == "rbd" else volume.protocol, uuid=volume.secret_uuid)
    source = element(item, "source", protocol=volume.protocol, name=volume.path)
    for name, port in volume.hosts:
        element(source, "host", name=name, port=port or None)
    _add_encryption(source, disk)
    return item


def _add_encryption(source: ET.Element, disk: GuestDisk) -> None:
    if disk.secret:
        element(element(source, "encryption", format="luks"), "secret", type="passphrase", uuid=disk.secret)


def _add_controllers(devices: ET.Element, config: GuestConfig, disks: Sequence[GuestDisk], others: int,
                     settings: Settings) -> None:
    if any(disk.bus == "scsi" for disk in disks):
        controller = element(devices, "controller", type="scsi", index=0, model=config.scsi_model)
        _pack(controller, config, config.scsi_model == "virtio-scsi")
    usual = None if config.is_x86 or not config.platform.has_usb or not _has_screen(settings) else "qemu-xhci"
    usb_model = config.usb_model or usual
    if usb_model:
        element(devices, "controller", type="usb", index=0, model=usb_model)
    if config.packed and (config.guest_agent or (settings.spice and settings.spice.agent)):
        _pack(element(devices, "controller", type="virtio-serial", index=0), config)
    if config.has_pcie:
        # Every device needs its own port, and ports cannot be added to a running guest.
        own = len(disks) + others + len(config.parts.devices) + (2 if config.input_bus == "virtio" else 0)
        ports = settings.pcie_ports or own + _PORTS_OF_HELPERS + _SPARE_PORTS
        for index in range(1, ports + 1):
            element(devices, "controller", type="pci", index=index, model="pcie-root-port")


# --- interfaces ------------------------------------------------------------------------------------
def is_plugged(vif: VIF) -> bool:
    """Return True if the guest gets a device for the interface: if the interface has a bridge."""
    return bool(_bridge(vif))


def _bridge(vif: VIF) -> str:
    return vif.bridge or str(vif.details.get("bridge_name", ""))


def add_interface(devices: ET.Element, vif: VIF, config: GuestConfig) -> ET.Element:
    """Append an <interface>; return it."""
    item = element(devices, "interface", type="bridge")
    element(item, "mac", address=vif.mac)
    element(item, "source", bridge=_bridge(vif))
    if vif.vif_type == "ovs":
        element(element(item, "virtualport", type="openvswitch"), "parameters", interfaceid=vif.id)
    element(item, "target", dev=vif.devname)
    element(item, "model", type=config.vif_model)
    packed = config.packed and config.vif_model == "virtio"
    if config.vif_queues > 1 or packed:
        element(item, "driver", queues=config.vif_queues if config.vif_queues > 1 else None,
                packed="on" if packed else None)
    if config.vif_limits:
        bandwidth = element(item, "bandwidth")
        for direction, limits in config.vif_limits:
            element(bandwidth, direction, **dict(limits))
    element(item, "mtu", size=vif.mtu)
    return item


# --- consoles and helpers ----------------------------------------------------------------------------
def _add_screen(devices: ET.Element, config: GuestConfig, settings: Settings) -> None:
    seen = _has_screen(settings)
    bus = config.input_bus or (config.platform.input_bus if seen and config.usb_model != "none" else None)
    if bus:
        # An x86 machine has a PS/2 keyboard by default.
        for kind in ("tablet", "keyboard") if bus == "virtio" or not config.is_x86 else ("tablet",):
            _pack(element(devices, "input", type=kind, bus=bus), config, bus == "virtio")
    if settings.vnc_listen:
        graphics = element(devices, "graphics", type="vnc", port=-1, autoport="yes")
        element(graphics, "listen", type="address", address=settings.vnc_listen)
    if settings.spice:
        graphics = element(devices, "graphics", type="spice", autoport="yes",
                           defaultMode="secure" if settings.spice.secure else None)
        element(graphics, "listen", type="address", address=settings.spice.listen)
        for tag, attribute, value in settings.spice.choices:
            element(graphics, tag, **{attribute: value})
        for _port in range(config.usb_ports):
            element(devices, "redirdev", type="spicevmc", bus="usb")
        if settings.spice.agent:
            element(element(devices, "channel", type="spicevmc"), "target", type="virtio", name="com.redhat.spice.0")
    if config.video_model or seen:
        item = element(devices, "video")
        # The attribute vram is in KiB. Only the models vga and qxl have it.
        vram = config.video_ram * 1024 if config.video_model in ("vga", "qxl") else 0
        model = config.video_model or config.platform.video
        _pack(item, config, model == "virtio")
        element(item, "model", type=model, vram=vram or None)


def _has_screen(settings: Settings) -> bool:
    return bool(settings.vnc_listen or settings.spice)


def _pack(item: ET.Element, config: GuestConfig, is_virtio: bool = True) -> None:
    """Let a virtio device use packed rings, if the flavor or image requests them."""
    if config.packed and is_virtio:
        element(item, "driver", packed="on")


def _add_helpers(devices: ET.Element, config: GuestConfig, settings: Settings) -> None:
    if config.sound_model:
        element(devices, "sound", model=config.sound_model)
    if config.watchdog:
        element(devices, "watchdog", model=config.platform.watchdog, action=config.watchdog)
    if config.rng is not None:
        rng = element(devices, "rng", model="virtio")
        if config.rng:
            element(rng, "rate", bytes=config.rng[0], period=config.rng[1])
        element(rng, "backend", "/dev/urandom", model="random")
        _pack(rng, config)
    if config.tpm_version:
        backend = element(element(devices, "tpm", model=config.tpm_model or "tpm-tis"), "backend", type="emulator",
                          version=config.tpm_version)
        element(backend, "encryption", secret=secret_of(config.uuid, TPM))
    if config.viommu_model:
        usual = "intel" if config.is_x86 else "smmuv3"
        model = usual if config.viommu_model == "auto" else config.viommu_model
        item = element(devices, "iommu", model=model)
        if model == "intel":
            element(item, "driver", intremap="on" if config.virt_type == "kvm" else None, caching_mode="on", iotlb="on")
    balloon = element(devices, "memballoon", model="virtio")
    if settings.balloon_period:
        element(balloon, "stats", period=settings.balloon_period)
    _pack(balloon, config)
