"""What the API asks of servers: to make them, and to list them."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object
from nova.objects.image import Image
from nova.objects.instance import BlockDevice, Instance, Personality
from nova.objects.network import NetworkRequest


class ServerQuery(Object, kw_only=True):
    """A page of servers. ``filters`` values: a string, a list of strings (any of), a bool or None.

    Exact filters and regular expressions as the API names them; times are
    ISO 8601 strings in UTC. ``project_id`` None lists every project.
    """

    project_id: str | None = None
    filters: dict[str, Any] = {}
    deleted: bool | None = False
    changes_since: datetime.datetime | None = None
    changes_before: datetime.datetime | None = None
    # (column, asc or desc) pairs; [] is newest first
    sort: list[tuple[str, str]] = []
    limit: int | None = None
    marker: str | None = None
    # Rows without the wide JSON columns that a plain list does not show.
    brief: bool = False


class ServerPage(Object, kw_only=True):
    """A page of servers. ``marker``: the list goes on behind the server with this uuid, even if the page is short.

    Conductors of the previous release cut pages that are empty, at servers that do not match. None: a short page is the
    last one.
    """

    servers: list[Instance]
    marker: str | None = None


class ServerCreate(Object, kw_only=True):
    """An accepted-looking create request, parsed; the conductor checks what needs the database.

    ``networks`` None means: as the project has it (auto); [] means none.
    ``forced``: zone:host:node, skips the filters; ``host`` and ``hypervisor_hostname`` (2.74) do not.
    ``image`` is what the server boots from, also as a volume; None: a volume decides. ``device_images``: by their ids,
    those that its other volumes are made from. ``kernel_id``, ``ramdisk_id``: what ``image`` names, if anything.
    The caller was shown all of them.
    """

    name: str
    flavor_id: str
    image: Image | None = None
    kernel_id: str = ""
    ramdisk_id: str = ""
    description: str | None = None
    hostname: str | None = None
    metadata: dict[str, str] = {}
    tags: list[str] = []
    networks: list[NetworkRequest] | None = None
    security_groups: list[str] = []
    key_name: str | None = None
    user_data: str | None = None
    config_drive: bool = False
    disk_config: str = "AUTO"
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    availability_zone: str | None = None
    forced_host: str | None = None
    forced_node: str | None = None
    requested_host: str | None = None
    requested_node: str | None = None
    block_devices: list[BlockDevice] = []
    device_images: dict[str, Image] = {}
    personality: list[Personality] = []
    scheduler_hints: dict[str, Any] = {}
    trusted_certs: list[str] | None = None
    admin_pass: str | None = None
    # The uuid of the first server; the others' follow from it. A request that is delivered twice makes them once.
    first_uuid: str = ""
    # Of the body, when the client named the request (Idempotency-Key) and first_uuid follows from that name.
    request_digest: str | None = None
    # May a flavor of zero disk be used with an image? (policy servers:create:zero_disk_flavor)
    zero_disk_allowed: bool = False
    # May it have volumes that other servers have, too? (2.60)
    shares_volumes: bool = False
    min_count: int = 1
    max_count: int = 1


class ServerCreated(Object, kw_only=True):
    """Who was promised: the uuids in launch order and their common reservation.

    ``repeated``: it was answered before; then ``admin_pass`` is told, while it is known.
    """

    uuids: list[str]
    reservation_id: str
    repeated: bool = False
    admin_pass: str | None = None
