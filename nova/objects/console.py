"""Consoles: how a guest's screen or serial port is reached, and the tokens that lead there."""

from __future__ import annotations

import datetime
import hashlib
from typing import Annotated

from msgspec import Meta

from nova.objects.base import Object

VNC = "vnc"
SPICE = "spice"
SERIAL = "serial"

NOVNC = "novnc"
SPICE_HTML5 = "spice-html5"
SPICE_DIRECT = "spice-direct"

# What each type of console speaks with the guest's host.
PROTOCOLS = {NOVNC: VNC, SPICE_HTML5: SPICE, SPICE_DIRECT: SPICE, SERIAL: SERIAL}


_Port = Annotated[int, Meta(ge=0, le=65535)]


class ConsoleAddress(Object, kw_only=True):
    """Where the console of a running guest listens (``port`` 0: with TLS only). ``tls_port``: the same with TLS, if it
    has that (SPICE)."""

    host: Annotated[str, Meta(max_length=255, pattern=r"^[!-~]+$")]
    port: _Port
    tls_port: _Port | None = None


class Console(Object, kw_only=True):
    """What a token leads to, for whom and how long.

    ``instance_host`` is the nova-compute that the server was on, ``since`` the newest action of the server then: the
    token ends when the server is elsewhere, or was stopped, moved or rebuilt by a later one. ``seconds`` are left.
    """

    instance_uuid: str
    instance_host: str
    console_type: str
    address: ConsoleAddress
    # The URL for users, without the token.
    access_url_base: str
    user_id: str = ""
    project_id: str = ""
    since: int = 0
    expires_at: datetime.datetime | None = None
    seconds: float = 0.0


class ConsoleSession(Object, kw_only=True):
    """A connection through a proxy: by what ``ident`` the proxy knows it, and what its token said."""

    ident: str
    instance_uuid: str
    since: int


def digest(token: str) -> str:
    """By what a token is known: nothing but a user's URL has the token itself."""
    return hashlib.sha256(token.encode()).hexdigest()
