"""The platform file: the components of a platform, their images and their data, in TOML or YAML.

The whole file is checked when it is read: :func:`load` raises Invalid with a message that names the field. A file with
``base`` changes another platform file.
"""

from __future__ import annotations

import graphlib
import pathlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from nova.common.errors import Invalid, NotKnown
from nova.common.plain_ip import is_address
from nova.novad import documents
from nova.novad.documents import Strict

NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"
_TAG = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}\Z")
# No "$" within a name, so that the time to scan a text with unclosed references is linear.
_ADDRESS = re.compile(r"\$\{address:([^}$]*)\}")
_PLACEHOLDER = re.compile(r"\$\{(?:node|address:([^}$]*))\}")
_NODE = "${node}"
_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_URL = re.compile(r"https?://(?:[^\s/?#@]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(?::([0-9]{1,5}))?(?:[/?#][!-~]*)?")
_SECRET = re.compile(r"\$\{secret:([^}$]*)\}")
_ALPHABETS = {"letters+digits": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
              "digits": "0123456789", "hex": "0123456789abcdef"}

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Absolute = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*\Z")]


class Volume(Strict, frozen=True, kw_only=True):
    """A directory of the node. ``backup``: whether it is copied before each deployment of its component."""

    name: Name
    destination: Absolute
    options: tuple[Literal["ro", "rw"], ...] = ()
    backup: bool = True


class Bind(Strict, frozen=True, kw_only=True):
    """A directory or file of the node that the component uses as it is (devices, sockets, modules); never backed up."""

    source: Absolute
    destination: Absolute
    options: tuple[Literal["ro", "rw", "rshared", "rslave"], ...] = ()


class PublishedPort(Strict, frozen=True, kw_only=True):
    """A published port of the container. A container without networks and published ports uses the node's network.
    ``${address:COMPONENT}`` as address is the address at which other nodes reach the component."""

    container: Port
    node: Port
    address: str = "127.0.0.1"
    protocol: Literal["tcp", "udp"] = "tcp"


class Health(Strict, frozen=True, kw_only=True):
    """A health check by ``command`` (in the container), ``http`` (a URL) or ``tcp`` (HOST:PORT). Times are in seconds.
    ``interval``: between two checks; ``timeout``: of one check; ``retries``: failures after which the component is
    unhealthy; ``start``: grace period after the start."""

    command: tuple[str, ...] = ()
    http: str = ""
    tcp: str = ""
    interval: Seconds = 5.0
    timeout: Seconds = 5.0
    retries: Count = 3
    start: Seconds = 60.0


class Secret(Strict, frozen=True, kw_only=True):
    """The rules by which a secret is generated at the first deployment."""

    length: Annotated[int, msgspec.Meta(ge=8, le=1024)] = 32
    alphabet: str = "letters+digits"

    @property
    def characters(self) -> str:
        return _ALPHABETS.get(self.alphabet, self.alphabet)


class Component(Strict, frozen=True, kw_only=True):
    """A component. ``data_of``: other components whose data this component changes in an upgrade (a conductor changes
    those of its database); they are backed up and restored together. ``dump``, ``restore``: commands in the running
    container that write the component's data to their output and read them from their input."""

    image: Annotated[str, msgspec.Meta(min_length=1)]
    version: str = ""
    channel: str = ""
    digest: str = ""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    files: dict[Absolute, str] = {}
    volumes: tuple[Volume, ...] = ()
    binds: tuple[Bind, ...] = ()
    ports: tuple[PublishedPort, ...] = ()
    networks: tuple[Name, ...] = ()
    depends: tuple[Name, ...] = ()
    data_of: tuple[Name, ...] = ()
    health: Health | None = None
    version_command: tuple[str, ...] = ()
    dump: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    roles: tuple[Name, ...] = ()
    user: str = ""
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    devices: tuple[Absolute, ...] = ()
    stop_timeout: Annotated[int, msgspec.Meta(ge=0, le=3600)] = 30

    @property
    def tag(self) -> str:
        return self.version or self.channel or "stable"

    def reference(self) -> str:
        return f"{self.image}@{self.digest}" if self.digest else f"{self.image}:{self.tag}"

    def of_version(self, version: str) -> Component:
        """Return the same component at another version: TAG, or TAG@DIGEST. Raises Invalid."""
        tag, at, digest = version.partition("@")
        if not _TAG.match(tag) or (at and not _DIGEST.match(digest)):
            raise Invalid(f"{version!r} is not a version: use TAG or TAG@sha256:DIGEST.")
        if tag == self.tag:
            return msgspec.structs.replace(self, digest=digest)
        return msgspec.structs.replace(self, version=tag, channel="", digest=digest)

    def mount_points(self) -> list[str]:
        """Return the paths in the container of volumes, files and binds, as the platform file has them."""
        return [*(volume.destination for volume in self.volumes), *self.files,
                *(bind.destination for bind in self.binds)]

    def uncovered(self, paths: Iterable[str]) -> list[str]:
        """Return the paths in the container that no mount of the component covers."""
        mounts = [normalized(path) for path in self.mount_points()]
        return [path for path in sorted({normalized(destination) for destination in paths})
                if not any(path == mount or path.startswith(mount.rstrip("/") + "/") for mount in mounts)]

    def secrets(self) -> set[str]:
        return {name for text in (*self.env.values(), *self.files.values()) for name in _SECRET.findall(text)}


