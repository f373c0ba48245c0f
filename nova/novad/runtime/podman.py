"""podman, by its REST service and the official client library, and the registries from which it pulls images."""

import contextlib
import datetime
import http.client
import json
import logging
import os
import pathlib
import platform
import re
import shutil
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import msgspec
import requests
from podman import PodmanClient
from podman import errors as podman_errors

from nova.common.errors import ReportedError
from nova.common.plain_ip import on_loopback
from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.platform import Component
from nova.novad.runtime import podman_stream
from nova.novad.runtime.podman_stream import PodmanStream

LOG = logging.getLogger(__name__)

# Labels that mark the containers of novad.
PLATFORM, COMPONENT, DEPLOYMENT = "io.nova.platform", "io.nova.component", "io.nova.deployment"
# Mount options of all directories of novad: set-uid bits and devices have no effect there.
CONFINED = ("nosuid", "nodev")

_TIMEOUT = 60.0  # Timeout in seconds of a request that changes something.
_QUERY_TIMEOUT = 20.0  # timeout in seconds of a query, shorter than the timeout of novad's clients
_PULL_TIMEOUT = 1800.0  # seconds without a report of podman after which a pull fails
_REASON = 400  # maximum number of characters of podman's error message: the end of it
MARGIN = 64 << 20  # Bytes of the disk that stay free of images.
_MIB = 1 << 20
_UNNAMED = re.compile(r"[0-9a-f]{64}")  # the name that podman gives a volume without a name
_OUTPUT = 1 << 16  # Maximum number of bytes kept of a command's output.
# States of podman in which a container has processes.
_RUNNING, _PAUSED, _STOPPING = _ALIVE = ("running", "paused", "stopping")
_MOST = 4 << 20  # Maximum number of bytes of a manifest or token.
_REGISTRY_TIMEOUT = 10.0  # Timeout in seconds of a request to a registry.
_LOCAL_TIMEOUT = 2.0  # Timeout in seconds of a request to a registry on this machine.
_ACCEPT = ", ".join([
    "application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"])
