"""podman, by its REST service and the official client library."""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import requests
from podman import PodmanClient
from podman import errors as podman_errors

from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.runtime import images, podman_stream
from nova.novad.runtime.base import CONFINED, PLATFORM, Container, Image, Wanted

_TIMEOUT = 60.0  # Timeout in seconds of a request that changes something.
_QUERY_TIMEOUT = 20.0  # timeout of a query, shorter than that of the client
_REASON = 400  # characters of the end of podman's error message
_OUTPUT = 1 << 16  # Maximum number of bytes kept of a command's output.


class Podman:
    """The runtime podman, by its ``socket``. ``image_limit``: maximum compressed bytes of an image (0: unlimited)."""

    def __init__(self, socket: str, image_limit: int = 0) -> None:
        self._socket = socket
        self._image_limit = image_limit
        self._storage: pathlib.Path | None = None  # Image storage of the service; known after the first query.
        self._url = f"unix://{socket}"

    def version(self) -> str:
        with self._client(_QUERY_TIMEOUT) as client, self._faults("it does not answer"):
            version: Any = client.version()  # type: ignore[no-untyped-call]
            return f"podman {version['Version']}"

    # --- images ------------------------------------------------------------------------------------
    def fetch(self, reference: str) -> Image:
        if self._storage is None:
            self._storage = images.graph_root(self._socket)
        ident = images.pull(self._socket, reference, self._storage, self._image_limit)
        with self._client(_QUERY_TIMEOUT) as client, self._faults(f"{reference} cannot be fetched"):
            image: Any = client.images.get(ident)
            return Image(image.id.removeprefix("sha256:"), str(image.attrs.get("Digest") or ""))

    def resolve(self, reference: str) -> str:
        return images.local_digest(reference)

    def has_image(self, ident: str) -> bool:
        with self._client(_QUERY_TIMEOUT) as client, self._faults(f"image {ident} cannot be looked for"):
            return bool(client.images.exists(ident))

    def data_paths(self, ident: str) -> tuple[str, ...]:
        with self._client(_QUERY_TIMEOUT) as client, self._faults(f"image {ident} cannot be inspected"):
            config: Any = client.images.get(ident).attrs.get("Config")
        volumes = config.get("Volumes") or {} if isinstance(config, dict) else None
        if not isinstance(volumes, dict):
            raise ImageFault(f"The configuration of image {ident} cannot be read.")
        return tuple(sorted(map(str, volumes)))

    # --- containers --------------------------------------------------------------------------------
    def create(self, wanted: Wanted) -> None:
        self.remove(wanted.name)
        options: dict[str, Any] = {
            "name": wanted.name, "environment": dict(wanted.env), "labels": dict(wanted.labels), "init": True,
            "mounts": [{"type": "bind", "source": str(mount.source), "target": mount.destination,
                        "read_only": "ro" in mount.options,
                        **({"propagation": propagation} if (propagation := _propagation(mount.options)) else {})}
                       for mount in wanted.mounts if not set(CONFINED) <= set(mount.options)],
            # The library passes these options on with ``volumes`` alone, by source.
            "volumes": {str(mount.source): {"bind": mount.destination, "extended_mode": ["rbind", *mount.options]}
                        for mount in wanted.mounts if set(CONFINED) <= set(mount.options)},
            "privileged": wanted.privileged, "cap_add": list(wanted.capabilities), "devices": list(wanted.devices),
            "stop_timeout": wanted.stop_timeout, "healthcheck": None,
            # Images with declared volumes and no mount are refused earlier; podman creates no anonymous volumes.
            "image_volume_mode": "ignore"}
        if wanted.user:
            options["user"] = wanted.user
        options["network_mode"] = "bridge" if wanted.networks or wanted.ports else "host"
        if wanted.networks:
            options["networks"] = {name: {"aliases": list(wanted.aliases)} for name in wanted.networks}
        if wanted.ports:
            published: dict[str, list[tuple[str, int]]] = {}
            options["ports"] = published
            for port in wanted.ports:
                published.setdefault(f"{port.container}/{port.protocol}", []).append((port.address, port.node))
        with self._client() as client, self._faults(f"container {wanted.name} cannot be made"):
            client.containers.create(wanted.image, list(wanted.command) or None, **options)

    def start(self, name: str) -> None:
        with self._client() as client, self._faults(f"container {name} cannot be started"):
            container = client.containers.get(name)
            if not container.attrs["State"].get("Running"):  # The library fails at "not modified".
                container.start()

    def stop(self, name: str, timeout: int) -> None:
        with self._client(_TIMEOUT + timeout) as client, self._faults(f"container {name} cannot be stopped"):
            with contextlib.suppress(podman_errors.NotFound):
                container = client.containers.get(name)
                if container.attrs["State"].get("Running"):
                    container.stop(timeout=timeout)

    def remove(self, name: str) -> None:
        with self._client() as client, self._faults(f"container {name} cannot be removed"):
            with contextlib.suppress(podman_errors.NotFound):
                client.containers.get(name).remove(force=True, v=True)

    def find(self, name: str) -> Container | None:
        with self._client(_QUERY_TIMEOUT) as client, self._faults(f"container {name} cannot be looked at"):
            try:
                return _container(client.containers.get(name).attrs)
            except podman_errors.NotFound:
                return None

    def containers(self, platform: str) -> list[Container]:
        with self._client(_QUERY_TIMEOUT) as client, self._faults("containers cannot be listed"):
            return [_container(container.attrs) for container in client.containers.list(
                all=True, filters={"label": f"{PLATFORM}={platform}"}, sparse=False)]

    def execute(self, name: str, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
        output, errors = bytearray(), bytearray()

        def take(which: int, piece: bytes) -> None:
            (errors if which == podman_stream.ERR else output).extend(
                piece[:max(0, _OUTPUT - len(output) - len(errors))])

        code = podman_stream.run(self._socket, name, command, timeout, take)
        return code, (output + errors).decode(errors="replace") or (
            f"no answer in {timeout:g} seconds" if code == podman_stream.EXPIRED else "")

    def pipe(self, name: str, command: tuple[str, ...], timeout: float, source: BinaryIO | None,
             target: BinaryIO | None) -> tuple[int, str]:
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
        return podman_stream.PodmanLines(self._socket, name, follow, tail)

    # --- networks ----------------------------------------------------------------------------------
    def make_network(self, name: str) -> None:
        with self._client() as client, self._faults(f"network {name} cannot be made"):
            if not client.networks.exists(name):
                client.networks.create(name, dns_enabled=True)

    def remove_network(self, name: str) -> None:
        with self._client() as client, self._faults(f"network {name} cannot be removed"):
            with contextlib.suppress(podman_errors.NotFound):
                client.networks.get(name).remove(force=True)

    # --- the service -------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        """Raise RuntimeFault for errors, with podman's reason, and a note if the disk is full."""
        try:
            yield
        except (podman_errors.APIError, podman_errors.PodmanError, podman_errors.NotFound,
                requests.exceptions.RequestException, OSError) as error:
            note = images.disk_note(self._storage)
            raise RuntimeFault(f"podman: {what}: {_why(error)}{note}") from error

    @contextlib.contextmanager
    def _client(self, timeout: float | None = _TIMEOUT) -> Iterator[PodmanClient]:
        client = PodmanClient(base_url=self._url, timeout=timeout)
        try:
            yield client
        finally:
            client.close()  # type: ignore[no-untyped-call]


def _why(error: Exception) -> str:
    """Return podman's reason; if the library only reports that a request failed, the cause of the connection error."""
    said = str(getattr(error, "explanation", None) or error)
    if error.__cause__ is None or not said.endswith("operation failed"):
        return said
    cause: BaseException = error.__cause__
    while isinstance(cause.args[0] if cause.args else None, BaseException):  # requests wraps errors of urllib3.
        cause = cause.args[0]
    return f"{said}: {cause or type(cause).__name__}"


def _propagation(options: tuple[str, ...]) -> str:
    return next((option for option in options if option in ("rshared", "rslave")), "")


def _container(attrs: dict[str, Any]) -> Container:
    state = attrs["State"]
    return Container(name=attrs["Name"].lstrip("/"), image=attrs["Image"].removeprefix("sha256:"),
                     running=bool(state.get("Running")), exit_code=int(state.get("ExitCode") or 0),
                     started=_seconds(state.get("StartedAt")), labels=attrs["Config"].get("Labels") or {})


def _seconds(text: str | None) -> float:
    if not text:
        return time.time()
    # Python does not parse nanoseconds.
    head, dot, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if dot else ""
    try:
        return datetime.datetime.fromisoformat(head + (zone or "")).timestamp()
    except ValueError:
        return 0.0
