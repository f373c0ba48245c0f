"""What Nova knows of an image."""

from __future__ import annotations

from nova.objects.base import Object


class Image(Object, kw_only=True):
    """``min_disk`` in GiB, ``min_ram`` in MiB, ``size`` in bytes (None while unknown).

    ``properties`` are the image's own extra properties as strings (hw_*, os_*, kernel_id, ...). ``certificate`` (PEM):
    what its data must be signed with for the server that has it; "": nobody asks.
    """

    id: str
    name: str | None = None
    status: str = "active"
    size: int | None = None
    disk_format: str | None = None
    container_format: str | None = None
    min_disk: int = 0
    min_ram: int = 0
    owner: str | None = None
    visibility: str = "private"
    protected: bool = False
    checksum: str | None = None
    virtual_size: int | None = None
    properties: dict[str, str] = {}
    certificate: str = ""
    created_at: str | None = None
    updated_at: str | None = None
