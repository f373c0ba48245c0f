"""Key pairs, EC2 ids, notifications and certificates of accounts."""

import datetime
from typing import Any

from nova.objects.base import Object

# Types of keys.
SSH = "ssh"
X509 = "x509"


class Keypair(Object, kw_only=True):
    id: int = 0
    user_id: str
    name: str
    type: str = SSH
    public_key: str
    fingerprint: str = ""
    created_at: datetime.datetime | None = None


# Kinds of objects: the prefixes of their ids. Servers use the number that the metadata service shows.
INSTANCE = "i"
KINDS = frozenset({INSTANCE, "ami", "aki", "ari", "vol", "snap", "sg", "eipalloc"})
# Maximum number of ids per request.
MOST = 1000


class Ec2Id(Object, kw_only=True):
    """The number of an object; the other fields are those of a server."""

    uuid: str
    number: int
    reservation_id: str = ""
    launch_index: int = 0
    root_device_name: str = ""


class Notification(Object, kw_only=True):
    """A message. ``subject``: the object of the event; messages of one subject are sent in the order of their creation.
    ``message_id`` stays the same when the message is sent again. ``versioned`` selects the topics. ``context``: user
    and request of the event."""

    id: int = 0
    message_id: str
    subject: str
    versioned: bool
    event_type: str
    priority: str
    publisher_id: str
    payload: dict[str, Any]
    context: dict[str, str] = {}
    created_at: datetime.datetime


class Certificate(Object, kw_only=True):
    """A certificate for a user of the API, as PEM. ``private_key`` (PEM): only in the reply to the request that created
    the certificate; it is stored nowhere."""

    data: str
    private_key: str | None = None


class Root(Object, kw_only=True):
    """A root certificate of a project. ``encrypted_key``: its private key, encrypted for conductors; None: the key of
    conductors was lost, so that the root signs nothing more."""

    id: int = 0
    project_id: str
    data: str
    encrypted_key: str | None
    not_after: datetime.datetime


class Issued(Object, kw_only=True):
    """A certificate that a root signed. ``serial``: 40 hexadecimal digits."""

    id: int = 0
    serial: str
    root_id: int
    project_id: str
    user_id: str
    created_at: datetime.datetime
    not_after: datetime.datetime
    revoked_at: datetime.datetime | None = None
