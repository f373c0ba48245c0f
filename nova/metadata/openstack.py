"""The OpenStack tree of the metadata: ``/openstack/<version>/...``."""

import base64
import datetime
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from nova.common import plain_ip
from nova.metadata import ec2
from nova.metadata.settings import MetadataSettings
from nova.objects.networks.network import VIF, FixedIp
from nova.objects.servers.instance import BlockDevice, DeviceAddress, Instance, disk_names

FOLSOM = "2012-08-10"
GRIZZLY = "2013-04-04"
HAVANA = "2013-10-17"
LIBERTY = "2015-10-15"
NEWTON_06 = "2016-06-30"
NEWTON_10 = "2016-10-06"
OCATA = "2017-02-22"
ROCKY = "2018-08-27"
VICTORIA = "2020-10-14"
EPOXY = "2025-04-04"
VERSIONS = (FOLSOM, GRIZZLY, HAVANA, LIBERTY, NEWTON_06, NEWTON_10, OCATA, ROCKY, VICTORIA, EPOXY)

SEED_BYTES = 512

# Bus name of libvirt -> bus name of the document.
_BUSES = {"virtio": "pci", "pci": "pci", "scsi": "scsi", "sata": "scsi", "ide": "ide", "usb": "usb", "xen": "xen"}


def resolve(version: str) -> str | None:
    """Return the version of a path component, or None if there is no such version."""
    if version == "latest":
        return VERSIONS[-1]
    return version if version in VERSIONS else None


def listed(today: datetime.date) -> list[str]:
    """Return the versions listed by /openstack, except those with a date in the future."""
    return [version for version in VERSIONS if datetime.date.fromisoformat(version) <= today] + ["latest"]


def documents(version: str, has_user_data: bool, service: bool = True) -> list[str]:
    """Return the names of the documents in a version. ``password`` exists only in the metadata service."""
    names = ["meta_data.json"]
    names += ["user_data"] if has_user_data else []
    names += ["password"] if service and version >= GRIZZLY else []
    names += ["vendor_data.json"] if version >= HAVANA else []
    names += ["network_data.json"] if version >= LIBERTY else []
    return names + (["vendor_data2.json"] if version >= NEWTON_10 else [])


def body(name: str, instance: Instance, version: str, settings: MetadataSettings, admin_pass: str | None = None,
         random: Callable[[int], bytes] = os.urandom) -> bytes:
    """Return the content of a document of :func:`documents`, except ``password``."""
    if name == "user_data":
        return ec2.user_data(instance) or b""
    if name == "meta_data.json":
        return encode(meta_data(instance, version, settings, admin_pass, random))
    if name == "network_data.json":
        return encode(network_data(instance.network_info))
    data = settings.vendordata
    return encode({} if data is None else data if name == "vendor_data.json" else {"static": data})


def meta_data(instance: Instance, version: str, settings: MetadataSettings, admin_pass: str | None = None,
              random: Callable[[int], bytes] = os.urandom) -> dict[str, Any]:
    """Return the document meta_data.json. ``admin_pass`` is only for config drives."""
    document: dict[str, Any] = {"uuid": instance.uuid}
    if instance.metadata:
        document["meta"] = dict(instance.metadata)
    if instance.key is not None:
        key = instance.key
        document["public_keys"] = {key.name: key.public_key}
        document["keys"] = [{"name": key.name, "type": key.type, "data": key.public_key}]
    if instance.personality:
        document["files"] = [{"path": file.path, "content_path": f"/content/{number:04d}"}
                          for number, file in enumerate(instance.personality)]
    document |= {"hostname": ec2.hostname(instance, settings), "name": instance.display_name,
                 "launch_index": instance.launch_index, "availability_zone": instance.availability_zone}
    if admin_pass:
        document["admin_pass"] = admin_pass
    if version >= GRIZZLY:
        document["random_seed"] = base64.b64encode(random(SEED_BYTES)).decode()
    if version >= LIBERTY:
        document["project_id"] = instance.project_id
    if version >= NEWTON_06:
        document["devices"] = devices(instance, version)
    if version >= VICTORIA:
        document["dedicated_cpus"] = []
    return document


