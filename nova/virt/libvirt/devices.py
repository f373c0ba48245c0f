"""The devices of a domain: disks, interfaces, serial ports, screen and the small helpers."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from nova import exception
from nova.objects.instance import Instance
from nova.objects.network import VIF
from nova.virt.libvirt.disks import LocalDisk, LocalDisks
from nova.virt.libvirt.settings import Settings
from nova.virt.libvirt.wishes import Wishes, truth
from nova.virt.libvirt.xmltree import element

# Values of image properties and extra specs that are supported, and what libvirt calls them.
DISK_BUSES = ("virtio", "scsi", "sata", "ide", "usb", "fdc")
SCSI_MODELS = ("virtio-scsi", "lsilogic", "lsisas1068", "lsisas1078", "buslogic", "ibmvscsi", "vmpvscsi")
VIF_MODELS = ("virtio", "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet", "vmxnet3")
VIDEO_MODELS = ("cirrus", "vga", "vmvga", "qxl", "virtio", "bochs", "none")
SOUND_MODELS = ("ac97", "es1370", "ich6", "ich9", "pcspk", "sb16", "usb")
USB_MODELS = ("none", "nec-xhci", "qemu-xhci")
WATCHDOG_ACTIONS = ("none", "pause", "poweroff", "reset", "disabled")

_LETTERS = {"virtio": "vd", "ide": "hd", "fdc": "fd"}
_MULTIQUEUE_MAX = 256


def add(domain: ET.Element, instance: Instance, disks: LocalDisks, wishes: Wishes, settings: Settings,
        machine: str) -> None:
    """Append <devices>."""
    devices = element(domain, "devices")
    _add_disks(devices, disks, wishes, settings, machine)
    _add_controllers(devices, wishes)
    for vif in instance.network_info:
        if vif.bridge:
            _add_interface(devices, vif, wishes)
    _add_serial_ports(devices, disks, wishes)
    _add_screen(devices, wishes, settings)
    if truth("hw_qemu_guest_agent", wishes.image("hw_qemu_guest_agent")):
        channel = element(devices, "channel", type="unix")
        element(channel, "target", type="virtio", name="org.qemu.guest_agent.0")
    _add_helpers(devices, wishes, settings)


def disk_bus(wishes: Wishes) -> str:
    """The bus of the guest's disks."""
    return wishes.choice("hw_disk_bus", wishes.image("hw_disk_bus"), DISK_BUSES) or "virtio"


def root_device(disks: LocalDisks, wishes: Wishes) -> str | None:
    """The name that a guest's kernel gives its root disk."""
    if disks.root is None:
        return None
    return f"/dev/{_LETTERS.get(disk_bus(wishes), 'sd')}a"


# --- disks -----------------------------------------------------------------------------------------
def _add_disks(devices: ET.Element, disks: LocalDisks, wishes: Wishes, settings: Settings, machine: str) -> None:
    used: dict[str, int] = {}
    for disk in disks.all():
        bus = _cdrom_bus(wishes, machine, settings) if disk.device == "cdrom" else disk_bus(wishes)
        letters = _LETTERS.get(bus, "sd")
        index = used.get(letters, 0)
        used[letters] = index + 1
        _add_disk(devices, disk, bus, f"{letters}{chr(ord('a') + index)}", wishes, settings)


def _cdrom_bus(wishes: Wishes, machine: str, settings: Settings) -> str:
    wished = wishes.choice("hw_cdrom_bus", wishes.image("hw_cdrom_bus"), DISK_BUSES)
    if wished:
        return wished
    if settings.arch not in ("x86_64", "i686"):
        return "scsi"
    return "sata" if "q35" in machine else "ide"


def _add_disk(devices: ET.Element, disk: LocalDisk, bus: str, target: str, wishes: Wishes,
              settings: Settings) -> None:
    item = element(devices, "disk", type="file", device=disk.device)
    element(item, "driver", name="qemu", type=disk.format, cache=settings.cache,
           discard=settings.discard if disk.device == "disk" else None)
    element(item, "source", file=disk.path)
    if disk.base is not None:
        _add_base(item, *disk.base)
    element(item, "target", dev=target, bus=bus)
    limits = {name: wishes.spec_number(f"quota:disk_{name}") for name in (
        "total_bytes_sec", "read_bytes_sec", "write_bytes_sec", "total_iops_sec", "read_iops_sec", "write_iops_sec")}
    if disk.device == "disk" and any(value is not None for value in limits.values()):
        tune = element(item, "iotune")
        for name, value in limits.items():
            if value is not None:
                element(tune, name, value)
    if disk.device == "cdrom":
        element(item, "readonly")


def _add_base(item: ET.Element, path: str, image_format: str) -> None:
    """The chain is told, so that nothing is probed, and the image that guests share stays root's."""
    base = element(item, "backingStore", type="file")
    element(base, "format", type=image_format)
    element(element(base, "source", file=path), "seclabel", model="dac", relabel="no")
    element(base, "backingStore")


