"""Consoles: addresses of a guest's screen or serial port, and access tokens."""

import datetime
import hashlib
from typing import Annotated

from msgspec import Meta

from nova.objects.base import Object

VNC, SPICE, SERIAL, MKS = "vnc", "spice", "serial", "mks"

NOVNC, SPICE_HTML5, SPICE_DIRECT, WEBMKS = "novnc", "spice-html5", "spice-direct", "webmks"

# Protocol between the proxy and the guest's host by type of console.
PROTOCOLS = {NOVNC: VNC, SPICE_HTML5: SPICE, SPICE_DIRECT: SPICE, SERIAL: SERIAL, WEBMKS: MKS}


_Port = Annotated[int, Meta(ge=0, le=65535)]


class ConsoleAddress(Object, kw_only=True):
    """Address of the console of a running guest. ``port`` 0: TLS only. ``tls_port``: port for TLS (SPICE).
    ``access_path``: the text that the console proxy sends to the host first (MKS: a ticket, as JSON)."""

    host: Annotated[str, Meta(max_length=255, pattern=r"^[!-~]+$")]
    port: _Port
    tls_port: _Port | None = None
    access_path: Annotated[str, Meta(max_length=1024)] | None = None


class Console(Object, kw_only=True):
    """The console to which a token gives access. ``instance_host``: the server's host when the token was created;
    ``since``: id of the newest action of the server at that time. The token ends when the server has another host, or
    when a later action stops, moves or rebuilds it. ``seconds``: remaining lifetime."""

    instance_uuid: str
    instance_host: str
    console_type: str
    address: ConsoleAddress
    # URL for users, without the token.
    access_url_base: str
    user_id: str = ""
    project_id: str = ""
    since: int = 0
    expires_at: datetime.datetime | None = None
    seconds: float = 0.0


class ConsoleSession(Object, kw_only=True):
    """A connection through a proxy. ``ident``: id of the connection in the proxy; other fields: from its token."""

    ident: str
    instance_uuid: str
    since: int


def digest(token: str) -> str:
    """Return the key under which a token is stored. Only the user's URL contains the token itself."""
    return hashlib.sha256(token.encode()).hexdigest()
