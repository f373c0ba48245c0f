"""A thread pool that works in turns: a class of work has threads of its own, and inside it every project has its turn.

Ten thousand servers of one project do not delay the one server of another, and builds that fill their threads do not
hold up a stop or a delete.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

# Seconds after which a thread that has nothing to do ends: most of the time few are needed, and each costs memory.
_IDLE = 10.0

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Turns:
    """Runs what is submitted, at most ``threads[kind]`` of a kind at the same time.

    Inside a kind the projects that have something waiting take turns, one piece each; what one project submitted
    begins in the order in which it did. So a project waits for one turn of each other project at most, however much
    those have submitted. Threads are made as they are needed and end when they have been idle for ``idle`` seconds.
    Thread-safe; what is run may submit more.
    """

    def __init__(self, threads: Mapping[str, int], name: str = "turns", idle: float = _IDLE) -> None:
        self._name = name
        self._idle = idle
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._closed = False
        self._kinds = {kind: _Kind(limit) for kind, limit in threads.items()}

    def submit(self, kind: str, project_id: str | None, function: Callable[P, R], /, *args: P.args,
               **kwargs: P.kwargs) -> concurrent.futures.Future[R]:
        """Have ``function`` run when it is this project's turn among those of ``kind``.

        Raises ValueError for a kind that has no threads, RuntimeError after :meth:`shutdown`.
        """
        at = self._kinds.get(kind)
        if at is None:
            raise ValueError(f"There are no threads for {kind!r}")
        work = _Work(functools.partial(function, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not at.idle and at.threads < at.limit:
                self._start(kind, at)
            at.put(project_id or "", work)
            if at.idle:
                # The one that was at work last: those that are not needed shall end.
                at.idle.pop().set()
        return work.future

    def waiting(self, kind: str | None = None) -> int:
        """How much waits for a thread, of one kind or of all."""
        with self._lock:
            return sum(at.waiting for at in self._chosen(kind))

    def running(self, kind: str | None = None) -> int:
        """How much is under way, of one kind or of all."""
        with self._lock:
            return sum(at.running for at in self._chosen(kind))

    def longest_wait(self, kind: str | None = None) -> float:
        """For how many seconds the oldest of what waits has been waiting; 0 if nothing does."""
        with self._lock:
            since = [works[0].since for at in self._chosen(kind) for works in at.projects.values()]
        return time.monotonic() - min(since) if since else 0.0

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more. What waits is still run, unless ``cancel_futures``; ``wait`` until all has ended."""
        left: list[_Work] = []
        with self._lock:
            self._closed = True
            for at in self._kinds.values():
                while at.idle:
                    at.idle.pop().set()
                while cancel_futures and at.waiting:
                    left.append(at.take())
        for work in left:
            work.future.cancel()
        with self._lock:
            while wait and any(at.threads for at in self._kinds.values()):
                self._ended.wait()

    def _chosen(self, kind: str | None) -> list[_Kind]:
        return list(self._kinds.values()) if kind is None else [self._kinds[kind]]

    def _start(self, kind: str, at: _Kind) -> None:
        try:
            threading.Thread(target=self._serve, args=(at,), name=f"{self._name}-{kind}", daemon=True).start()
        except RuntimeError:  # the system gives no more threads: those that there are have to do
            if not at.threads:
                raise
            return
        at.threads += 1

    def _serve(self, at: _Kind) -> None:
        """One thread: works until there has been nothing to do for a while."""
        woken = threading.Event()
        while True:
            with self._lock:
                if not at.waiting:
                    if self._closed:
                        self._end(at)
                        return
                    woken.clear()
                    at.idle.append(woken)
                    work = None
                else:
                    work = at.take()
                    at.running += 1
            if work is not None:
                work.run()
                del work  # nothing of it is kept while there is nothing to do
                with self._lock:
                    at.running -= 1
            elif not woken.wait(self._idle):
                with self._lock:
                    if woken in at.idle:  # nobody has woken us since
                        at.idle.remove(woken)
                        self._end(at)
                        return

    def _end(self, at: _Kind) -> None:
        at.threads -= 1
        self._ended.notify_all()


class _Work:
    """A function that waits for its turn."""

    __slots__ = ("_function", "future", "since")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.since = time.monotonic()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except BaseException as error:
            self.future.set_exception(error)


class Line(Generic[T]):
    """What waits, by project. Its owner sees to it that one thread at a time uses it."""

    def __init__(self) -> None:
        self.waiting = 0
        # In the order of their turns; a project that has nothing waiting is not in it.
        self.projects: collections.OrderedDict[str, collections.deque[T]] = collections.OrderedDict()

    def put(self, project: str, work: T) -> None:
        self.projects.setdefault(project, collections.deque()).append(work)
        self.waiting += 1

    def take(self) -> T:
        """The oldest work of the project whose turn it is; its next turn comes after those of all others."""
        project, works = next(iter(self.projects.items()))
        work = works.popleft()
        if works:
            self.projects.move_to_end(project)
        else:
            del self.projects[project]
        self.waiting -= 1
        return work


class _Kind(Line[_Work]):
    """What waits and works of one kind. Only under the lock of the pool."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.threads = 0
        self.running = 0
        self.idle: list[threading.Event] = []
