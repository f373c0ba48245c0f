"""Public keys owned by users."""

import datetime

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
