"""Configuration of novad: a TOML file. The example beside this module lists all options; ``novad config`` prints it."""

import pathlib
import socket
from typing import Annotated

import msgspec

from nova.common.errors import Invalid
from nova.common.plain_ip import is_wildcard, on_loopback
from nova.novad import documents
from nova.novad.documents import Strict
from nova.novad.platform import Absolute, Count, Name, Place, Seconds

EXAMPLE = pathlib.Path(__file__).with_name("novad.toml")


class Node(Strict, frozen=True, kw_only=True):
    """A node to which a control node deploys. ``roles`` decide which components run on the node."""

    address: Annotated[str, msgspec.Meta(pattern=r"^(tcp|tls)://.+:\d{1,5}\Z")]
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?\Z")]
    roles: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]


class Options(Strict, frozen=True, kw_only=True):
    listen: Annotated[str, msgspec.Meta(pattern=r"^tcp://.+:\d{1,5}\Z")] = "tcp://127.0.0.1:18080"
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
    if options.update_url and not options.update_key:
        raise Invalid(f"{path}: update_key: required with update_url, since novad installs only signed releases")
    return options
