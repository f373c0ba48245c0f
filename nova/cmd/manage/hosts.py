"""The commands nova-manage host, for keys and broker accounts of compute hosts."""

import argparse
import base64
import hashlib
import os
import re
import secrets
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
import oslo_messaging as messaging

from nova import exception
from nova.bus import message_signing
from nova.bus.driver import options
from nova.cmd.manage import common, drains
from nova.conf import CONF
from nova.rpcapi import COMPUTE, CONDUCTOR, HEARTBEATS, REPORTS

_TIMEOUT = 30  # timeout in seconds of requests to the broker
_PROBE = "nobody"  # topic to which hosts of the previous release publish to check that the broker is reachable


def add_commands(commands: Any) -> None:
    group = common.add_group(commands, "host", "Manage keys and broker accounts of compute hosts; drain hosts.")
    master = common.add_action(group, "make_master_key", _make_master_key,
                               "Create the master key of the control plane ([rpc]key_file).")
    master.add_argument("file", help="new file for the key (mode 0600)")
    enrol = common.add_action(group, "enrol", _enrol,
                              "Create the key, the broker account and the configuration of a host.")
    enrol.add_argument("host", help="name of the compute host ([DEFAULT]host)")
    enrol.add_argument("--output", default=".", metavar="DIRECTORY",
                       help="directory for HOST.key, HOST.conf and, without [rpc]broker_api, HOST.definitions.json "
                            "(mode 0600; default: the current directory)")
    revoke = common.add_action(group, "revoke", _revoke, "Delete the broker account of a host.")
    revoke.add_argument("host", help="name of the compute host ([DEFAULT]host)")
    drains.add_commands(group)


def _make_master_key(arguments: argparse.Namespace) -> None:
    _write(arguments.file, message_signing.text_of(secrets.token_bytes(32)))
    print(f"Wrote the master key to {arguments.file}. Copy it to all control nodes, and never to a compute host.")


def _enrol(arguments: argparse.Namespace) -> None:
    host, key, generation = arguments.host, *_key_of(arguments.host)
    url = messaging.TransportURL.parse(CONF)
    password = secrets.token_urlsafe(24)
    wanted = definitions(host, password, url.virtual_host or "/", CONF.control_exchange)
    base = os.path.join(arguments.output, host)
    _write(f"{base}.key", message_signing.text_of(key, host, generation))
    for broker in url.hosts:
        broker.username, broker.password = account(host), password
    _write(f"{base}.conf", f"[DEFAULT]\nhost = {host}\ntransport_url = {url}\n\n"
                           f"[rpc]\nkey_file = /etc/nova/{host}.key\nrequire_seals = true\n{_tls(host)}")
    if CONF.rpc.broker_api:
        _request_broker("POST", "definitions", wanted)
        print(f"Created the broker account {account(host)}.")
    else:
        _write(f"{base}.definitions.json", msgspec.json.format(msgspec.json.encode(wanted), indent=1).decode())
        print(f"Import {base}.definitions.json into the broker (rabbitmqctl import_definitions), and delete the file.")
    print(f"Copy {base}.key to {host} as /etc/nova/{host}.key, and use {base}.conf as a --config-file there.")
    if _rabbit().ssl and _rabbit().ssl_cert_file:
        print(f"The host also needs its own certificate /etc/nova/{host}.pem with the key /etc/nova/{host}-tls.key.")


def _rabbit() -> Any:
    return options.register(CONF)


def _tls(host: str) -> str:
    """Return the TLS options of a host for the broker: those of this service, with the host's own certificate."""
    if not _rabbit().ssl:
        return ""
    options = {"ssl": "true", "ssl_ca_file": _rabbit().ssl_ca_file}
    if _rabbit().ssl_cert_file:
        options.update(ssl_cert_file=f"/etc/nova/{host}.pem", ssl_key_file=f"/etc/nova/{host}-tls.key")
    return "\n[oslo_messaging_rabbit]\n" + "".join(f"{name} = {value}\n" for name, value in options.items() if value)


