"""Configuration of novad: a TOML file, of which ``novad config`` prints an example."""

from __future__ import annotations

import pathlib
import socket
from typing import Annotated

import msgspec

from nova.common import documents
from nova.common.documents import Strict
from nova.common.errors import Invalid
from nova.common.plain_ip import is_wildcard, on_loopback
from nova.novad.platform import Absolute, Count, Name, Place, Seconds

PORT = 18080

EXAMPLE = """\
# The configuration of novad. Every option is here with its default, unless it says otherwise.

# Where commands reach it. Beyond loopback it listens with a secret and TLS only.
#listen = "tcp://127.0.0.1:18080"

# Whether it tells the networks of this machine that it is here (mDNS, nova discover): on all addresses that it listens
# on; or on those of these that it listens on, by address or by name of the interface: ["10.0.0.1", "eth1"]. On
# loopback only this machine hears it.
#announce = true

# Its journal, and the volumes, backups, secrets and files of components. What it needs to know is all in here.
#data_dir = "/var/lib/novad"

# Which components there are: TOML, or YAML if it is called so. See doc/novad.md. "": a control node tells which.
#platform = "/etc/novad/platform.toml"

# The name of this node, and which components it runs: those with one of these roles, and those without any. Where a
# control node tells what to run, it decides on the roles, too. node is the machine's name by default.
#node = "controller-1"
#roles = ["control", "compute"]

# The other nodes of a control node: addresses of their novads, their names, and the roles that this node gives them.
# Their novad.toml has platform = "", and a secret_file with what "nova nodes secret NAME" prints here. An address alone
# gets nothing. With discover_nodes, nodes that announce themselves by mDNS, and have a certificate of nodes_ca (by
# default client_ca), are listed, and get roles by "nova nodes accept NAME".
#nodes = [{address = "tls://10.0.0.2:18080", node = "host1", roles = ["compute"]}]
#discover_nodes = false
#nodes_ca = "/etc/novad/nodes.crt"

# Where other nodes reach what this one publishes: ${address:COMPONENT} of the platform file. By default as listen says.
#node_address = "10.0.0.1"

# A file with the shared secret that callers have to know ($NOVA_SHARED_SECRET of the command). Without it novad makes
# one in data_dir, in the file shared-secret.
#secret_file = "/etc/novad/shared-secret"

# TLS: a certificate and its key; with client_ca callers need certificates of that authority, too.
#tls_cert = "/etc/novad/tls.crt"
#tls_key = "/etc/novad/tls.key"
#client_ca = "/etc/novad/clients.crt"

# A file whose content encrypts the platform's secrets at rest. Without it they are kept as they are, for root alone.
#key_file = "/etc/novad/secrets.key"

# The socket of podman's service. Without it novad runs a service of its own, with its own images and containers.
#podman_socket = "/run/podman/podman.sock"

# MiB that the layers of an image may have as they travel; larger images are refused before they are pulled. 0: any
# size that the disk has room for.
#image_limit = 0

# Seconds between two looks at what should run.
#interval = 5.0

# How many backups of a component are kept at least, and for how many days more than these.
#keep_backups = 5
#keep_days = 30

# Where releases of novad are (nova update): a directory at https://, http:// or file:///, whose list of releases is
# signed and has not expired. update_key (a public key of Ed25519, PEM) verifies the signature, and is needed with
# update_url. A new release that is not healthy after update_watch seconds goes back by itself.
#update_url = "https://releases.example.org/novad"
#update_key = "/etc/novad/releases.pub"
#update_watch = 60.0
"""


class Node(Strict, frozen=True, kw_only=True):
    """A node of a control node. ``roles``: decide what runs there, whatever the node itself requests."""

    address: Annotated[str, msgspec.Meta(pattern=r"^(tcp|tls)://.+:\d{1,5}\Z")]
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?\Z")]
    roles: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]


