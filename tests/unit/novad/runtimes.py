"""A fake container runtime for the tests of novad: requested containers exist without being run.

An image is a version of a program that writes to its volumes when it starts, as a database that is upgraded does.
"""

from __future__ import annotations

import hashlib
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.runtime.podman import Container, Image, Wanted


class Killed(BaseException):
    """novad was killed here."""


class FakeRuntime:
    """A fake runtime; ``registry``: reference -> kind of program: "good", "broken" (exits) or "sick" (unhealthy).

    ``before`` is called with (verb, name) before each effect, and may raise.
    """

    def __init__(self, registry: dict[str, str]) -> None:
        self.registry = registry
        self.made: dict[str, Wanted] = {}
        self.running: dict[str, float] = {}
        self.images: dict[str, tuple[str, str]] = {}
        self.networks: set[str] = set()
        self.before: Callable[[str, str], None] = lambda _verb, _name: None
        self.away = False
        self.pushes: dict[str, int] = {}  # number of pushes of another image to a tag
        self.complaint = "the program says why"  # output of a sick program or a failed command
        self.lost: dict[str, tuple[str, str]] = {}  # images that exist in the registry only
        self.data: dict[str, tuple[str, ...]] = {}  # volume paths declared by the image of a reference
        self.said: dict[str, Sequence[str | tuple[int, bytes]]] = {}  # output lines of containers with their stream

    def version(self) -> str:
        return "fake 1"

    def fetch(self, reference: str) -> Image:
        self._effect("fetch", reference)
        if "@" in reference:
            for known, kind in self.registry.items():  # The tag may refer to a newer image.
                if self.pushes.get(known) and reference.endswith(self.resolve(known)):
                    return self._pulled(known, kind)
            for ident, (known, _kind) in {**self.lost, **self.images}.items():
                if reference.endswith(digest(known)):
                    self.images[ident] = {**self.lost, **self.images}[ident]
                    return Image(ident, digest(known))
            raise ImageFault(f"{reference} cannot be fetched")
        if reference not in self.registry:
            raise ImageFault(f"{reference} cannot be fetched: there is no such image")
        return self._pulled(reference, self.registry[reference])

    def _pulled(self, reference: str, kind: str) -> Image:
        push = "#" * self.pushes.get(reference, 0)
        ident = hashlib.sha256((reference + kind + push).encode()).hexdigest()
        self.images[ident] = (reference, kind)
        return Image(ident, self.resolve(reference))

    def resolve(self, reference: str) -> str:
        return digest(reference + "#" * self.pushes.get(reference, 0))

    def has_image(self, ident: str) -> bool:
        return ident in self.images

    def data_paths(self, ident: str) -> tuple[str, ...]:
        self._reach()
        return self.data.get(self.images[ident][0], ())

    def create(self, wanted: Wanted) -> None:
        self._effect("create", wanted.name)
        self.remove(wanted.name)
        self.made[wanted.name] = wanted

    def start(self, name: str) -> None:
        self._effect("start", name)
        if name in self.running:
            return
        wanted = self.made[name]
        reference, kind = self.images[wanted.image]
        for mount in wanted.mounts:
            if mount.source.is_dir():
                with (mount.source / "written").open("a") as file:
                    file.write(f"{reference}\n")
                # (also to the directory of another component, as a conductor writes to its database)
        if kind != "broken":
            self.running[name] = time.time()

    def stop(self, name: str, timeout: int) -> None:
        self._effect("stop", name)
        self.running.pop(name, None)

    def remove(self, name: str) -> None:
        self._effect("remove", name)
        self.running.pop(name, None)
        self.made.pop(name, None)

    def find(self, name: str) -> Container | None:
        self._reach()
        wanted = self.made.get(name)
        return None if wanted is None else Container(
            name, name in self.running, 1, self.running.get(name, 0.0), wanted.labels)

    def containers(self, platform: str) -> list[Container]:
        return [found for name in self.made if (found := self.find(name))]

    def execute(self, name: str, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
        self._reach()
        if name not in self.running:
            raise RuntimeFault(f"{name} does not run")
        reference, kind = self.images[self.made[name].image]
        return (1, self.complaint) if kind == "sick" else (0, f"{reference.rpartition(':')[2]} of the program\n")

    def pipe(self, name: str, command: tuple[str, ...], timeout: float, source: BinaryIO | None,
             target: BinaryIO | None) -> tuple[int, str]:
        """Run the fake commands ``dump`` and ``load`` on the first volume; other commands fail."""
        self._effect("pipe", name)
        written = self.made[name].mounts[0].source / "written"
        if target is not None and command == ("dump",):
            target.write(b"a dump\n" + written.read_bytes())
        elif source is not None and command == ("load",):
            written.write_bytes(source.read().removeprefix(b"a dump\n"))
        else:
            return 3, self.complaint
        return 0, ""

    def logs(self, name: str, follow: bool, tail: int) -> FakeLines:
        self._reach()
        return FakeLines(self.said.get(name, ["a line"])[-tail:], follow)

    def make_network(self, name: str) -> None:
        self.networks.add(name)

    def remove_network(self, name: str) -> None:
        self._effect("remove network", name)
        self.networks.discard(name)

    def _effect(self, verb: str, name: str) -> None:
        self._reach()
        self.before(verb, name)

    def _reach(self) -> None:
        if self.away:
            raise RuntimeFault("podman: no response")


class FakeLines:
    """Return past lines and then, if followed, nothing until the stream is closed."""

    def __init__(self, lines: Sequence[str | tuple[int, bytes]], follow: bool) -> None:
        self._lines, self._follow = lines, follow
        self.closed = threading.Event()

    def batches(self) -> Iterator[list[tuple[int, bytes]]]:
        for line in self._lines:
            yield [line if isinstance(line, tuple) else (1, line.encode())]
        if self._follow:
            self.closed.wait()

    def close(self) -> None:
        self.closed.set()


def digest(reference: str) -> str:
    return f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"


def content(directory: pathlib.Path) -> dict[str, str]:
    """Return all files below the directory."""
    return {str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*"))
            if path.is_file()}