def _revoke(arguments: argparse.Namespace) -> None:
    host = arguments.host
    _key, generation = _key_of(host)
    _request_broker("DELETE", f"users/{urllib.parse.quote(account(host), safe='')}")
    print(f"Deleted the broker account {account(host)}. To revoke its key, too, set {host}:{generation + 1} in "
          "[rpc]key_generations and restart the control services.")


def _key_of(host: str) -> tuple[bytes, int]:
    """Return the key of a host and its generation. Raises InvalidInput if no master key is configured."""
    if not host or any(sign.isspace() or sign == "/" for sign in host):
        raise exception.InvalidInput(reason=f"{host!r} is not a valid host name")
    if not CONF.rpc.key_file:
        raise exception.InvalidInput(reason="[rpc]key_file is not set; run 'nova-manage host make_master_key'")
    master, owner, _generation = message_signing.read(CONF.rpc.key_file)
    if owner:
        raise exception.InvalidInput(reason=f"[rpc]key_file has the key of host {owner}, not the master key")
    generation = int(CONF.rpc.key_generations.get(host, 1))
    return message_signing.host_key(master, host, generation), generation


def account(host: str) -> str:
    """Return the name of the broker account of a host."""
    return f"nova-host-{host}"


def definitions(host: str, password: str, vhost: str, exchange: str) -> dict[str, Any]:
    """Return RabbitMQ definitions of the account of a host, with the minimum of permissions for nova-compute: patterns
    of the names of queues and exchanges, and of the topics that it may send to and receive from. A host may not declare
    the exchange that all services share, since this permission also allows to delete it with the bindings of every
    queue. On a host, Nova's driver uses the exchange that a conductor has declared (Driver.restrict_to_host)."""
    salt, user = secrets.token_bytes(4), account(host)
    hashed = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    queue, shared = rf"{_exactly(COMPUTE)}\.{_exactly(host)}", _exactly(exchange)
    own = rf"{queue}|reply_{_exactly(host)}_[0-9a-f]{{32}}"
    topics = "|".join(map(_exactly, (CONDUCTOR, HEARTBEATS, REPORTS, _PROBE)))
    return {
        "users": [{"name": user, "password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256",
                   "tags": ""}],
        "permissions": [{"user": user, "vhost": vhost, "configure": f"^({own})$",
                         "write": rf"^({own}|{shared}|amq\.default)$", "read": f"^({own}|{shared})$"}],
        "topic_permissions": [{"user": user, "vhost": vhost, "exchange": exchange, "write": f"^({topics})$",
                               "read": f"^{queue}$"}]}


def _exactly(name: str) -> str:
    return re.escape(name).replace(r"\-", "-")


def _request_broker(method: str, path: str, body: Any = None) -> None:
    """Send a request to RabbitMQ's management plugin. Raises InvalidInput (bad URL), ServiceUnavailable (failure)."""
    if not CONF.rpc.broker_api:
        raise exception.InvalidInput(reason="[rpc]broker_api, the URL of RabbitMQ's management plugin, is not set")
    parts = urllib.parse.urlsplit(CONF.rpc.broker_api)
    if parts.scheme not in ("http", "https"):
        raise exception.InvalidInput(reason="[rpc]broker_api is not an http(s) URL")
    credentials = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
    request = urllib.request.Request(  # noqa: S310
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}/api/{path}", method=method,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}",
                 "Content-Type": "application/json"})
    try:
        tls = ssl.create_default_context()
        if _rabbit().ssl_ca_file:  # the CA of the broker also signs the plugin's certificate
            tls.load_verify_locations(_rabbit().ssl_ca_file)
        with urllib.request.urlopen(request, timeout=_TIMEOUT, context=tls):  # noqa: S310
            pass
    except urllib.error.HTTPError as error:
        if method != "DELETE" or error.code != 404:
            raise exception.ServiceUnavailable(f"The broker's management plugin answered HTTP {error.code}.") from error
    except OSError as error:
        raise exception.ServiceUnavailable(f"The broker's management plugin does not answer: {error}.") from error


def _write(path: str, text: str) -> None:
    """Write a new file with mode 0600. Raises InvalidInput."""
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise exception.InvalidInput(reason=f"{path} cannot be written: {error.strerror}") from error
