"""Consoles: URLs of screens and serial ports for browsers, the addresses behind console tokens, and the console log."""

import re
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nova import exception
from nova.api.compute.servers import servers
from nova.api.request import Request
from nova.api.router import Handler, accepts
from nova.api.validation.fields import ABSENT, Changing, Field, Object, Out, Plain, Query, View, enum, only, single
from nova.api.validation.types import INTEGER_OR_NULL, STRING, STRING_OR_NULL
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.servers import console, states
from nova.objects.servers.instance import Instance

_POLICY = "os_compute_api:os-remote-consoles"
_TYPES = ("novnc", "xvpvnc", "spice-html5", "serial", "rdp-html5")

_REMOTE = Object({
    "protocol": Field(Changing({0: enum("vnc", "spice", "serial", "rdp"),
                                8: enum("vnc", "spice", "serial", "rdp", "mks")}), required=True),
    "type": Field(Changing({0: enum(*_TYPES), 8: enum(*_TYPES, "webmks"),
                            99: enum(*_TYPES, "webmks", "spice-direct")}), required=True)})
_CREATED = Object({"remote_console": Object({"protocol": STRING, "type": STRING, "url": STRING})})
_OLD = Object({"console": Object({"type": STRING, "url": STRING})})
_ERRORS = (409, 501)


# --- URLs of consoles -----------------------------------------------------------------------------------------
@accepts(body=Object({"remote_console": Field(_REMOTE, required=True)}), answer=_CREATED, errors=_ERRORS)
def create(req: Request) -> dict[str, Any]:
    """Open a console of a running server; its URL is valid for [consoleauth]token_ttl seconds."""
    wanted = req.body["remote_console"]
    url = _open(req, wanted["protocol"], wanted["type"])
    return {"remote_console": {"protocol": wanted["protocol"], "type": wanted["type"], "url": url}}


def _opening(protocol: str, action: str, summary: str, *types: str) -> Handler:
    """Return the handler of an action that opens a console of one of these types."""
    @accepts(body=only(action, Object({"type": Field(enum(*types), required=True)})), answer=_OLD, errors=_ERRORS)
    def handler(req: Request) -> dict[str, Any]:
        console_type = req.body[action]["type"]
        return {"console": {"type": console_type, "url": _open(req, protocol, console_type)}}

    handler.__doc__ = summary
    return handler


vnc = _opening("vnc", "os-getVNCConsole", "Open a VNC console.", "novnc", "xvpvnc")
spice = _opening("spice", "os-getSPICEConsole", "Open a SPICE console.", "spice-html5")
serial = _opening("serial", "os-getSerialConsole", "Open a console of the first serial port.", "serial")


@accepts(errors=_ERRORS)
def rdp(req: Request) -> dict[str, Any]:
    """Answer 400: hypervisors have no RDP consoles any more."""
    servers.authorized_get(req, _POLICY)
    raise exception.ConsoleTypeUnavailable(console_type="rdp")


def _open(req: Request, protocol: str, console_type: str) -> str:
    """Open a console and return its URL. Raises ConsoleTypeInvalid, ConsoleTypeUnavailable, and errors of the host."""
    server = servers.authorized_get(req, _POLICY)
    if protocol == "rdp":  # OpenStack removed RDP consoles.
        raise exception.ConsoleTypeUnavailable(console_type="rdp")
    if protocol == console.SERIAL:
        console_type = console.SERIAL
    if console.PROTOCOLS.get(console_type) != protocol:
        raise exception.ConsoleTypeInvalid(console_type=console_type)
    address = _address(req, server, console_type)
    base, token = {
        console.NOVNC: CONF.vnc.novncproxy_base_url, console.SPICE_HTML5: CONF.spice.html5proxy_base_url,
        console.SPICE_DIRECT: CONF.spice.spice_direct_proxy_base_url, console.SERIAL: CONF.serial_console.base_url,
        console.WEBMKS: CONF.mks.mksproxy_base_url,
    }[console_type], new_uuid()
    opened = console.Console(
        instance_uuid=server.uuid, instance_host=server.host or "", console_type=console_type, address=address,
        access_url_base=base, user_id=req.ctx.user_id or "", project_id=req.ctx.project_id or "")
    req.clients.consoles.create(req.ctx, console.digest(token), opened)
    return url_with(base, token, console_type)


def _address(req: Request, server: Instance, console_type: str) -> console.ConsoleAddress:
    compute = servers.compute_of(req, server)
    if server.task_state in (states.DELETING, states.MIGRATING):
        raise exception.InstanceInvalidState(method="get console", instance_uuid=server.uuid, attr="task_state",
                                             state=server.task_state)
    try:
        return compute.console(req.ctx, server.uuid, console_type)
    except exception.GuestNotFound:
        if server.vm_state == states.BUILDING or server.task_state is not None:
            raise exception.InstanceNotReady(instance_id=server.uuid) from None
        raise exception.InstanceNotFound(instance_id=server.uuid) from None


def url_with(base: str, token: str, console_type: str) -> str:
    """Return the base URL with the token. For noVNC the parameter ``path`` (of the WebSocket) contains the token."""
    parts = urlsplit(base)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if console_type == console.NOVNC:
        query["path"] = f"{query.get('path', '')}?{urlencode({'token': token})}"
    else:
        query["token"] = token
    return urlunsplit(parts._replace(query=urlencode(query)))


# --- console tokens ---------------------------------------------------------------------------------------
TOKEN = View([
    Out("instance_uuid", STRING),
    Out("host", STRING, lambda shown, _req: shown.address.host),
    Out("port", Plain(type="integer"), lambda shown, _req: shown.address.port),
    Out("internal_access_path", STRING_OR_NULL, lambda shown, _req: shown.address.access_path),
    Out("tls_port", INTEGER_OR_NULL,
        lambda shown, _req: shown.address.tls_port if shown.console_type == console.SPICE_DIRECT else ABSENT, since=99),
])


@accepts(query=Query(strict=99), answer=single("console", TOKEN))
def show_token(req: Request) -> console.Console:
    """Show the console to which a token gives access (from 2.31; before, only tokens of RDP consoles)."""
    if req.version < 31:
        raise exception.ConsoleTypeUnavailable("Only the tokens of RDP consoles can be shown before 2.31.")
    return req.clients.consoles.get(req.ctx, console.digest(req.params["id"]))


# --- console log ---------------------------------------------------------------------------------------
# Control characters that are removed from logs, because they disturb terminals and parsers. Tab and line feed stay.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_LENGTH = Plain(type=["integer", "string", "null"], pattern="^-?[0-9]+$", minimum=-1)
# Maximum number of lines that a request can limit a log to; a larger number is treated as no limit.
_MOST = 2**31 - 1


@accepts(body=only("os-getConsoleOutput", Object({"length": _LENGTH})), answer=Object({"output": STRING}),
         errors=(409, 501))
def output(req: Request) -> dict[str, Any]:
    """Show the last ``length`` lines of the console log, or all lines that the host has kept."""
    server = servers.authorized_get(req, "os_compute_api:os-console-output")
    lines = _lines(req.body["os-getConsoleOutput"].get("length"))
    compute = servers.compute_of(req, server)
    return {"output": _CONTROLS.sub("", compute.console_output(req.ctx, server, lines) if lines != 0 else "")}


def _lines(length: Any) -> int | None:
    """Parse the number of lines; None: all lines."""
    if length is None:
        return None
    number = int(length) if not isinstance(length, str) or len(length) < 12 else _MOST + 1
    return None if number < 0 or number > _MOST else number
