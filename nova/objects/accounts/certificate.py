"""X.509 certificates of users, and the root certificates of projects that sign them."""

import datetime

from nova.objects.base import Object


class Certificate(Object, kw_only=True):
    """A certificate for a user of the API, as PEM. ``private_key`` (PEM): only in the reply to the request that created
    the certificate; it is not stored."""

    data: str
    private_key: str | None = None


class Root(Object, kw_only=True):
    """A root certificate of a project. ``encrypted_key``: its private key, encrypted with the key of conductors; None
    after that key was lost: the root then signs no further certificates."""

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
