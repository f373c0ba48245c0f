"""A container runtime in a directory: its containers outlive novad.

    registry.json       reference -> kind of the program: "good", "broken" (ends at once), "sick" (never healthy)
    images/ID           fetched images: their reference
    containers/NAME     the requested properties, and the state
    networks/NAME
    away                a file: the runtime is unavailable while it exists

A program writes its reference to all writable mounts when it starts, like a database that upgrades its files, or a
conductor that upgrades its database.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from nova.novad.errors import ImageFault, RuntimeFault
from nova.novad.runtime.podman import Container, Image, Wanted

# The phase of a verb: "before" its effect, in the "middle", and "after" its effect but before its return.
Passed = Callable[[str], None]
WRITTEN = "written"


class DirectoryRuntime:
    """A replacement of :class:`nova.novad.runtime.podman.Podman` that calls ``passed`` at every possible end."""

    def __init__(self, directory: pathlib.Path, passed: Passed = lambda _where: None) -> None:
        self.directory = directory
        self._passed = passed
        for name in ("images", "containers", "networks"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def version(self) -> str:
        return "directory 1"

    # --- images ------------------------------------------------------------------------------------
    def fetch(self, reference: str) -> Image:
        with self._doing("fetch", reference):
            registry = json.loads((self.directory / "registry.json").read_text())
            if "@" in reference:
                reference = next((known for known in registry if reference.endswith(digest(known))), reference)
            if reference not in registry:
                raise ImageFault(f"{reference} cannot be fetched: the registry does not have it.")
            ident = hashlib.sha256(reference.encode()).hexdigest()
            _write(self.directory / "images" / ident, reference)
            return Image(ident, digest(reference))

    def resolve(self, reference: str) -> str:
        return ""

    def has_image(self, ident: str) -> bool:
        self._reach()
        return (self.directory / "images" / ident).exists()

    def data_paths(self, ident: str) -> tuple[str, ...]:
        self._reach()
        return ()

    # --- containers --------------------------------------------------------------------------------
    def create(self, wanted: Wanted) -> None:
        with self._doing("create", wanted.name) as middle:
            (self.directory / "containers" / wanted.name).unlink(missing_ok=True)
            middle()
            reference = (self.directory / "images" / wanted.image).read_text()
            self._save(wanted.name, {
                "image": wanted.image, "reference": reference, "labels": dict(wanted.labels), "env": dict(wanted.env),
                "mounts": [[str(one.source), one.destination, "ro" in one.options] for one in wanted.mounts],
                "running": False, "started": 0.0})

    def start(self, name: str) -> None:
        with self._doing("start", name) as middle:
            found = self._load(name)
            if found is None:
                raise RuntimeFault(f"there is no container {name}")
            if found["running"]:
                return
            kind = json.loads((self.directory / "registry.json").read_text())[found["reference"]]
            for source, _destination, read_only in found["mounts"]:
                if not os.path.exists(source):
                    raise RuntimeFault(f"container {name} cannot be started: {source} is not there")
                if os.path.isdir(source) and not read_only:
                    with open(os.path.join(source, WRITTEN), "a") as file:
                        file.write(f"{found['reference']}\n")
                    middle()
            self._save(name, {**found, "running": kind != "broken", "started": time.time()})

    def stop(self, name: str, timeout: int) -> None:
        with self._doing("stop", name) as middle:
            found = self._load(name)
            if found is not None and found["running"]:
                middle()
                self._save(name, {**found, "running": False})

    def remove(self, name: str) -> None:
        with self._doing("remove", name) as middle:
            found = self._load(name)
            if found is not None:
                self._save(name, {**found, "running": False})
                middle()
                (self.directory / "containers" / name).unlink()

    def find(self, name: str) -> Container | None:
        self._reach()
        found = self._load(name)
        return None if found is None else Container(
            name=name, running=found["running"], exit_code=1, started=found["started"], labels=found["labels"])

    def containers(self, platform: str) -> list[Container]:
        return [found for name in self.names() if (found := self.find(name))]

    def execute(self, name: str, command: tuple[str, ...], timeout: float) -> tuple[int, str]:
        self._reach()
        found = self._load(name)
        if found is None or not found["running"]:
            raise RuntimeFault(f"{name} does not run")
        kind = json.loads((self.directory / "registry.json").read_text())[found["reference"]]
        return (1, "sick") if kind == "sick" else (0, f"{found['reference'].rpartition(':')[2]} of the program\n")

    def pipe(self, name: str, command: tuple[str, ...], timeout: float, source: BinaryIO | None,
             target: BinaryIO | None) -> tuple[int, str]:
        """Dump the file in the first writable mount to ``target``, or restore it from ``source``."""
        with self._doing("pipe", name) as middle:
            found = self._load(name)
            if found is None or not found["running"]:
                raise RuntimeFault(f"{name} does not run")
            written = pathlib.Path(next(path for path, _where, read_only in found["mounts"] if not read_only)) / WRITTEN
            if target is not None:
                content = written.read_bytes()
                target.write(content[:len(content) // 2])
                target.flush()
                middle()
                target.write(content[len(content) // 2:])
            elif source is not None:
                written.write_bytes(b"half")
                middle()
                written.write_bytes(source.read())
            return 0, ""

    def logs(self, name: str, follow: bool, tail: int) -> Lines:
        self._reach()
        return Lines(follow)

    # --- networks ----------------------------------------------------------------------------------
    def make_network(self, name: str) -> None:
        with self._doing("network", name):
            (self.directory / "networks" / name).touch()

    def remove_network(self, name: str) -> None:
        with self._doing("remove network", name):
            (self.directory / "networks" / name).unlink(missing_ok=True)

    # --- for tests ---------------------------------------------------------------------------------
    def names(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "containers").iterdir() if path.suffix != ".new")

    def all(self) -> dict[str, dict[str, Any]]:
        """Return every container by its name, even if podman is unavailable."""
        return {name: found for name in self.names() if (found := self._load(name))}

    def end(self, name: str) -> None:
        """End the program of a container."""
        found = self._load(name)
        if found is not None:
            self._save(name, {**found, "running": False})

    # --- helpers -----------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _doing(self, verb: str, name: str) -> Iterator[Callable[[], None]]:
        def at(where: str) -> Callable[[], None]:
            def pass_by() -> None:
                self._passed(f"{verb} {name} {where}")
                self._reach()
            return pass_by

        at("before")()
        yield at("middle")
        at("after")()

    def _reach(self) -> None:
        if (self.directory / "away").exists():
            raise RuntimeFault("podman: no response")

    def _load(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.directory / "containers" / name).read_text())
        except FileNotFoundError:
            return None
        return found

    def _save(self, name: str, values: dict[str, Any]) -> None:
        _write(self.directory / "containers" / name, json.dumps(values))


class Lines:
    def __init__(self, follow: bool) -> None:
        self._follow, self._closed = follow, threading.Event()

    def batches(self) -> Iterator[list[tuple[int, bytes]]]:
        yield [(1, b"a line")]
        if self._follow:
            self._closed.wait()

    def close(self) -> None:
        self._closed.set()


def digest(reference: str) -> str:
    return f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"


def _write(path: pathlib.Path, text: str) -> None:
    """Write a file atomically, since several threads read it."""
    fresh = path.with_name(f"{path.name}.{threading.get_ident()}.new")
    fresh.write_text(text)
    fresh.replace(path)
