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
# The configuration of novad. Every option is listed with its default, unless the comment says otherwise.

# Address and port of the API of novad. An address other than loopback requires tls_cert and tls_key.
#listen = "tcp://127.0.0.1:18080"

# Announce this novad by mDNS (nova discover). true: on all addresses of listen; a list of addresses or interface names
# (["10.0.0.1", "eth1"]): on those of them that are addresses of listen; false: not at all. With listen on loopback only
# this machine receives the announcement.
#announce = true

# Directory of the journal, the secrets, and the volumes, backups and files of components: all data of novad.
#data_dir = "/var/lib/novad"

# Platform file, TOML or YAML (by the ending of its name; see doc/novad.md). "": a control node sends the components.
#platform = "/etc/novad/platform.toml"

# Name of this node (by default the name of the machine), and its roles: the node runs the components that have one of
# these roles, and all components without roles. On a node of a control node, the control node decides on the roles.
#node = "controller-1"
#roles = ["control", "compute"]

# The other nodes of a control node: their addresses, names, and the roles that the control node gives them. These nodes
# have platform = "" and a secret_file with the output of "nova nodes secret NAME". A node without roles (an address
# alone) receives no components. discover_nodes: list the nodes that announce themselves by mDNS and have a certificate
# of nodes_ca (default: client_ca); they receive roles by "nova nodes accept NAME".
#nodes = [{address = "tls://10.0.0.2:18080", node = "host1", roles = ["compute"]}]
#discover_nodes = false
#nodes_ca = "/etc/novad/nodes.crt"

# Address at which other nodes reach the published ports of this node: the value of ${address:COMPONENT} in platform
# files. Default: the address of listen.
#node_address = "10.0.0.1"

# File with the shared secret that clients need ($NOVA_SHARED_SECRET of the command nova). Default: novad creates a
# secret in the file shared-secret in data_dir.
#secret_file = "/etc/novad/shared-secret"

# TLS certificate and key of novad. client_ca: clients need a certificate of this authority, too.
#tls_cert = "/etc/novad/tls.crt"
#tls_key = "/etc/novad/tls.key"
#client_ca = "/etc/novad/clients.crt"

# File whose content is the key for encrypting the platform's secrets at rest. Default: secrets are not encrypted, in
# files that only root can read.
#key_file = "/etc/novad/secrets.key"

# Socket of a podman service. Default: novad starts a podman service of its own, with its own images and containers.
#podman_socket = "/run/podman/podman.sock"

# Maximum size of an image in MiB (compressed layers). Larger images are refused before they are pulled. 0: no limit
# besides the free space of the disk.
#image_limit = 0

# Seconds between two checks of the components.
#interval = 5.0

# Number of backups to keep of each component. Further backups are kept for keep_days days.
#keep_backups = 5
#keep_days = 30

# Directory with releases of novad (nova update): https://, http:// or file:///. Its list of releases must be signed and
# not expired. update_key: Ed25519 public key (PEM) that verifies the signature; required with update_url.
# update_watch: seconds after which novad returns to the previous release if the new one is not healthy.
#update_url = "https://releases.example.org/novad"
#update_key = "/etc/novad/releases.pub"
#update_watch = 60.0
"""


class Node(Strict, frozen=True, kw_only=True):
    """A node that a control node deploys to. ``roles``: they decide which components run there."""

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
        """Return this node. Its address is in URL form, or "" if it is a wildcard address."""
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
    """Read the configuration file. Raises Invalid, which names the option."""
    text = documents.read(pathlib.Path(path), "The configuration")
    options = documents.convert(documents.parse(text, "toml", str(path)), Options, str(path))
    if bool(options.tls_cert) != bool(options.tls_key):
        raise Invalid(f"{path}: tls_cert and tls_key must be set together")
    if options.client_ca and not options.tls_cert:
        raise Invalid(f"{path}: client_ca requires tls_cert and tls_key")
    if not on_loopback(options.address[0]) and not options.tls_cert:
        raise Invalid(f"{path}: listen: {options.listen} is not on loopback: it requires tls_cert and tls_key")
    if not 0 < options.address[1] <= 65535:
        raise Invalid(f"{path}: listen: {options.address[1]} is not a port (1 to 65535)")
    _check_nodes(path, options)
    if options.update_url and not options.update_key:
        raise Invalid(f"{path}: update_key: required with update_url, since novad installs only signed releases")
    return options


def _check_nodes(path: str | pathlib.Path, options: Options) -> None:
    addresses = [entry.address if isinstance(entry, Node) else entry for entry in options.nodes]
    for url in addresses:
        if url.startswith("tcp://"):
            raise Invalid(f"{path}: nodes: {url}: use tls://, since the values of secrets are sent to nodes")
        if is_wildcard(url.partition("://")[2].rpartition(":")[0]):
            raise Invalid(f"{path}: nodes: {url}: not the address of a single node")
    names = [options.name, *(node.node for node in options.nodes if isinstance(node, Node))]
    for what, values in (("address", addresses), ("node", names)):
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise Invalid(f"{path}: nodes: {what}: two nodes have {twice[0]}")
    if options.coordinates and not options.platform:
        raise Invalid(f"{path}: platform: a control node (nodes, discover_nodes) requires a platform file")
    if options.discover_nodes and not (options.nodes_ca or options.client_ca):
        raise Invalid(f"{path}: discover_nodes: requires nodes_ca or client_ca, whose certificates identify the nodes")
    if is_wildcard(options.node_address):
        raise Invalid(f"{path}: node_address: other nodes cannot reach {options.node_address}: give one address")
    if options.coordinates and not options.node_address and is_wildcard(options.address[0]):
        raise Invalid(f"{path}: node_address: required if novad listens on all addresses and has other nodes")
