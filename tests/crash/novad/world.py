"""A node with a real novad, which tests kill, and a directory as its container runtime."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from nova.novad.client import Client, was_lost
from tests.crash.novad.points import COPY, KILL
from tests.crash.novad.runtime import DirectoryRuntime
from tests.integration import forkserver
from tests.integration.novad.novad_node import free_port

SECRET = "what callers know"
BOUND = 30.0  # seconds after a restart until the node is settled
PLATFORM = """
name = "suite"
networks = ["inner"]
[secrets.db]
length = 12
[components.db]
image = "registry/db"
version = "1"
networks = ["inner"]
files = {{"/etc/db.conf" = "root = ${{secret:db}}"}}
health = {{command = ["ok"], interval = 0.2, timeout = 1, start = 0.3}}
volumes = [{{name = "rows", destination = "/rows"}}, {{name = "cache", destination = "/cache", backup = false}}]
version_command = ["version"]
dump = ["dump"]
restore = ["load"]
[components.conductor]
image = "registry/conductor"
version = "1"
depends = ["db"]
data_of = ["db"]
binds = [{{source = "{rows}", destination = "/rows"}}]
env = {{URL = "db://user:${{secret:db}}@db"}}
files = {{"/etc/conductor.conf" = "password = ${{secret:db}}"}}
health = {{command = ["ok"], interval = 0.2, timeout = 1, start = 0.3}}
"""
# A component that a later platform file lacks.
API = """
[components.api]
image = "registry/api"
version = "1"
depends = ["conductor"]
volumes = [{name = "state", destination = "/state"}]
files = {"/etc/api.conf" = "an option"}
health = {command = ["ok"], interval = 0.2, timeout = 1, start = 0.3}
"""
REGISTRY = {f"registry/{name}:{version}": "good" for name in ("db", "conductor", "api") for version in "1234"} | {
    "registry/conductor:sick": "sick", "registry/api:bad": "broken"}
# Modules that novad and the program of the test import.
_MODULES = ("nova.cmd.novad", "nova.novad.server", "nova.novad.runtime.podman", "nova.novad.runtime.service",
            "tests.crash.novad.points", "tests.crash.novad.runtime")
# cp that may kill novad during a copy and continue for a moment.
_CP = f"""#!/bin/sh
if [ "${COPY}" = {KILL} ]; then
    unset {COPY}
    for last in "$@"; do :; done
    mkdir -p "$last" && echo half > "$last/half"
    kill -9 $PPID
    sleep 0.2