def devices(instance: Instance, version: str) -> list[dict[str, Any]]:
    """Return the shares, and the devices with tags; from version ROCKY all interfaces, with ``vf_trusted``."""
    addresses = {address.device: address for address in instance.device_addresses or ()}
    nics = [_nic(vif, addresses.get(vif.mac.lower()), version) for vif in instance.network_info
            if vif.tag or version >= ROCKY]
    named = zip(instance.block_devices, disk_names(instance.block_devices), strict=True)
    shares = [{"type": "share", "share_id": mapping.share_id, "tag": mapping.tag, **_place(addresses.get(mapping.tag))}
              for mapping in instance.usable_shares if version >= EPOXY]
    return nics + [_disk(disk, addresses.get(name)) for disk, name in named if disk.tag] + shares


def _nic(vif: VIF, address: DeviceAddress | None, version: str) -> dict[str, Any]:
    nic = {"type": "nic", **_place(address), "mac": vif.mac, "tags": [vif.tag] if vif.tag else []}
    return {**nic, "vf_trusted": False} if version >= ROCKY else nic


def _disk(disk: BlockDevice, address: DeviceAddress | None) -> dict[str, Any]:
    return {"type": "disk", **_place(address, _BUSES.get(disk.disk_bus or "virtio", "none")),
            "serial": disk.volume_id or "", "path": disk.device_name or "", "tags": [disk.tag]}


def _place(address: DeviceAddress | None, bus: str = "none") -> dict[str, Any]:
    """Return the bus and the address of a device. ``bus``: the bus to return if its address is unknown."""
    return {"bus": address.bus, "address": address.address} if address else {"bus": bus, "address": "none"}


def network_data(vifs: Sequence[VIF]) -> dict[str, Any]:
    """Return the document network_data.json, with the first address of each IP version of each interface."""
    if not vifs:
        return {}
    servers = list(dict.fromkeys(address for vif in vifs for address in vif.dns))
    described = [(vif, fixed) for vif in vifs for fixed in (vif.first(4), vif.first(6)) if fixed]
    return {
        "links": [_link(vif) for vif in vifs],
        "networks": [_network(number, vif, fixed) for number, (vif, fixed) in enumerate(described)],
        "services": [{"type": "dns", "address": address} for address in servers],
    }


def _link(vif: VIF) -> dict[str, Any]:
    dynamic = any(fixed.mode for fixed in vif.fixed_ips)
    return {"id": vif.devname, "vif_id": vif.id, "type": "bridge" if vif.bridge else "phy",
            "mtu": None if dynamic else vif.mtu, "ethernet_mac_address": vif.mac}


def _network(number: int, vif: VIF, fixed: FixedIp) -> dict[str, Any]:
    kind = f"ipv{fixed.version}"
    network: dict[str, Any] = {"id": f"network{number}", "type": f"{kind}_{fixed.mode}" if fixed.mode else kind,
                               "link": vif.devname, "network_id": vif.network_id}
    if fixed.mode:
        return network
    any_network = "0.0.0.0" if fixed.version == 4 else "::"
    routes = [{"network": any_network, "netmask": any_network, "gateway": fixed.gateway}] if fixed.gateway else []
    for route in fixed.routes:
        destination = plain_ip.network(route.destination, strict=False)
        routes.append({"network": str(destination.network_address), "netmask": str(destination.netmask),
                       "gateway": route.gateway})
    return {**network, "ip_address": fixed.address,
            "netmask": str(plain_ip.interface(f"{fixed.address}/{fixed.prefix}").netmask), "routes": routes,
            "services": [{"type": "dns", "address": address} for address in fixed.dns]}


def content(instance: Instance, name: str) -> bytes | None:
    """Return an injected file by its number (``/openstack/content/0000``), or None if there is none."""
    if not (name.isascii() and name.isdigit() and len(name) == 4) or int(name) >= len(instance.personality):
        return None
    return base64.b64decode(instance.personality[int(name)].contents)


def encode(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