class Place(Strict, frozen=True, kw_only=True):
    """A node that runs components. ``address``: where other nodes reach its published ports."""

    node: str
    address: str
    roles: tuple[str, ...]

    def runs(self, component: Component) -> bool:
        """Return True if the node runs the component. Components without roles run on all nodes."""
        return not component.roles or bool(set(component.roles) & set(self.roles))


class Platform(Strict, frozen=True, kw_only=True):
    """A platform. ``name``: the prefix of its containers; ``networks``: networks that novad creates on the node."""

    name: Name
    networks: tuple[Name, ...] = ()
    secrets: dict[Name, Secret] = {}
    components: dict[Name, Component]

    def component(self, name: str) -> Component:
        """Return a component. Raises NotKnown."""
        if name not in self.components:
            raise NotKnown(f"Component {name} does not exist in platform {self.name}, which has "
                           f"{', '.join(sorted(self.components))}.")
        return self.components[name]

    def part(self, place: Place) -> Platform:
        """Return the platform with only the components that a node runs. Placeholders are not filled in."""
        chosen = {name: component for name, component in self.components.items() if place.runs(component)}
        return msgspec.structs.replace(self, components={name: msgspec.structs.replace(
            component, depends=tuple(other for other in component.depends if other in chosen),
            data_of=tuple(other for other in component.data_of if other in chosen))
            for name, component in chosen.items()})

    def at(self, place: Place, places: Sequence[Place]) -> Platform:
        """Return the components for a node, one of ``places``, with names and addresses filled in. Raises
        Invalid for an address of a component on no or several nodes, and for a node name not allowed in files."""
        part = self.part(place)
        placed = msgspec.structs.replace(part, components={
            name: self._placed(name, component, place, places) for name, component in part.components.items()})
        _check_ports(placed)
        return placed

    def _placed(self, name: str, component: Component, place: Place, places: Sequence[Place]) -> Component:
        def resolved(field: str, text: str) -> str:
            return self._resolved(f"components.{name}.{field}", text, place, places)
        ports = [msgspec.structs.replace(port, address=resolved(f"ports[{number}].address", port.address).strip("[]"))
                 for number, port in enumerate(component.ports)]
        return msgspec.structs.replace(
            component, env={key: resolved(f"env.{key}", text) for key, text in component.env.items()},
            files={key: resolved(f"files.{key}", text) for key, text in component.files.items()},
            ports=tuple(dict.fromkeys(ports)),  # All nodes have the same loopback address.
            health=component.health and msgspec.structs.replace(component.health, command=tuple(
                resolved("health.command", word) for word in component.health.command)))

    def _resolved(self, where: str, text: str, place: Place, places: Sequence[Place]) -> str:
        def value(match: re.Match[str]) -> str:
            if match.group(1) is None:
                return place.node
            component = self.components[match.group(1)]
            candidates = [place] if place.runs(component) else [other for other in places if other.runs(component)]
            if len(candidates) != 1:
                nodes = ", ".join(other.node for other in candidates)
                raise Invalid(f"{where}: {match.group(0)}: the component runs on "
                              f"{f'several nodes: {nodes}' if nodes else 'no node'}.")
            if not candidates[0].address:
                raise Invalid(f"{where}: {match.group(0)}: node {candidates[0].node} listens on all addresses: set "
                              "node_address in its novad.toml.")
            return candidates[0].address
        if _NODE in text and not _NODE_NAME.fullmatch(place.node):
            raise Invalid(f"{where}: {_NODE}: the name of node {place.node!r} (node in novad.toml) must consist of "
                          "letters, digits, dots, hyphens and underscores.")
        return _PLACEHOLDER.sub(value, text)


