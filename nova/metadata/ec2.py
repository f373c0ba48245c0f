"""The EC2 tree: ``/<version>/meta-data/...`` and ``/<version>/user-data``."""

import base64
import binascii
import zlib
from typing import Any

from nova.metadata.settings import MetadataSettings
from nova.objects.servers.instance import Instance

LATEST = "2009-04-04"
VERSIONS = ("1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01",
            LATEST)


def resolve(version: str) -> str | None:
    """Return the version of a path component, or None if there is no such version."""
    if version == "latest":
        return LATEST
    return version if version in VERSIONS else None


def tree(instance: Instance, version: str, settings: MetadataSettings) -> dict[str, Any]:
    """Return the tree below /<version>/: nested mappings with text or bytes as leaves."""
    root: dict[str, Any] = {"meta-data": meta_data(instance, version, settings)}
    data = user_data(instance)
    if data is not None:
        root["user-data"] = data
    return root


def meta_data(instance: Instance, version: str, settings: MetadataSettings) -> dict[str, Any]:
    host = hostname(instance, settings)
    address = next((address for vif in instance.network_info for address in vif.addresses(4)), "")
    data: dict[str, Any] = {
        "ami-id": _image_id("ami", instance.image_ref),
        "ami-launch-index": str(instance.launch_index),
        "ami-manifest-path": "FIXME",
        "instance-id": f"i-{instance.id:08x}",
        "hostname": host,
        "local-ipv4": address,
        "reservation-id": instance.reservation_id,
        "security-groups": "\n".join(instance.security_groups),
    }
    if instance.key is not None:
        data["public-keys"] = {"0": {"openssh-key": instance.key.public_key, "_name": f"0={instance.key.name}"}}
    if _since(version, "2007-01-19"):
        floating = next((vif.floating for vif in instance.network_info if vif.floating), "")
        data |= {"local-hostname": host, "public-hostname": host, "public-ipv4": floating}
    if _since(version, "2007-08-29"):
        data["instance-type"] = instance.flavor.name
    if _since(version, "2007-12-15"):
        data["block-device-mapping"] = block_devices(instance)
        if instance.kernel_id:
            data["kernel-id"] = _image_id("aki", instance.kernel_id)
        if instance.ramdisk_id:
            data["ramdisk-id"] = _image_id("ari", instance.ramdisk_id)
    if _since(version, "2008-02-01"):
        data["placement"] = {"availability-zone": instance.availability_zone or ""}
    if _since(version, "2008-09-01"):
        data["instance-action"] = "none"
    return data


def hostname(instance: Instance, settings: MetadataSettings) -> str:
    """Return the fully qualified host name of a guest."""
    return f"{instance.hostname}.{settings.dhcp_domain}" if settings.dhcp_domain else instance.hostname


def user_data(instance: Instance) -> bytes | None:
    """Return the decoded user data, or None if there are none."""
    if not instance.user_data:
        return None
    try:
        return base64.b64decode(instance.user_data)
    except (binascii.Error, ValueError):
        return instance.user_data.encode()


def block_devices(instance: Instance) -> dict[str, str]:
    """Return device names by role: ami and root, ephemeral0.., swap, ebs0.."""
    root = instance.root_device_name
    devices = {"ami": root.removeprefix("/dev/"), "root": root}
    ephemerals = volumes = 0
    for disk in instance.block_devices:
        is_swap = disk.guest_format == "swap"
        # A guest has no swap disk if its flavor has no swap, even if the server was created with a swap disk.
        is_missing = is_swap and not disk.is_volume and not instance.flavor.swap
        if disk.boot_index == 0 or not disk.device_name or disk.replaces or is_missing:
            continue
        if is_swap:
            devices["swap"] = disk.device_name
        elif disk.is_volume:
            devices[f"ebs{volumes}"] = disk.device_name
            volumes += 1
        elif disk.source == "blank":
            devices[f"ephemeral{ephemerals}"] = disk.device_name
            ephemerals += 1
    return devices


def _since(version: str, first: str) -> bool:
    return version != "1.0" and version >= first


def _image_id(kind: str, image: str) -> str:
    """Return the EC2 id of an image, derived from its uuid ("": there is no image, so its number is 0)."""
    return f"{kind}-{zlib.crc32(image.encode()) if image else 0:08x}"
