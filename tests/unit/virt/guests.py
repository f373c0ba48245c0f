"""Servers for the tests of hypervisor drivers."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from nova.objects.accounts.flavor import Flavor
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, FixedIp
from nova.objects.servers.instance import Instance

CREATED = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def server(specs: dict[str, str] | None = None, properties: dict[str, str] | None = None, *,
           disk_format: str = "qcow2", flavor: dict[str, Any] | None = None, **fields: Any) -> Instance:
    """Return a small server with these extra specs and image properties."""
    sizes = {"memory_mb": 128, "vcpus": 1, "root_gb": 1, **(flavor or {})}
    values: dict[str, Any] = {
        "id": 0x2a, "uuid": "5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f", "project_id": "project", "user_id": "user",
        "display_name": "a server", "hostname": "a-server", "created_at": CREATED, "image_ref": "image",
        "flavor": Flavor(flavorid="f1", name="m1.nano", extra_specs=specs or {}, **sizes),
        "image": Image(id="image", disk_format=disk_format, properties=properties or {}),
        **fields,
    }
    return Instance(**values)


def interface(number: int = 0, **fields: Any) -> VIF:
    values: dict[str, Any] = {
        "id": str(uuid.UUID(int=number + 1)), "network_id": str(uuid.UUID(int=77)), "label": "private",
        "mac": f"fa:16:3e:00:00:{number:02x}", "fixed_ips": [FixedIp(address=f"10.0.0.{number + 10}", prefix=24)],
        "bridge": "br-test", "devname": f"tap-test{number}", "mtu": 1450, **fields,
    }
    return VIF(**values)