def in_order(depends: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names in the order of dependencies, the same order every time. Raises Invalid for a cycle."""
    sorter = graphlib.TopologicalSorter({name: sorted(depends[name]) for name in sorted(depends)})
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        raise Invalid(f"components: circular dependency: {' -> '.join(error.args[1])}") from None


def normalized(path: str) -> str:
    """Return an absolute path of a container without repeated or trailing slashes."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def fill(text: str, secrets: Mapping[str, str]) -> str:
    """Return ``text`` with the values of its secrets filled in."""
    return _SECRET.sub(lambda match: secrets[match.group(1)], text)


def load(path: str | pathlib.Path) -> Platform:
    """Return the platform of a file that ends in .toml, .yaml or .yml, merged with its bases. Raises Invalid."""
    file = pathlib.Path(path)
    return platform_of(_read(file, ()), str(file))


def _read(file: pathlib.Path, above: tuple[pathlib.Path, ...]) -> Any:
    """Return the content of a file merged into that of its base; ``above``: the files that are based on it."""
    text = documents.read(file, "The platform file")
    if (place := file.resolve()) in above:
        raise Invalid(f"{file}: base: the file is its own base")
    data = documents.parse(text, "toml" if file.suffix == ".toml" else "yaml", str(file))
    if not isinstance(data, dict) or "base" not in data:
        return data
    base = data.pop("base")
    if not isinstance(base, str) or not base or "\0" in base:
        raise Invalid(f"{file}: base: must be the path of another platform file")
    try:
        return _joined(_read(file.parent / base, (*above, place)), data)
    except RecursionError:
        raise Invalid(f"{file}: base: too many levels of tables or files") from None


def _joined(base: Any, change: Any) -> Any:
    """Merge ``change`` into ``base``: tables field by field, where null removes a field; other values are replaced."""
    if not isinstance(change, dict):
        return change
    joined = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            joined.pop(key, None)
        else:
            joined[key] = _joined(joined.get(key), value)
    return joined


def platform_of(data: Any, name: str) -> Platform:
    """Return the platform that a document contains. Raises Invalid, which begins with ``name`` and names the field."""
    platform = documents.convert(data, Platform, name)
    try:
        if not platform.components:
            raise Invalid("components: at least one component is required")
        check(platform)
    except Invalid as error:
        raise Invalid(f"{name}: {error.message}") from None
    return platform


def check(platform: Platform) -> None:
    """Check the references between the parts of a platform. Raises Invalid."""
    for name, secret in platform.secrets.items():
        if len(set(secret.characters)) < 2 or not secret.characters.isprintable():
            raise Invalid(f"secrets.{name}.alphabet: must have at least two different characters that can be printed, "
                          f"or be one of {', '.join(sorted(_ALPHABETS))}")
    for name, component in platform.components.items():
        _check_component(platform, name, component)
    _check_ports(platform)
    in_order({name: component.depends for name, component in platform.components.items()})


def _check_component(platform: Platform, name: str, component: Component) -> None:
    where = f"components.{name}"
    if re.search(r"[\s@]", component.image) or ":" in component.image.rpartition("/")[2]:
        raise Invalid(f"{where}.image: {component.image!r} is not the name of an image without version; version, "
                      "channel and digest are separate fields")
    if component.version and component.channel:
        raise Invalid(f"{where}.channel: set either version or channel")
    for field, tag in (("version", component.version), ("channel", component.channel)):
        if tag and not _TAG.match(tag):
            raise Invalid(f"{where}.{field}: {tag!r} is not a version")
    if component.digest and not _DIGEST.match(component.digest):
        raise Invalid(f"{where}.digest: must be sha256: and 64 hexadecimal digits")
    for field in ("depends", "data_of"):
        for other in getattr(component, field):
            if other not in platform.components or other == name:
                raise Invalid(f"{where}.{field}: component {other} does not exist or is the component itself")
    for network in component.networks:
        if network not in platform.networks:
            raise Invalid(f"{where}.networks: {network} is not declared in the networks of the platform")
    for secret in sorted(component.secrets()):
        if secret not in platform.secrets:
            raise Invalid(f"{where}: secret {secret!r} does not exist")
    health = component.health
    if bool(component.dump) != bool(component.restore):
        raise Invalid(f"{where}.dump: dump and restore must be set together")
    if component.dump and not any(volume.backup for volume in component.volumes):
        raise Invalid(f"{where}.dump: requires a volume with backups")
    commands = {name: getattr(component, name) for name in ("command", "version_command", "dump", "restore")}
    for field, words in {**commands, "health.command": health.command if health else ()}.items():
        if any("${secret:" in word for word in words):
            raise Invalid(f"{where}.{field}: a secret here would show in the list of processes; use env or files")
    for field, texts in (("env", component.env), ("files", component.files)):
        for key, text in texts.items():
            if "${secret:" in _SECRET.sub("", text):
                raise Invalid(f"{where}.{field}.{key}: write a secret as ${{secret:NAME}}")
            _check_placeholders(platform, f"{where}.{field}.{key}", text)
    for word in health.command if health else ():
        _check_placeholders(platform, f"{where}.health.command", word)
    for field in Component.__struct_fields__:
        if _has_zero(msgspec.to_builtins(getattr(component, field))):
            raise Invalid(f"{where}.{field}: must not contain a NUL character")
    for key in component.env:
        if not re.fullmatch(r"[^=\0\s]+", key):
            raise Invalid(f"{where}.env: {key!r} cannot be the name of a variable")
    seen = {"/": "is the root directory of the image: not a valid mount point"}
    for target in component.mount_points():
        if problem := seen.get(normalized(target)):
            raise Invalid(f"{where}: {target} {problem}")
        seen[normalized(target)] = "is mounted twice"
    if len({volume.name for volume in component.volumes}) < len(component.volumes):
        raise Invalid(f"{where}.volumes: two volumes have the same name")
    if health is not None:
        _check_health(where, health)


def _check_placeholders(platform: Platform, where: str, text: str) -> None:
    for other in _ADDRESS.findall(text):
        if other not in platform.components:
            raise Invalid(f"{where}: component {other!r} does not exist")
    if "${address:" in _ADDRESS.sub("", text):
        raise Invalid(f"{where}: write an address as ${{address:COMPONENT}}")
    if "${node:" in text:
        raise Invalid(f"{where}: write the name of the node as {_NODE}")


def _has_zero(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_zero(element) for pair in value.items() for element in pair)
    return any(map(_has_zero, value)) if isinstance(value, list | tuple) else isinstance(value, str) and "\0" in value


def _check_health(where: str, health: Health) -> None:
    if sum(map(bool, (health.command, health.http, health.tcp))) != 1:
        raise Invalid(f"{where}.health: set exactly one of command, http and tcp")
    url = _URL.fullmatch(health.http)
    if health.http and not (url and 0 < int(url[1] or 80) <= 65535):
        raise Invalid(f"{where}.health.http: {health.http!r} is not a URL of http or https")
    port = re.fullmatch(r".+:(\d{1,5})", health.tcp)
    if health.tcp and not (port and 0 < int(port[1]) <= 65535):
        raise Invalid(f"{where}.health.tcp: {health.tcp!r} is not HOST:PORT")


def _check_ports(platform: Platform) -> None:
    taken: dict[tuple[str, int, str], str] = {}
    for name, component in platform.components.items():
        for number, port in enumerate(component.ports):
            where = f"components.{name}.ports[{number}].address"
            _check_placeholders(platform, where, port.address)
            if not is_address(port.address) and not _ADDRESS.fullmatch(port.address):
                raise Invalid(f"{where}: {port.address!r} is not an IP address")
            key = (port.address, port.node, port.protocol)
            if key in taken:
                raise Invalid(f"components.{name}.ports: port {port.node} of {port.address} is already "
                              f"used by {taken[key]}")
            taken[key] = name