class Options(Strict, frozen=True, kw_only=True):
    listen: Annotated[str, msgspec.Meta(pattern=r"^tcp://.+:\d{1,5}\Z")] = f"tcp://127.0.0.1:{PORT}"
    announce: bool | tuple[str, ...] = True
    data_dir: Absolute = "/var/lib/novad"
    platform: str = "/etc/novad/platform.toml"
    node: str = ""
    roles: tuple[Name, ...] = ("control", "compute")
    nodes: tuple[Node | Annotated[str, msgspec.Meta(pattern=r"^(tcp|tls)://.+:\d{1,5}\Z")], ...] = ()
    discover_nodes: bool = False
    nodes_ca: str = ""
    node_address: str = ""
    secret_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    client_ca: str = ""
    key_file: str = ""
    podman_socket: str = ""
    image_limit: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    interval: Seconds = 5.0
    keep_backups: Count = 5
    keep_days: Annotated[int, msgspec.Meta(ge=0, le=36500)] = 30
    update_url: Annotated[str, msgspec.Meta(pattern=r"^($|https?://[^/]|file:///)")] = ""
    update_key: str = ""
    update_watch: Seconds = 60.0

    @property
    def address(self) -> tuple[str, int]:
        host, _colon, port = self.listen.removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def socket(self) -> pathlib.Path:
        """Return the path of the socket for local callers; only root can open it."""
        return pathlib.Path(self.data_dir) / "novad.sock"

    @property
    def place(self) -> Place:
        """Return this node. Its address is written as in URLs, "" if novad listens on all and has no node_address."""
        address = (self.node_address or self.address[0]).strip("[]")
        if is_wildcard(address):
            address = ""
        return Place(node=self.name, address=f"[{address}]" if ":" in address else address, roles=self.roles)

    @property
    def coordinates(self) -> bool:
        """Return True if this is a control node with other nodes."""
        return bool(self.nodes) or self.discover_nodes

    @property
    def name(self) -> str:
        return self.node or socket.gethostname()


def load(path: str | pathlib.Path) -> Options:
    """Raises Invalid, which names the option."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise Invalid(f"The configuration {path} cannot be read: {error}") from None
    options = documents.convert(documents.parse(text, "toml", str(path)), Options, str(path))
    if bool(options.tls_cert) != bool(options.tls_key):
        raise Invalid(f"{path}: tls_cert and tls_key are given together")
    if options.client_ca and not options.tls_cert:
        raise Invalid(f"{path}: client_ca needs tls_cert and tls_key")
    if not on_loopback(options.address[0]) and not options.tls_cert:
        raise Invalid(f"{path}: listen: beyond loopback ({options.listen}) novad wants tls_cert and tls_key")
    if not 0 < options.address[1] <= 65535:
        raise Invalid(f"{path}: listen: {options.address[1]} is no port")
    _check_nodes(path, options)
    if options.update_url and not options.update_key:
        raise Invalid(f"{path}: update_key: it is needed with update_url: novad installs signed releases only")
    return options


def _check_nodes(path: str | pathlib.Path, options: Options) -> None:
    addresses = [entry.address if isinstance(entry, Node) else entry for entry in options.nodes]
    for url in addresses:
        if url.startswith("tcp://"):
            raise Invalid(f"{path}: nodes: {url}: values of secrets travel with TLS only: tls://")
        if is_wildcard(url.partition("://")[2].rpartition(":")[0]):
            raise Invalid(f"{path}: nodes: {url}: it is no address of one node")
    names = [options.name, *(node.node for node in options.nodes if isinstance(node, Node))]
    for what, values in (("address", addresses), ("node", names)):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise Invalid(f"{path}: nodes: {what}: two nodes have {twice[0]}")
    if options.coordinates and not options.platform:
        raise Invalid(f"{path}: platform: a control node (nodes, discover_nodes) has a platform file")
    if options.discover_nodes and not (options.nodes_ca or options.client_ca):
        raise Invalid(f"{path}: discover_nodes: it needs nodes_ca, by which nodes are known from strangers")
    if is_wildcard(options.node_address):
        raise Invalid(f"{path}: node_address: other nodes cannot reach {options.node_address}: give one address")
    if options.coordinates and not options.node_address and is_wildcard(options.address[0]):
        raise Invalid(f"{path}: node_address: it is needed where novad listens on all addresses and has other nodes")