_REFERENCE = re.compile(r"(?P<host>[^/]*[.:][^/]*|localhost)/(?P<path>[^@]+?)(?::(?P<tag>[\w][\w.-]*))?"
                        r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?", re.ASCII)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class Image(msgspec.Struct, frozen=True):
    """An image. ``ident``: its id, which identifies its content; ``digest``: its digest in the registry."""

    ident: str
    digest: str


class Container(msgspec.Struct, frozen=True):
    """A container. ``started``: seconds since 1970. ``volumes``: ids of its volumes without a name."""

    name: str
    running: bool
    exit_code: int = 0
    started: float = 0.0
    labels: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()


class Mount(msgspec.Struct, frozen=True):
    """A file or directory of the node, mounted at ``destination``. With CONFINED in ``options`` it belongs to novad."""

    source: pathlib.Path
    destination: str
    options: tuple[str, ...] = ()


class Wanted(msgspec.Struct, frozen=True):
    """A container of ``component`` to create. Without networks it uses the network of the node."""

    name: str
    image: str
    labels: Mapping[str, str]
    component: Component
    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    networks: tuple[str, ...] = ()


class Podman:
    """Containers of podman, by its ``socket``. Methods are idempotent and raise RuntimeFault, whose message is for the
    user. ``image_limit``: maximum compressed bytes of an image (0: unlimited)."""

    def __init__(self, socket: str, image_limit: int = 0) -> None:
        self._socket = socket
        self._image_limit = image_limit
        self._storage: pathlib.Path | None = None  # Image storage of the service; known after the first query.

    def version(self) -> str:
        with self._client("no response", _QUERY_TIMEOUT) as client:
            version: Any = client.version()  # type: ignore[no-untyped-call]
            return f"podman {version['Version']}"

    def fetch(self, reference: str) -> Image:
        """Pull an image by its name in a registry. Raises ImageFault."""
        if self._storage is None:
            with self._client("its storage is unknown", _QUERY_TIMEOUT) as client:
                info: Any = client.info()  # type: ignore[no-untyped-call]
                self._storage = pathlib.Path(info["store"]["graphRoot"])
        with self._client(f"{reference} cannot be fetched") as client:
            layers, limit = image_size(reference), self._image_limit
            if layers is not None and limit and layers > limit:
                raise ImageFault(f"{reference} has layers of {layers // _MIB} MiB, and image_limit is {limit // _MIB} "
                                 "MiB.")
            if layers is not None and layers + MARGIN > (free := shutil.disk_usage(self._storage).free):
                raise ImageFault(f"{reference} has layers of {layers // _MIB} MiB, which take more when they are "
                                 f"unpacked, and {free // _MIB} MiB are free in {self._storage}.")
            unsized = layers is None and limit
            present = {image.id for image in client.images.list()} if unsized else set()
            image: Any = client.images.get(self._pull(reference))
            if unsized and (size := int(image.attrs["Size"])) > limit:
                if image.id not in present:  # Images of other deployments stay.
                    client.images.remove(image.id)
                raise ImageFault(f"{reference} has {size // _MIB} MiB when it is unpacked, and image_limit is "
                                 f"{limit // _MIB} MiB. The size of its layers was unknown before the pull.")
            return Image(image.id.removeprefix("sha256:"), str(image.attrs.get("Digest") or ""))

    def _pull(self, reference: str) -> str:
        """Pull an image; return its id. The pull is cancelled before it fills the disk. Raises RuntimeFault."""
        what = f"{reference} cannot be fetched"
        query = urllib.parse.urlencode({"reference": reference, "policy": "always", "compatMode": "false",
                                        "tlsVerify": str(not is_on_loopback(reference)).lower()})
        try:
            stream = PodmanStream(self._socket, what, "POST", f"/images/pull?{query}", timeout=_PULL_TIMEOUT,
                                  refused=ImageFault)
        except RuntimeFault as error:
            text = error.message.removeprefix("podman: ") if isinstance(error, ImageFault) else error.message
            raise type(error)(f"{text}{self._disk_note()}") from None
        def check_disk() -> None:
            if self._free() < MARGIN:
                raise ImageFault(f"{what}: the pull was cancelled, since less than {MARGIN // _MIB} MiB are free in "
                                 f"{self._storage}.")
        ident = ""
        try:
            for report in stream.documents(check_disk):
                if report.get("error"):
                    raise ImageFault(f"{what}: {str(report['error'])[-_REASON:]}{self._disk_note()}")
                ident = str(report.get("id") or ident)
        finally:
            stream.free()  # This cancels a pull that has not ended.
        if not ident:
            raise ImageFault(f"{what}: podman reported no reason.{self._disk_note()}")
        return ident.removeprefix("sha256:")

    def _free(self) -> int:
        """Return the free bytes of podman's storage, or MARGIN if they are unknown."""
        with contextlib.suppress(OSError):
            if self._storage is not None:
                return shutil.disk_usage(self._storage).free
        return MARGIN

    def _disk_note(self) -> str:
        """Return a sentence about the free space if a full disk may be the cause of an error."""
        free = self._free()
        return f" (the disk of {self._storage} is full: {free // _MIB} MiB are free)" if free < MARGIN else ""

    def resolve(self, reference: str) -> str:
        """Return the digest of a tag in a registry on this machine; "" for other registries and without a response."""
        parts = _REFERENCE.fullmatch(reference)
        if parts is None or parts["digest"] or not is_on_loopback(reference):
            return ""
        request = urllib.request.Request(f"http://{parts['host']}/v2/{parts['path']}/manifests/{parts['tag']}",
                                         headers={"Accept": _ACCEPT}, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=_LOCAL_TIMEOUT) as answer:  # noqa: S310
                return answer.headers.get("Docker-Content-Digest") or ""
        except (OSError, ValueError, http.client.HTTPException):
            return ""

    def has_image(self, ident: str) -> bool:
        with self._client(f"the presence of image {ident} cannot be checked", _QUERY_TIMEOUT) as client:
            return _exists(client, f"/images/{ident}/exists")

    def data_paths(self, ident: str) -> tuple[str, ...]:
        """Return the paths that a fetched image declares as volumes (``VOLUME``). Raises ImageFault."""
        with self._client(f"image {ident} cannot be inspected", _QUERY_TIMEOUT) as client:
            config: Any = client.images.get(ident).attrs.get("Config")
        volumes = config.get("Volumes") or {} if isinstance(config, dict) else None
        if not isinstance(volumes, dict):
            raise ImageFault(f"The configuration of image {ident} cannot be read.")
        return tuple(sorted(map(str, volumes)))

    def create(self, wanted: Wanted) -> None:
        """Create a container in place of an existing one with this name, without starting it."""
        self.remove(wanted.name)
        component = wanted.component
        options: dict[str, Any] = {
            "name": wanted.name, "environment": dict(wanted.env), "labels": dict(wanted.labels), "init": True,
            "mounts": [{"type": "bind", "source": str(mount.source), "target": mount.destination,
                        "read_only": "ro" in mount.options, **_propagation(mount.options)}
                       for mount in wanted.mounts if not set(CONFINED) <= set(mount.options)],
            # podman's client library accepts these options only in ``volumes``, a table by source path.
            "volumes": {str(mount.source): {"bind": mount.destination, "extended_mode": ["rbind", *mount.options]}
                        for mount in wanted.mounts if set(CONFINED) <= set(mount.options)},
            "privileged": component.privileged, "cap_add": list(component.capabilities),
            "devices": list(component.devices), "stop_timeout": component.stop_timeout, "healthcheck": None,
            # Images with declared volumes and no mount are refused earlier; podman creates no anonymous volumes.
            "image_volume_mode": "ignore"}
        if component.user:
            options["user"] = component.user
        options["network_mode"] = "bridge" if wanted.networks or component.ports else "host"
        if wanted.networks:
            options["networks"] = {name: {"aliases": [wanted.labels[COMPONENT]]} for name in wanted.networks}
        for port in component.ports:
            published = options.setdefault("ports", {}).setdefault(f"{port.container}/{port.protocol}", [])
            published.append((port.address, port.node))
        with self._client(f"container {wanted.name} cannot be created") as client:
            client.containers.create(wanted.image, list(component.command) or None, **options)

    def start(self, name: str) -> None:
        with self._client(f"container {name} cannot be started") as client:
            container = client.containers.get(name)
            if _status(container) == _PAUSED:
                container.unpause()
            elif _status(container) == _STOPPING:  # podman's service ended while it stopped the container.
                client.api.post(f"/containers/{container.id}/stop").raise_for_status()
                container.start()
            elif _status(container) != _RUNNING:  # Starting a running container raises an error in the library.
                container.start()

    def stop(self, name: str, timeout: int) -> None:
        """Send SIGTERM, and SIGKILL after ``timeout`` seconds. A missing container counts as stopped."""
        with self._client(f"container {name} cannot be stopped", _TIMEOUT + timeout, absent_ok=True) as client:
            container = client.containers.get(name)
            if _status(container) == _PAUSED:  # Paused by an operator: podman cannot stop it.
                container.unpause()
            elif _status(container) not in _ALIVE:
                return
            # The library's own method gives up after 1.5 times the timeout, which may be a second.
            client.api.post(f"/containers/{container.id}/stop", params={"timeout": timeout}).raise_for_status()
            # The container's data are copied next, so the report of podman is not sufficient.
            if _status(client.containers.get(name)) in _ALIVE:
                raise RuntimeFault(f"podman: container {name} still runs although podman reported its stop")

    def remove(self, name: str) -> None:
        """Remove a container with all its processes. Volumes that podman created for it stay."""
        with self._client(f"container {name} cannot be removed", absent_ok=True) as client:
            # Volumes without a name, of containers of an earlier release, stay until a removal of data commits.
            client.containers.get(name).remove(force=True)
            client.containers.get(name)  # podman 4 reports some errors in a response with status 200.
            raise RuntimeFault(f"podman: container {name} still exists although podman reported its removal")

    def remove_volume(self, ident: str) -> None:
        with self._client(f"volume {ident} cannot be removed", absent_ok=True) as client:
            client.volumes.remove(ident)

    def find(self, name: str) -> Container | None:
        with self._client(f"container {name} cannot be inspected", _QUERY_TIMEOUT, absent_ok=True) as client:
            attrs: Any = client.containers.get(name).attrs
            state = attrs["State"]
            return Container(
                name=attrs["Name"].lstrip("/"), running=bool(state.get("Running")),
                exit_code=int(state.get("ExitCode") or 0), started=_seconds(state.get("StartedAt")),
                labels=attrs["Config"].get("Labels") or {},
                volumes=tuple(mount["Name"] for mount in attrs.get("Mounts") or ()
                              if mount["Type"] == "volume" and _UNNAMED.fullmatch(mount["Name"])))
        return None

    def containers(self, platform: str) -> list[Container]:
        """Return all containers of a platform, including stopped ones."""
        with self._client("containers cannot be listed", _QUERY_TIMEOUT) as client:
            # The fields of a list differ from those of a single container.
            return [Container(
                name=attrs["Names"][0].lstrip("/"), running=attrs["State"] == "running",
                exit_code=int(attrs.get("ExitCode") or 0), started=float(attrs["StartedAt"]),
                labels=attrs.get("Labels") or {})
                for container in client.containers.list(all=True, filters={"label": f"{PLATFORM}={platform}"})
                for attrs in [container.attrs]]

    def execute(self, name: str, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
        """Return the exit code of a command in a running container, and its standard output followed by its standard
        error, together 64 KiB at most. The code is 124 if it was killed after ``timeout`` seconds."""
        output, errors = bytearray(), bytearray()
        def take(which: int, piece: bytes) -> None:
            (errors if which == podman_stream.ERR else output).extend(
                piece[:max(0, _OUTPUT - len(output) - len(errors))])
        code = podman_stream.run(self._socket, name, command, timeout, take)
        return code, (output + errors).decode(errors="replace") or (
            f"no answer in {timeout:g} seconds" if code == podman_stream.EXPIRED else "")

    def pipe(self, name: str, command: tuple[str, ...], timeout: float, source: BinaryIO | None,
             target: BinaryIO | None) -> tuple[int, str]:
        """Run a command with a file as its input or output; return the exit code and the end of its standard error."""
        words = bytearray()
        def take(which: int, piece: bytes) -> None:
            if which == podman_stream.OUT and target is not None:
                target.write(piece)
            elif which == podman_stream.ERR:
                words.extend(piece)
                del words[:-_REASON]
        code = podman_stream.run(self._socket, name, command, timeout, take, source)
        return code, words.decode(errors="replace")

    def logs(self, name: str, follow: bool, tail: int) -> podman_stream.PodmanLines:
        """Return the lines of a log, oldest first; with ``follow`` until the container ends."""
        return podman_stream.PodmanLines(self._socket, name, follow, tail)

    def make_network(self, name: str) -> None:
        with self._client(f"network {name} cannot be created") as client:
            if not _exists(client, f"/networks/{name}/exists"):
                client.networks.create(name, dns_enabled=True)

    def remove_network(self, name: str) -> None:
        with self._client(f"network {name} cannot be removed", absent_ok=True) as client:
            client.networks.get(name).remove(force=True)

    @contextlib.contextmanager
    def _client(self, what: str, timeout: float | None = None, absent_ok: bool = False) -> Iterator[PodmanClient]:
        """Connect to the service. Raises RuntimeFault with podman's reason. ``absent_ok``: NotFound ends the block."""
        try:
            with contextlib.closing(PodmanClient(
                    base_url=f"unix://{self._socket}", timeout=timeout or _TIMEOUT)) as client:
                yield client
        except ReportedError:
            raise
        except (podman_errors.PodmanError, OSError) as error:  # Errors of requests and APIError are OSError.
            if not (absent_ok and isinstance(error, podman_errors.NotFound)):
                raise RuntimeFault(f"podman: {what}: {_why(error)}{self._disk_note()}") from error
        except Exception as error:  # The library raises KeyError, TypeError and others for an unexpected response.
            raise RuntimeFault(f"podman: {what}: its response cannot be read "
                               f"({type(error).__name__}: {error})") from error


def _why(error: Exception) -> str:
    """Return podman's reason; if the library only reports that a request failed, the cause of the connection error."""
    said = str(getattr(error, "explanation", None) or error)
    if error.__cause__ is None or not said.endswith("operation failed"):
        return said
    cause: BaseException = error.__cause__
    while isinstance(cause.args[0] if cause.args else None, BaseException):  # requests wraps errors of urllib3.
        cause = cause.args[0]
    return f"{said}: {cause or type(cause).__name__}"


def _status(container: Any) -> str:
    """Return the state of a container, _RUNNING if podman reports that it runs."""
    state = container.attrs["State"]
    return _RUNNING if state.get("Running") else str(state.get("Status", ""))


def _exists(client: PodmanClient, path: str) -> bool:
    """Return True if an object exists. The library returns False for errors of podman, too."""
    answer = client.api.get(path)
    if answer.status_code == requests.codes.not_found:
        return False
    answer.raise_for_status()
    return True


def _propagation(options: tuple[str, ...]) -> dict[str, str]:
    return next(({"propagation": option} for option in options if option in ("rshared", "rslave")), {})


def _seconds(text: str | None) -> float:
    if not text:
        return time.time()
    with contextlib.suppress(ValueError):
        return datetime.datetime.fromisoformat(text).timestamp()
    return 0.0


# --- registries: OCI distribution API, without a login -----------------------------------------------
def is_on_loopback(reference: str) -> bool:
    """Return True if the registry of an image is on this machine. Such a registry is used without TLS."""
    host, slash, _rest = reference.partition("/")
    return bool(slash) and on_loopback(re.sub(r":\d+$", "", host))


def image_size(reference: str) -> int | None:
    """Return the size of the image's compressed layers in bytes, for the architecture of this machine. None if it is
    unknown (short name, mirrors, login, no response): then podman's own request reports the error."""
    try:
        parts = _REFERENCE.fullmatch(_located(reference))
        if parts is None:
            return None
        host, path = parts["host"], parts["path"]
        if host == "docker.io":
            host, path = "registry-1.docker.io", path if "/" in path else f"library/{path}"
        url = f"{'http' if is_on_loopback(reference) else 'https'}://{host}/v2/{path}/manifests"
        headers = {"Accept": _ACCEPT}
        manifest = _manifest(f"{url}/{parts['digest'] or parts['tag'] or 'latest'}", headers)
        if "manifests" in manifest:
            manifest = _manifest(f"{url}/{urllib.parse.quote(_here(manifest['manifests']), safe=':')}", headers)
        return sum(max(0, int(layer["size"])) for layer in manifest["layers"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
            http.client.HTTPException) as error:
        LOG.info("The size of image %s is unknown before it is pulled: %s", reference, error)
        return None


def _located(reference: str) -> str:
    """Return the reference with the location from podman's registries.conf. Raises OSError, ValueError. podman itself
    resolves registries that have mirrors, are blocked or are used without TLS."""
    own, main = os.environ.get("CONTAINERS_REGISTRIES_CONF"), pathlib.Path("/etc/containers/registries.conf")
    files = [*([main] if main.exists() else []), *sorted(main.with_name("registries.conf.d").glob("*.conf"))]
    chosen: dict[str, Any] = {}
    length = -1
    for file in [pathlib.Path(own)] if own else files:  # in ascending order of precedence
        for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("registry", []):
            prefix = str(entry.get("prefix") or entry.get("location") or "")
            wild = prefix.startswith("*.") and reference.partition("/")[0].endswith(prefix[1:])
            if (wild or re.match(rf"{re.escape(prefix)}($|[/:@])", reference)) and len(prefix) > length:
                chosen, length = {**entry, **({"mirror": [prefix]} if wild else {})}, len(prefix)
    if chosen.get("mirror") or chosen.get("blocked") or chosen.get("insecure"):
        raise ValueError("registries.conf has mirrors or no plain location for the image")
    return f"{chosen['location']}{reference[length:]}" if chosen.get("location") else reference


def _here(manifests: list[Any]) -> str:
    """Return the digest of this machine's manifest in an index. Raises ValueError."""
    machine = platform.machine()
    for manifest in manifests:
        described = manifest.get("platform") or {}
        if described.get("os") == "linux" and described.get("architecture") == _MACHINES.get(machine, machine):
            return str(manifest["digest"])
    raise ValueError(f"there is no manifest for {machine}")


def _manifest(url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return a manifest. Adds a token to ``headers`` if the registry requires one. Raises OSError, ValueError."""
    try:
        return _json(url, headers)
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("WWW-Authenticate", "")
        if error.code != 401 or not challenge.startswith("Bearer ") or "Authorization" in headers:
            raise
    fields = dict(_CHALLENGE.findall(challenge))
    realm = fields.pop("realm", "")
    if urllib.parse.urlsplit(realm).scheme != urllib.parse.urlsplit(url).scheme:
        raise ValueError(f"a login at {realm!r} is required")
    answer = _json(f"{realm}?{urllib.parse.urlencode(fields)}", {})
    headers["Authorization"] = f"Bearer {answer.get('token') or answer['access_token']}"
    return _json(url, headers)


def _json(url: str, headers: dict[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (http or https: image_size, _manifest)
    with urllib.request.urlopen(request, timeout=_REGISTRY_TIMEOUT) as answer:  # noqa: S310
        body = answer.read(_MOST + 1)
    document = json.loads(body) if len(body) <= _MOST else None
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object of at most {_MOST} bytes")
    return document
