"""The interface of container runtimes. Methods are idempotent and raise RuntimeFault, with a message for the user."""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Protocol

from nova.novad.platform import Component

# Labels that mark the containers of novad.
PLATFORM, COMPONENT, DEPLOYMENT = "io.nova.platform", "io.nova.component", "io.nova.deployment"
# Mount options of all directories of novad: set-uid bits and devices have no effect there.
CONFINED = ("nosuid", "nodev")


@dataclasses.dataclass(frozen=True)
class Image:
    """An image. ``ident``: its id, which identifies its content; ``digest``: its digest in the registry."""

    ident: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Container:
    """A container. ``started``: seconds since 1970. ``volumes``: ids of its volumes without a name."""

    name: str
    image: str
    running: bool
    exit_code: int = 0
    started: float = 0.0
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    volumes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Mount:
    """A file or directory of the node, mounted at ``destination``. With CONFINED in ``options`` it belongs to novad."""

    source: pathlib.Path
    destination: str
    options: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A container of ``component`` to create. Without networks it uses the network of the node."""

    name: str
    image: str
    labels: Mapping[str, str]
    component: Component
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    networks: tuple[str, ...] = ()


class Lines(Protocol):
    """Lines of a log. ``close`` ends the log and may be called from another thread."""

    def batches(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield batches of lines that arrived together, each with the number of its output stream."""

    def close(self) -> None: ...


class Runtime(Protocol):
    def version(self) -> str:
        """Return the name and version of the runtime for display."""

    def fetch(self, reference: str) -> Image:
        """Pull an image by its name in a registry. Raises ImageFault."""

    def resolve(self, reference: str) -> str:
        """Return the digest of a tag in a registry on this machine; "" for others and without a response."""

    def has_image(self, ident: str) -> bool: ...

    def data_paths(self, ident: str) -> tuple[str, ...]:
        """Return the paths that a fetched image declares as volumes (``VOLUME``). Raises ImageFault."""

    def create(self, wanted: Wanted) -> None:
        """Create a container in place of an existing one with this name, without starting it."""

    def start(self, name: str) -> None: ...

    def stop(self, name: str, timeout: int) -> None:
        """Send SIGTERM, and SIGKILL after ``timeout`` seconds. A missing container counts as stopped."""

    def remove(self, name: str) -> None:
        """Remove a container with all its processes. Volumes that the runtime created for it stay."""

    def remove_volume(self, ident: str) -> None: ...

    def find(self, name: str) -> Container | None: ...

    def containers(self, platform: str) -> list[Container]:
        """Return all containers of a platform, including stopped ones."""

    def execute(self, name: str, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
        """Return the exit code of a command in a running container, and its standard output followed by its standard
        error, together 64 KiB at most. The code is 124 if it was killed after ``timeout`` seconds."""

    def pipe(self, name: str, command: tuple[str, ...], timeout: float, source: BinaryIO | None,
             target: BinaryIO | None) -> tuple[int, str]:
        """Run a command with a file as its input or output; return the exit code and the end of its standard error."""

    def logs(self, name: str, follow: bool, tail: int) -> Lines:
        """Return the lines of a log, oldest first; with ``follow`` until the container ends."""

    def make_network(self, name: str) -> None: ...

    def remove_network(self, name: str) -> None: ...