fi
exec /bin/cp "$@"
"""


@dataclasses.dataclass
class Answer:
    """The response to a change: no ``error`` after success; ``gone``: novad ended before its response."""

    error: str = ""
    gone: bool = False


class Gone(Exception):
    """novad has ended."""


class World:
    """A node: ``start()`` and ``kill()`` novad, request changes with ``ask(...)``, wait with ``settle()``."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.keep = 2  # backups
        self.runtime = DirectoryRuntime(directory / "runtime")
        self._novad: forkserver.Forked | None = None
        self._address = ""
        (directory / "runtime" / "registry.json").write_text(json.dumps(REGISTRY))
        (directory / "bin").mkdir()
        (directory / "bin" / "cp").write_text(_CP)
        (directory / "bin" / "cp").chmod(0o755)
        (directory / "secret").write_text(SECRET)
        self.platform()

    def platform(self, api: bool = True) -> None:
        """Write the platform file, with or without the api; novad reads it when it starts."""
        (self.directory / "platform.toml").write_text(
            PLATFORM.format(rows=self.data / "volumes/db/rows") + (API if api else ""))

    # --- novad -------------------------------------------------------------------------------------
    def start(self, at: int | None = None, then: str = KILL, from_start: bool = False) -> None:
        """Start novad, which may already be dead when this returns if it is killed ``at`` a place."""
        self._address = f"tcp://127.0.0.1:{free_port()}"
        (self.directory / "novad.toml").write_text(
            f'listen = "{self._address}"\ndata_dir = "{self.data}"\nplatform = "{self.directory}/platform.toml"\n'
            f'secret_file = "{self.directory}/secret"\npodman_socket = "none"\ninterval = 0.05\n'
            f'keep_backups = {self.keep}\nkeep_days = 0\n')
        order = json.dumps({"directory": str(self.directory), "at": at, "then": then, "from_start": from_start})
        command = [sys.executable, "-m", "tests.crash.novad.program", order]
        with (self.directory / "novad.log").open("ab") as log:
            self._novad = forkserver.start(command, {}, log, _MODULES)

    def alive(self) -> bool:
        return self._novad is not None and self._novad.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        if self._novad is not None:
            self._novad.send_signal(signal.SIGKILL)
            self._novad.wait(20)
            self._novad = None

    def strike(self) -> None:
        """Send SIGKILL from another thread than that of the request."""
        if self._novad is not None:
            with contextlib.suppress(OSError):  # the other thread has just closed the descriptor
                self._novad.send_signal(signal.SIGKILL)

    def ask(self, what: str, *words: str) -> Answer:
        """Request a change from novad, as the command-line client does."""
        try:
            with self.client() as client:
                for _progress in CHANGES[what](client, words):
                    pass
        except Gone:
            return Answer("gone", gone=True)
        except grpc.RpcError as error:
            if was_lost(error) and not self._stays():
                return Answer("gone", gone=True)
            return Answer(error.details() or str(error.code()))
        return Answer()

    def _stays(self) -> bool:
        """Return True if the process still runs after a moment; a connection ends shortly before its process."""
        if self._novad is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._novad.wait(5.0)
        return self.alive()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Return a client of a listening novad. Raises Gone."""
        end = time.monotonic() + BOUND
        port = int(self._address.rpartition(":")[2])
        while True:
            with contextlib.closing(socket.socket()) as found:
                if found.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < end, f"novad does not start\n{self.log()}"
            if not self.alive():
                raise Gone
            time.sleep(0.01)
        client = Client(self._address, SECRET, {})
        try:
            yield client
        finally:
            client.close()

    def log(self) -> str:
        path = self.directory / "novad.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""

    def story(self) -> list[str]:
        """Return the places that the last novad passed."""
        return (self.directory / "story").read_text().splitlines()

    # --- the state ---------------------------------------------------------------------------------
    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of the journal, read beside novad."""
        if not (self.data / "journal.sqlite").exists():
            return []
        with contextlib.closing(sqlite3.connect(self.data / "journal.sqlite", timeout=10)) as connection:
            return list(connection.execute(statement, values))

    def components(self) -> dict[str, dict[str, Any]]:
        return {name: json.loads(text) for name, text in self.rows("select name, deployed from components")}

    def settled(self) -> bool:
        """Return True if no change or cleanup is pending, and all wanted components run."""
        try:
            if self.rows("select 1 from deployments where state in ('running', 'stuck')"):
                return False
            if self.rows("select 1 from owed"):
                return False
            containers = self.runtime.all()
            return all(containers.get(f"suite-{name}", {}).get("running") for name in self.components())
        except sqlite3.OperationalError:
            return False  # the journal does not exist yet

    def settle(self) -> None:
        end = time.monotonic() + BOUND
        while not self.settled():
            assert self.alive(), f"novad has ended\n{self.log()}"
            assert time.monotonic() < end, f"the node does not settle\n{self.log()}"
            time.sleep(0.01)

    def settle_or_die(self) -> None:
        """Wait until the node is settled, or novad is killed."""
        end = time.monotonic() + BOUND
        while self.alive() and not self.settled():
            assert time.monotonic() < end, f"the node does not settle\n{self.log()}"
            time.sleep(0.01)

    # --- copies ------------------------------------------------------------------------------------
    def save(self, name: str) -> None:
        """Save the whole state while novad does not run."""
        place = self.directory / "saved" / name
        place.mkdir(parents=True)
        for part in ("data", "runtime", "platform.toml"):
            subprocess.run(["cp", "-a", self.directory / part, place], check=True)

    def load(self, name: str) -> None:
        self.kill()
        (self.directory / "novad.log").unlink(missing_ok=True)
        for part in ("data", "runtime", "platform.toml"):
            target = self.directory / part
            if target.is_dir():
                shutil.rmtree(target)
            subprocess.run(["cp", "-a", self.directory / "saved" / name / part, self.directory], check=True)


def _progress(method: str, service: str = "platform") -> Callable[[Client, Any], Iterator[Any]]:
    return lambda client, request: client.follow(getattr(getattr(client, service), method), request)


def _deploy(client: Client, words: Sequence[str]) -> Iterator[Any]:
    from nova.novad.api import novad_pb2 as pb

    return client.follow(client.platform.Deploy, pb.DeployRequest(components=[
        pb.ComponentVersion(component=name, version=version)
        for name, _sign, version in (word.partition("=") for word in words)]))


def _changes() -> dict[str, Callable[[Client, Sequence[str]], Iterator[Any]]]:
    from nova.novad.api import novad_pb2 as pb

    return {
        "deploy": _deploy,
        "rollback": lambda client, words: client.follow(client.platform.Rollback, pb.RollbackRequest(
            components=words[1:], to=int(words[0]))),
        "remove": lambda client, words: client.follow(client.platform.Remove, pb.RemoveRequest(
            volumes="volumes" in words, secrets="secrets" in words)),
        "restart": lambda client, words: client.follow(client.platform.Restart, pb.RestartRequest(components=words)),
        "rotate": lambda client, words: client.follow(client.secrets.Rotate, pb.RotateRequest(names=words)),
        "backup": lambda client, words: client.follow(client.backups.Create, pb.BackupsRequest()),
        "restore": lambda client, words: client.follow(client.backups.Restore, pb.RestoreRequest(id=int(words[0]))),
        "prune": lambda client, words: iter([client.ask(client.backups.Prune, pb.Empty())]),
    }


CHANGES = _changes()
