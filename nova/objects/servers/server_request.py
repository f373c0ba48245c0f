"""Requests of the API to create and list servers."""

import datetime
from typing import Any

from nova.objects.base import Object
from nova.objects.images.image import Image
from nova.objects.networks.network import NetworkRequest
from nova.objects.servers.instance import Instance, ServerProperties


class ServerQuery(Object, kw_only=True):
    """A query for a page of servers. Values of ``filters``: a string, a list of strings (any of), a bool or None. Names
    of filters and regular expressions are those of the API; times are ISO 8601 strings in UTC. ``project_id`` None
    lists all projects."""

    project_id: str | None = None
    filters: dict[str, Any] = {}
    deleted: bool | None = False
    changes_since: datetime.datetime | None = None
    changes_before: datetime.datetime | None = None
    # (column, asc or desc) pairs; [] is newest first.
    sort: list[tuple[str, str]] = []
    limit: int | None = None
    marker: str | None = None
    brief: bool = False  # omit the wide JSON columns that a plain list does not show


class ServerPage(Object, kw_only=True):
    """A page of servers. ``marker``: uuid of the server after which the list continues, even if the page is short. (It
    may be a server that does not match, with an empty page from a conductor of the previous release.) None: a short
    page ends the list."""

    servers: list[Instance]
    marker: str | None = None


class ServerCreate(ServerProperties, kw_only=True):
    """A parsed create request. The conductor checks what needs the database.

    ``networks``: None for the project's default; [] for none. ``auto_networks``: create a default if there is none.
    ``forced_host``, ``forced_node``: from zone:host:node, skip the filters; ``requested_host`` and ``requested_node``
    (API 2.74) do not. ``device_images``: by id, images of volumes other than the boot volume. All images are visible to
    the caller. ``first_uuid`` is derived from the Idempotency-Key if ``request_digest`` is set."""

    name: str
    flavor_id: str
    description: str | None = None
    hostname: str | None = None
    networks: list[NetworkRequest] | None = None
    auto_networks: bool = False
    security_groups: list[str] = []
    key_name: str | None = None
    config_drive: bool = False
    disk_config: str = "AUTO"
    availability_zone: str | None = None
    forced_host: str | None = None
    forced_node: str | None = None
    requested_host: str | None = None
    requested_node: str | None = None
    device_images: dict[str, Image] = {}
    admin_pass: str | None = None
    # Uuid of the first server; the uuids of the others are derived from it, so that a repeated delivery creates no
    # second server.
    first_uuid: str = ""
    # True if the caller may use a flavor with zero disk with an image (policy servers:create:zero_disk_flavor).
    zero_disk_allowed: bool = False
    # True if multi-attach volumes are allowed (API 2.60).
    shares_volumes: bool = False
    min_count: int = 1
    max_count: int = 1


class ServerCreated(Object, kw_only=True):
    """The created servers: uuids in launch order and their common reservation. ``repeated``: the same request was
    answered before; then ``admin_pass`` is included while it is stored."""

    uuids: list[str]
    reservation_id: str
    repeated: bool = False
    admin_pass: str | None = None
