"""The interface of container runtimes for novad. All methods are idempotent.

They raise RuntimeFault, with a message for the user, when the runtime is away or refuses.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Protocol

from nova.novad.platform import PublishedPort

# Labels that mark the containers of novad.
PLATFORM, COMPONENT, DEPLOYMENT = "io.nova.platform", "io.nova.component", "io.nova.deployment"
# Mount options of everything that novad keeps itself: set-uid bits and devices in there have no effect.
CONFINED = ("nosuid", "nodev")


@dataclasses.dataclass(frozen=True)
class Image:
    """``ident``: its id, which is its content; ``digest``: what the registry calls it."""

    ident: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Container:
    """``started``: seconds since 1970."""

    name: str
    image: str
    running: bool
    exit_code: int = 0
    started: float = 0.0
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Mount:
    """A directory or file of the node at ``destination``. Mounts with CONFINED in ``options`` have sources of their
    own."""

    source: pathlib.Path
    destination: str
    options: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A container to make. Without networks it has the node's."""

    name: str
    image: str
    labels: Mapping[str, str]
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    ports: tuple[PublishedPort, ...] = ()
    networks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    user: str = ""
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    stop_timeout: int = 30


class Lines(Protocol):
    """Lines of a log. ``close`` may come from another thread, and ends it."""

    def batches(self) -> Iterator[list[tuple[int, bytes]]]:
        """Return the lines, those together that came together, each with the number of its output stream."""

    def close(self) -> None: ...


class Runtime(Protocol):
    def version(self) -> str:
        """Return the name and version of the runtime, for people."""

    def fetch(self, reference: str) -> Image:
        """The image that a registry has by this name. Raises ImageFault."""

    def resolve(self, reference: str) -> str:
        """Return the digest that a registry on this machine has for a tag now, without fetching the image; "" if it
        does not answer, or is elsewhere."""

    def has_image(self, ident: str) -> bool: ...

    def data_paths(self, ident: str) -> tuple[str, ...]:
        """Return the paths that a fetched image declares as volumes (``VOLUME``). Raises ImageFault."""

    def create(self, wanted: Wanted) -> None:
        """Make it in place of any other of its name; it is not started."""

    def start(self, name: str) -> None: ...

    def stop(self, name: str, timeout: int) -> None:
        """SIGTERM, and SIGKILL after ``timeout`` seconds; one that is not there has stopped."""

    def remove(self, name: str) -> None:
        """Remove a container with all its processes."""

    def find(self, name: str) -> Container | None: ...

    def containers(self, platform: str) -> list[Container]:
        """Return all containers of a platform, including stopped ones."""

    def execute(self, name: str, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
        """Return the exit code of a command in a running container, and its standard output followed by its standard
        error, together 64 KiB at most. The code is 124 if it was killed after ``timeout`` seconds."""

    def pipe(self, name: str, command: tuple[str, ...], timeout: float, source: BinaryIO | None,
             target: BinaryIO | None) -> tuple[int, str]:
        """The same, with a file as its input, or its output; the text is the last of what it says on standard error."""

    def logs(self, name: str, follow: bool, tail: int) -> Lines:
        """Lines, the oldest first; ``follow`` goes on until the container ends."""

    def make_network(self, name: str) -> None: ...

    def remove_network(self, name: str) -> None: ...