def _add_controllers(devices: ET.Element, wishes: Wishes) -> None:
    scsi = wishes.choice("hw_scsi_model", wishes.image("hw_scsi_model"), SCSI_MODELS)
    if "scsi" in (wishes.image("hw_disk_bus"), wishes.image("hw_cdrom_bus")):
        element(devices, "controller", type="scsi", index=0, model=scsi or "virtio-scsi")
    usb = wishes.choice("hw_usb_model", wishes.get("usb_model"), USB_MODELS)
    if usb:
        element(devices, "controller", type="usb", index=0, model=usb)


# --- interfaces ------------------------------------------------------------------------------------
def _add_interface(devices: ET.Element, vif: VIF, wishes: Wishes) -> None:
    model = wishes.choice("hw_vif_model", wishes.image("hw_vif_model"), VIF_MODELS) or "virtio"
    item = element(devices, "interface", type="bridge")
    element(item, "mac", address=vif.mac)
    element(item, "source", bridge=vif.bridge)
    element(item, "target", dev=vif.devname)
    element(item, "model", type=model)
    if model == "virtio":
        queues = min(wishes.vcpus, _MULTIQUEUE_MAX) if wishes.flag("vif_multiqueue_enabled") else 1
        packed = "on" if wishes.flag("virtio_packed_ring") else None
        if queues > 1 or packed:
            element(item, "driver", queues=queues if queues > 1 else None, packed=packed)
    _add_bandwidth(item, wishes)
    element(item, "mtu", size=vif.mtu)


def _add_bandwidth(item: ET.Element, wishes: Wishes) -> None:
    found = []
    for direction in ("inbound", "outbound"):
        values = {name: wishes.spec_number(f"quota:vif_{direction}_{name}") for name in ("average", "peak", "burst")}
        if values["average"]:
            found.append((direction, values))
        elif any(values.values()):
            raise exception.InvalidInput(reason=f"quota:vif_{direction}_average is missing")
    if found:
        bandwidth = element(item, "bandwidth")
        for direction, values in found:
            element(bandwidth, direction, **values)


# --- consoles --------------------------------------------------------------------------------------
def _add_serial_ports(devices: ET.Element, disks: LocalDisks, wishes: Wishes) -> None:
    """The first port is logged, always: a guest without any port has no console log."""
    allowed = wishes.spec_number("hw:serial_port_count")
    wanted = wishes.image_number("hw_serial_port_count")
    if allowed is not None and wanted is not None and wanted > allowed:
        raise exception.InvalidInput(reason=f"hw_serial_port_count={wanted} is more than the flavor allows ({allowed})")
    count = wanted if wanted is not None else allowed if allowed is not None else 1
    if count > 4:
        raise exception.InvalidInput(reason=f"hw:serial_port_count={count} is more than 4")
    for port in range(count):
        serial = element(devices, "serial", type="pty")
        if port == 0:
            element(serial, "log", file=disks.console_log, append="on")
        element(serial, "target", port=port)


def _add_screen(devices: ET.Element, wishes: Wishes, settings: Settings) -> None:
    video = wishes.choice("hw_video_model", wishes.image("hw_video_model"), VIDEO_MODELS)
    ram = wishes.image_number("hw_video_ram")
    most = wishes.spec_number("hw_video:ram_max_mb") or 0
    if ram and ram > most:
        raise exception.InvalidInput(reason=f"hw_video_ram={ram} is more than the flavor allows ({most})")
    if settings.vnc_listen:
        if wishes.get("usb_model") != "none":
            element(devices, "input", type="tablet", bus="usb")
        graphics = element(devices, "graphics", type="vnc", port=-1, autoport="yes")
        element(graphics, "listen", type="address", address=settings.vnc_listen)
    if video or settings.vnc_listen:
        item = element(devices, "video")
        # KiB, and only these two have it
        vram = ram * 1024 if ram and video in ("vga", "qxl") else None
        element(item, "model", type=video or "vga", vram=vram)


# --- helpers ---------------------------------------------------------------------------------------
def _add_helpers(devices: ET.Element, wishes: Wishes, settings: Settings) -> None:
    sound = wishes.choice("hw_sound_model", wishes.get("sound_model"), SOUND_MODELS)
    if sound:
        element(devices, "sound", model=sound)
    action = wishes.image("hw_watchdog_action") or wishes.specs.get("hw:watchdog_action")
    wishes.choice("hw_watchdog_action", action, WATCHDOG_ACTIONS)
    if action and action != "disabled":
        element(devices, "watchdog", model="i6300esb", action=action)
    if truth("hw_rng:allowed", wishes.specs.get("hw_rng:allowed"), default=True):
        rng = element(devices, "rng", model="virtio")
        rate = wishes.spec_number("hw_rng:rate_bytes")
        if rate:
            element(rng, "rate", bytes=rate, period=wishes.spec_number("hw_rng:rate_period") or 1000)
        element(rng, "backend", "/dev/urandom", model="random")
    balloon = element(devices, "memballoon", model="virtio")
    if settings.balloon_period:
        element(balloon, "stats", period=settings.balloon_period)
