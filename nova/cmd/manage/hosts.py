"""nova-manage host: the keys by which hosts prove who they are, and their accounts of the broker."""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import secrets
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
import oslo_messaging as messaging

from nova import exception
from nova.bus import seals
from nova.bus.driver import options
from nova.bus.host_account import permissions, topic_permissions
from nova.cmd.manage import drains
from nova.conf import CONF
from nova.rpcapi import COMPUTE, CONDUCTOR, HEARTBEATS, REPORTS

# Seconds that the broker may take.
_PATIENCE = 30
# Topic to which hosts of the previous release publish to find out whether there is a broker.
_PROBE = "nobody"


def add_commands(commands: Any) -> None:
    group = commands.add_parser("host", help="compute hosts: their keys and broker accounts, and emptying them"
                                ).add_subparsers(required=True, metavar="ACTION")
    master = group.add_parser("make_master_key", help="make the key of the control plane ([rpc]key_file)")
    master.add_argument("file", help="where it is written to (mode 0600); it must not exist")
    master.set_defaults(run=_make_master_key)
    enrol = group.add_parser("enrol", help="make a host's key, its account of the broker, and its configuration")
    enrol.add_argument("host", help="the [DEFAULT]host of its nova-compute")
    enrol.add_argument("--output", default=".", metavar="DIRECTORY",
                       help="where HOST.key, HOST.conf and, without [rpc]broker_api, HOST.definitions.json are written "
                            "(mode 0600; default: here)")
    enrol.set_defaults(run=_enrol)
    revoke = group.add_parser("revoke", help="remove a host's account of the broker")
    revoke.add_argument("host")
    revoke.set_defaults(run=_revoke)
    drains.add_commands(group)


def _make_master_key(arguments: argparse.Namespace) -> None:
    _write(arguments.file, seals.text_of(secrets.token_bytes(32)))
    print(f"{arguments.file} is the master key: every control service needs it, and no host may have it.")


def _enrol(arguments: argparse.Namespace) -> None:
    host, key, generation = arguments.host, *_key_of(arguments.host)
    url = messaging.TransportURL.parse(CONF)
    password = secrets.token_urlsafe(24)
    wanted = definitions(host, password, url.virtual_host or "/", CONF.control_exchange)
    base = os.path.join(arguments.output, host)
    _write(f"{base}.key", seals.text_of(key, host, generation))
    for each in url.hosts:
        each.username, each.password = account(host), password
    _write(f"{base}.conf", f"[DEFAULT]\nhost = {host}\ntransport_url = {url}\n\n"
                           f"[rpc]\nkey_file = /etc/nova/{host}.key\nrequire_seals = true\n{_tls(host)}")
    if CONF.rpc.broker_api:
        _ask_broker("POST", "definitions", wanted)
        print(f"The broker has the account {account(host)}.")
    else:
        _write(f"{base}.definitions.json", msgspec.json.format(msgspec.json.encode(wanted), indent=1).decode())
        print(f"Have the broker import {base}.definitions.json (rabbitmqctl import_definitions), and remove it.")
    print(f"Bring {base}.key and {base}.conf to {host} as /etc/nova/{host}.key and a --config-file of its services.")
    if _rabbit().ssl and _rabbit().ssl_cert_file:
        print(f"It needs a certificate of its own, too: /etc/nova/{host}.pem, whose key is /etc/nova/{host}-tls.key.")


def _rabbit() -> Any:
    """The options of the broker's driver."""
    return options.register(CONF)


def _tls(host: str) -> str:
    """How a host speaks to the broker: as we do, with files of its own where we have a certificate."""
    if not _rabbit().ssl:
        return ""
    options = {"ssl": "true", "ssl_ca_file": _rabbit().ssl_ca_file}
    if _rabbit().ssl_cert_file:
        options.update(ssl_cert_file=f"/etc/nova/{host}.pem", ssl_key_file=f"/etc/nova/{host}-tls.key")
    return "\n[oslo_messaging_rabbit]\n" + "".join(f"{name} = {value}\n" for name, value in options.items() if value)


def _revoke(arguments: argparse.Namespace) -> None:
    host = arguments.host
    _key, generation = _key_of(host)
    _ask_broker("DELETE", f"users/{urllib.parse.quote(account(host), safe='')}")
    print(f"The broker has no account {account(host)} any more. Its key is refused once control services are restarted "
          f"with {host}:{generation + 1} in [rpc]key_generations.")


def _key_of(host: str) -> tuple[bytes, int]:
    """The key of a host and its generation. Raises InvalidInput without a master key."""
    if not host or any(sign.isspace() or sign == "/" for sign in host):
        raise exception.InvalidInput(reason=f"{host!r} is no name of a host")
    if not CONF.rpc.key_file:
        raise exception.InvalidInput(reason="there is no [rpc]key_file: 'nova-manage host make_master_key' makes one")
    master, whose, _generation = seals.read(CONF.rpc.key_file)
    if whose:
        raise exception.InvalidInput(reason=f"[rpc]key_file has the key of host {whose}, not the master key")
    generation = int(CONF.rpc.key_generations.get(host, 1))
    return seals.host_key(master, host, generation), generation


def account(host: str) -> str:
    """The broker's user for a host."""
    return f"nova-host-{host}"


def definitions(host: str, password: str, vhost: str, exchange: str) -> dict[str, Any]:
    """The account of a host as RabbitMQ imports it: it may do what a nova-compute does, and nothing else."""
    salt, user = secrets.token_bytes(4), account(host)
    hashed = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    return {
        "users": [{"name": user, "password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256",
                   "tags": ""}],
        "permissions": [{"user": user, "vhost": vhost, **permissions(host, COMPUTE, exchange)}],
        "topic_permissions": [{"user": user, "vhost": vhost, **topic_permissions(
            host, COMPUTE, [CONDUCTOR, HEARTBEATS, REPORTS, _PROBE], exchange)}],
    }


def _ask_broker(method: str, path: str, body: Any = None) -> None:
    """Raises InvalidInput for an address that is none, ServiceUnavailable."""
    if not CONF.rpc.broker_api:
        raise exception.InvalidInput(reason="[rpc]broker_api does not tell where RabbitMQ's management plugin is")
    parts = urllib.parse.urlsplit(CONF.rpc.broker_api)
    if parts.scheme not in ("http", "https"):
        raise exception.InvalidInput(reason="[rpc]broker_api is no http(s) address")
    told = ":".join(urllib.parse.unquote(each or "") for each in (parts.username, parts.password))
    request = urllib.request.Request(  # noqa: S310
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/api/{path}", method=method,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Authorization": f"Basic {base64.b64encode(told.encode()).decode()}",
                 "Content-Type": "application/json"})
    try:
        trusted = ssl.create_default_context()
        if _rabbit().ssl_ca_file:  # who vouches for the broker does for its plugin
            trusted.load_verify_locations(_rabbit().ssl_ca_file)
        with urllib.request.urlopen(request, timeout=_PATIENCE, context=trusted):  # noqa: S310
            pass
    except urllib.error.HTTPError as error:
        if method != "DELETE" or error.code != 404:
            raise exception.ServiceUnavailable(f"The broker's management plugin answered {error.code}.") from error
    except OSError as error:
        raise exception.ServiceUnavailable(f"The broker's management plugin does not answer: {error}.") from error


def _write(path: str, text: str) -> None:
    """A new file that its owner alone may read. Raises InvalidInput."""
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise exception.InvalidInput(reason=f"{path} cannot be written: {error.strerror}") from error
