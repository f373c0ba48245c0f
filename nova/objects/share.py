"""Shares: file systems that servers reach by the name of a tag, and how servers have them."""

from __future__ import annotations

import datetime

from nova.objects.base import Object

# What a mapping is stored as. Whether one that is INACTIVE is in use, the power state of its server says: it is ACTIVE.
ATTACHING = "attaching"
INACTIVE = "inactive"
ACTIVE = "active"
DETACHING = "detaching"
ERROR = "error"

# Protocols of shares. DIRECTORY: one of the embedded back end, which hosts reach as a directory.
NFS = "NFS"
DIRECTORY = "DIRECTORY"

# What a host has to be able to do for a server with shares.
VIRTIO_FS = "COMPUTE_STORAGE_VIRTIO_FS"
# Characters of the tag of a file system (virtio).
LONGEST_TAG = 36
# The item of a host's connector that says from which address it mounts.
ADDRESS = "share_address"


class Share(Object, kw_only=True):
    """A share. ``host``: of the embedded back end, the only one that has its directory (None: none yet, or all)."""

    id: int = 0
    uuid: str
    project_id: str
    name: str = ""
    protocol: str = DIRECTORY
    export_location: str = ""
    host: str | None = None
    created_at: datetime.datetime | None = None


class ShareMapping(Object, kw_only=True):
    """A share of a server. ``path`` is filled on a host, before its hypervisor driver gets to see the mapping."""

    uuid: str
    share_id: str
    tag: str
    status: str = ATTACHING
    protocol: str = DIRECTORY
    export_location: str = ""
    path: str = ""


class ShareAccess(Object, kw_only=True):
    """A host may reach the share, for this server. ``leaving``: that is being taken away."""

    id: int = 0
    share_id: str
    host: str
    instance_uuid: str
    leaving: bool = False
    updated_at: datetime.datetime | None = None
