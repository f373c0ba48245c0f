"""Count the places at which novad may end during a change: the runtime's verbs (before, in the middle, after), writes
of the journal (before, after), and operations on files below its data directory (before each; in the middle of each
copy)."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from nova.novad.deployment.journal import JournalFault
from nova.novad.errors import RuntimeFault

KILL, FAULT = "kill", "fault"
FULL, ALL_FULL = "full", "all full"  # a full disk, without and with the journal
# Audit events of operations on files.
_FILES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink")
_GROWS = ("os.mkdir", "open", "copy")  # refused on a full disk
_READS = {"close", "deployments", "deployment", "unfinished", "components", "backups", "fact", "cleanup_tasks"}
COPY = "NOVA_TEST_COPY"  # environment variable: the action of the tests' cp during a copy


class Points:
    """A counter of places, which are written to ``story``; ``then`` happens at place number ``at`` (None: nowhere).

    Places count during a change and its rollback; with ``from_start`` from the start of novad on.
    """

    def __init__(self, data: pathlib.Path, story: pathlib.Path, at: int | None = None, then: str = KILL,
                 from_start: bool = False) -> None:
        self._data = f"{data}/"
        self._at, self._then, self._from_start = at, then, from_start
        self._story = os.open(story, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        self._relieved = story.with_name("relieved")
        self._relieved.unlink(missing_ok=True)
        self._count = 0
        self._full = False
        self._within = threading.local()

    def watch(self) -> None:
        """Count places from now on in this process."""
        from nova.novad.deployment.deploy import HEALTH_CHECK, Deployer
        from nova.novad.deployment.journal import Journal

        alone = Deployer.alone

        @contextlib.contextmanager
        def watched(deployer: Deployer, what: str) -> Iterator[None]:
            with alone(deployer, what):
                self._within.change = what != HEALTH_CHECK
                try:
                    yield
                finally:
                    self._within.change = False

        Deployer.alone = watched  # type: ignore[method-assign]
        for name in [name for name in vars(Journal) if not name.startswith("_") and name not in _READS]:
            setattr(Journal, name, self._around(name, getattr(Journal, name)))
        sys.addaudithook(self._heard)

    def passed(self, where: str) -> None:
        """Record that a thread has reached this place."""
        if not self._here():
            return
        self._count += 1
        os.write(self._story, f"{where}\n".encode())
        if self._count - 1 != self._at:
            return
        if self._then == KILL:
            if where == "copy middle":
                os.environ[COPY] = KILL  # the copy kills the process
                return
            os.kill(os.getpid(), signal.SIGKILL)
        if self._then == FAULT:
            raise RuntimeFault("podman: the connection broke off")
        self._full = True

    def _here(self) -> bool:
        return self._from_start or getattr(self._within, "change", False)

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def around(*args: Any, **options: Any) -> Any:
            self.passed(f"journal {name} before")
            if self._then == ALL_FULL and self._is_full():
                raise JournalFault("The journal cannot be used: database or disk is full")
            found = method(*args, **options)
            self.passed(f"journal {name} after")
            return found

        return around

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self._here() and any("--reflink" in str(word) for word in args[1]):
            self.passed("copy before")
            self.passed("copy middle")
            self._refuse("copy")
        elif event in _FILES and self._ours(args[0], args[-1] if event in ("os.remove", "os.rmdir") else -1):
            self.passed(f"{event} {os.path.basename(os.fsdecode(args[0]))}")
            self._refuse(event)
        elif event == "open" and isinstance(args[0], str | bytes) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) \
                and self._ours(args[0]):
            self.passed(f"open {os.path.basename(os.fsdecode(args[0]))}")
            self._refuse("open")

    def _ours(self, path: Any, directory: Any = -1) -> bool:
        """Return True for a file below the data directory, including paths relative to an open directory."""
        return self._here() and (directory not in (-1, None) or (
            isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(self._data)))

    def _refuse(self, event: str) -> None:
        if event in _GROWS and self._is_full():
            raise OSError(errno.ENOSPC, "No space left on device")

    def _is_full(self) -> bool:
        return self._full and not self._relieved.exists()
