"""Shares: file systems that servers mount by a tag, and their mappings to servers."""

import datetime

from nova.objects.base import Object

# Stored statuses of a mapping. An INACTIVE mapping is shown as ACTIVE while the server's guest runs.
ATTACHING, INACTIVE, ACTIVE, DETACHING, ERROR = "attaching", "inactive", "active", "detaching", "error"

# Protocols of shares. DIRECTORY: a host directory of the embedded back end.
NFS, DIRECTORY = "NFS", "DIRECTORY"

VIRTIO_FS = "COMPUTE_STORAGE_VIRTIO_FS"  # trait of hosts that support servers with shares
LONGEST_TAG = 36  # maximum number of characters of a tag (virtio)
ADDRESS = "share_address"  # key in a host's connector: the address from which the host mounts shares


class Share(Object, kw_only=True):
    """A share. ``host``: for the embedded back end, the only host with its directory (None: not created yet, or all
    hosts)."""

    id: int = 0
    uuid: str
    project_id: str
    name: str = ""
    protocol: str = DIRECTORY
    export_location: str = ""
    host: str | None = None
    created_at: datetime.datetime | None = None


class ShareMapping(Object, kw_only=True):
    """A share of a server. ``path`` is filled on the host for the hypervisor driver."""

    uuid: str
    share_id: str
    tag: str
    status: str = ATTACHING
    protocol: str = DIRECTORY
    export_location: str = ""
    path: str = ""


class ShareAccess(Object, kw_only=True):
    """The access of a host to a share on behalf of a server. ``leaving``: the access is being revoked."""

    id: int = 0
    share_id: str
    host: str
    instance_uuid: str
    leaving: bool = False
    updated_at: datetime.datetime | None = None
