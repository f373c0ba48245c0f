"""Requests of the API to create and list servers."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object
from nova.objects.images.image import Image
from nova.objects.networks.network import NetworkRequest
from nova.objects.servers.instance import BlockDevice, Instance, Personality


class ServerQuery(Object, kw_only=True):
    """A query for a page of servers. Values of ``filters``: a string, a list of strings (any of), a bool or None.

    Names of filters and regular expressions are those of the API; times are ISO 8601 strings in UTC. ``project_id``
    None lists all projects.
    """

    project_id: str | None = None
    filters: dict[str, Any] = {}
    deleted: bool | None = False
    changes_since: datetime.datetime | None = None
    changes_before: datetime.datetime | None = None
    # (column, asc or desc) pairs; [] is newest first.
    sort: list[tuple[str, str]] = []
    limit: int | None = None
    marker: str | None = None
    # Omit the wide JSON columns that a plain list does not show.
    brief: bool = False


class ServerPage(Object, kw_only=True):
    """A page of servers. ``marker``: the list continues after the server with this uuid, even if the page is short.

    Conductors of the previous release cut empty pages at servers that do not match. None: a short page is the
    last one.
    """

    servers: list[Instance]
    marker: str | None = None


class ServerCreate(Object, kw_only=True):
    """A parsed create request. The conductor checks what needs the database.

    ``networks``: None for the project's default (auto); [] for none. ``forced_host``, ``forced_node``: from
    zone:host:node, skip the filters; ``requested_host`` and ``requested_node`` (API 2.74) do not. ``image``: boot
    image, also of a boot volume; None: a volume decides. ``device_images``: by id, images of other volumes.
    ``kernel_id``, ``ramdisk_id``: named by ``image``. All images are visible to the caller.
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
    # Uuid of the first server; the uuids of the others are derived from it, so that a repeated delivery creates no
    # second server.
    first_uuid: str = ""
    # Digest of the body if the request has an Idempotency-Key, from which first_uuid is derived.
    request_digest: str | None = None
    # True if the caller may use a flavor with zero disk with an image (policy servers:create:zero_disk_flavor).
    zero_disk_allowed: bool = False
    # True if multi-attach volumes are allowed (API 2.60).
    shares_volumes: bool = False
    min_count: int = 1
    max_count: int = 1


class ServerCreated(Object, kw_only=True):
    """The created servers: uuids in launch order and their common reservation.

    ``repeated``: the same request was answered before; then ``admin_pass`` is included while it is stored.
    """

    uuids: list[str]
    reservation_id: str
    repeated: bool = False
    admin_pass: str | None = None
