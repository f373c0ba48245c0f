"""podman, by its REST service and the client library of its authors."""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import requests
from podman import PodmanClient
from podman import errors as podman_errors

from nova.novad.addresses import on_loopback
from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.runtime import podman_stream
from nova.novad.runtime.base import PLATFORM, Container, Image, Wanted
from nova.novad.runtime.podman_logs import PodmanLines

_TIMEOUT = 60.0  # seconds of a request that does something
_LOOK = 20.0  # of one that only looks: less than a caller waits
_PULL_TIMEOUT = 1800.0
_REASON = 400  # characters of the end of what podman says of a failure
_OUTPUT = 1 << 16  # bytes of a command's output that are kept


class Podman:
    """Implements :class:`nova.novad.runtime.base.Runtime`; ``socket``: the path of the service's socket."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._url = f"unix://{socket}"

    def version(self) -> str:
        with self._client(_LOOK) as client, _told("it does not answer"):
            found: Any = client.version()  # type: ignore[no-untyped-call]
            return f"podman {found['Version']}"

    # --- images ------------------------------------------------------------------------------------
    def fetch(self, reference: str) -> Image:
        with self._client(_PULL_TIMEOUT) as client, _told(f"{reference} cannot be fetched"):
            try:
                # As a stream: otherwise the library keeps to itself what went wrong.
                reports: Any = client.images.pull(reference, tls_verify=not _on_loopback(reference), stream=True,
                                                  decode=True)
                ident = ""
                for report in reports:
                    if report.get("error"):
                        raise ImageFault(f"{reference} cannot be fetched: {str(report['error'])[-_REASON:]}")
                    ident = report.get("id") or ident
                image: Any = client.images.get(ident) if ident else None
            except (podman_errors.APIError, podman_errors.ImageNotFound, ValueError, KeyError) as error:
                raise ImageFault(f"{reference} cannot be fetched: {_why(error)}") from None
            if image is None or not image.id:
                raise ImageFault(f"{reference} cannot be fetched: podman does not say why.")
            return Image(image.id.removeprefix("sha256:"), str(image.attrs.get("Digest") or ""))

    def has_image(self, ident: str) -> bool:
        with self._client(_LOOK) as client, _told(f"image {ident} cannot be looked for"):
            return bool(client.images.exists(ident))

    def data_paths(self, ident: str) -> tuple[str, ...]:
        with self._client(_LOOK) as client, _told(f"image {ident} cannot be inspected"):
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
                        **({"propagation": each} if (each := _propagation(mount.options)) else {})}
                       for mount in wanted.mounts],
            "privileged": wanted.privileged, "cap_add": list(wanted.capabilities), "devices": list(wanted.devices),
            "stop_timeout": wanted.stop_timeout, "healthcheck": None,
            # Declared volumes without a mount are refused before; podman makes no anonymous volumes.
            "image_volume_mode": "ignore"}
        if wanted.user:
            options["user"] = wanted.user
        if wanted.networks:
            options["networks"] = {name: {"aliases": list(wanted.aliases)} for name in wanted.networks}
            options["network_mode"] = "bridge"
        elif wanted.ports:
            options["network_mode"] = "bridge"
        else:
            options["network_mode"] = "host"
        if wanted.ports:
            published: dict[str, list[tuple[str, int]]] = {}
            options["ports"] = published
            for port in wanted.ports:
                published.setdefault(f"{port.container}/{port.protocol}", []).append((port.address, port.node))
        with self._client() as client, _told(f"container {wanted.name} cannot be made"):
            client.containers.create(wanted.image, list(wanted.command) or None, **options)

    def start(self, name: str) -> None:
        with self._client() as client, _told(f"container {name} cannot be started"):
            container = client.containers.get(name)
            if not container.attrs["State"].get("Running"):  # the library fails at "not modified"
                container.start()

    def stop(self, name: str, timeout: int) -> None:
        with self._client(_TIMEOUT + timeout) as client, _told(f"container {name} cannot be stopped"):
            with contextlib.suppress(podman_errors.NotFound):
                container = client.containers.get(name)
                if container.attrs["State"].get("Running"):
                    container.stop(timeout=timeout)

    def remove(self, name: str) -> None:
        with self._client() as client, _told(f"container {name} cannot be removed"):
            with contextlib.suppress(podman_errors.NotFound):
                client.containers.get(name).remove(force=True, v=True)

    def find(self, name: str) -> Container | None:
        with self._client(_LOOK) as client, _told(f"container {name} cannot be looked at"):
            try:
                return _container(client.containers.get(name).attrs)
            except podman_errors.NotFound:
                return None

    def containers(self, platform: str) -> list[Container]:
        with self._client(_LOOK) as client, _told("containers cannot be listed"):
            return [_container(found.attrs) for found in client.containers.list(
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

    def logs(self, name: str, follow: bool, tail: int) -> PodmanLines:
        return PodmanLines(self._socket, name, follow, tail)

    # --- networks ----------------------------------------------------------------------------------
    def make_network(self, name: str) -> None:
        with self._client() as client, _told(f"network {name} cannot be made"):
            if not client.networks.exists(name):
                client.networks.create(name, dns_enabled=True)

    def remove_network(self, name: str) -> None:
        with self._client() as client, _told(f"network {name} cannot be removed"):
            with contextlib.suppress(podman_errors.NotFound):
                client.networks.get(name).remove(force=True)

    # --- the service -------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _client(self, timeout: float | None = _TIMEOUT) -> Iterator[PodmanClient]:
        client = PodmanClient(base_url=self._url, timeout=timeout)
        try:
            yield client
        finally:
            client.close()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (podman_errors.APIError, podman_errors.PodmanError, podman_errors.NotFound,
            requests.exceptions.RequestException, OSError) as error:
        raise RuntimeFault(f"podman: {what}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error)


def _propagation(options: tuple[str, ...]) -> str:
    return next((each for each in options if each in ("rshared", "rslave")), "")


def _on_loopback(reference: str) -> bool:
    """A registry on this machine speaks no TLS."""
    host, slash, _rest = reference.partition("/")
    return bool(slash) and on_loopback(re.sub(r":\d+$", "", host))


def _container(attrs: dict[str, Any]) -> Container:
    state = attrs["State"]
    return Container(name=attrs["Name"].lstrip("/"), image=attrs["Image"].removeprefix("sha256:"),
                     running=bool(state.get("Running")), exit_code=int(state.get("ExitCode") or 0),
                     started=_seconds(state.get("StartedAt")), labels=attrs["Config"].get("Labels") or {})


def _seconds(text: str | None) -> float:
    if not text:
        return time.time()
    # nanoseconds are more than Python reads
    head, dot, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if dot else ""
    try:
        return datetime.datetime.fromisoformat(head + (zone or "")).timestamp()
    except ValueError:
        return 0.0
