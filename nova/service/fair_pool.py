"""A thread pool and a semaphore with fair scheduling per project.

Each kind of work has its own threads, and within a kind projects are served round robin. So ten thousand servers of one
project do not delay the single server of another project, and builds do not delay power actions or deletions."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

# Seconds after which an idle thread ends. Few threads are needed most of the time, and each uses memory.
_IDLE = 10.0
# Maximum number of hanging threads of a kind that are replaced; each further one reduces the usable threads.
_MOST_REPLACED = 500
_STALLED_AFTER = 0.05  # seconds after which a thread that holds a slot is assumed to be blocked

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class FairThreadPool:
    """A pool that runs at most ``threads[kind]`` functions of a kind at the same time. Within a kind, projects with
    waiting functions are served round robin, one function at a time. The functions of one project start in the order in
    which they were submitted. So a project waits for at most one function of each other project. Threads are started on
    demand and end after ``idle`` seconds without work. Thread-safe; functions may submit further functions."""

    def __init__(self, threads: Mapping[str, int], name: str = "pool", idle: float = _IDLE) -> None:
        self._name, self._idle = name, idle
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._closed = False
        self._kinds = {kind: _Kind(limit) for kind, limit in threads.items()}

    def submit(self, kind: str, project_id: str | None, function: Callable[P, R], /, *args: P.args,
               **kwargs: P.kwargs) -> concurrent.futures.Future[R]:
        """Schedule ``function`` for the project and return its future. Raises ValueError for an unknown kind,
        RuntimeError after :meth:`shutdown`."""
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
                at.idle.pop().set()  # wake the thread that became idle most recently, so that surplus threads end
        return work.future

    def replace(self, future: concurrent.futures.Future[Any]) -> bool:
        """Start a thread in place of the hanging thread that runs the function of ``future``, perhaps for ever. The
        hanging thread ends when its function returns. Return False if too many threads hang."""
        with self._lock:
            for kind, at in self._kinds.items():
                if future in at.running:
                    if len(at.replaced) >= _MOST_REPLACED:
                        return False
                    at.running.remove(future)
                    at.replaced.add(future)
                    self._end(at)
                    if at.waiting:
                        with contextlib.suppress(RuntimeError):  # no thread can be started: the next submit() retries
                            self._start(kind, at)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False,
                 longest: Mapping[str, float] | None = None) -> None:
        """Refuse further functions; waiting functions still run unless ``cancel_futures`` is set. ``wait``: return when
        all threads have ended. ``longest``: maximum number of seconds to wait for the threads of a kind."""
        began = time.monotonic()
        cancelled: list[_Work] = []
        with self._lock:
            self._closed = True
            for at in self._kinds.values():
                while at.idle:
                    at.idle.pop().set()
                while cancel_futures and at.waiting:
                    cancelled.append(at.take())
        for work in cancelled:
            work.future.cancel()
        with self._lock:
            for kind, at in self._kinds.items() if wait else ():
                limit = (longest or {}).get(kind)
                self._ended.wait_for(at.has_ended, None if limit is None else began + limit - time.monotonic())

    def _start(self, kind: str, at: _Kind) -> None:
        try:
            threading.Thread(target=self._serve, args=(at,), name=f"{self._name}-{kind}", daemon=True).start()
        except RuntimeError:  # the system has no more threads: continue with the existing ones
            if not at.threads:
                raise
            return
        at.threads += 1

    def _serve(self, at: _Kind) -> None:
        """Run functions in this thread until there was no work for ``idle`` seconds."""
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
                    at.running.add(work.future)
            if work is not None:
                work.run()
                with self._lock:
                    if work.future in at.replaced:
                        at.replaced.remove(work.future)
                        return
                    at.running.remove(work.future)
                del work  # free its memory while the thread is idle
            elif not woken.wait(self._idle):
                with self._lock:
                    if woken in at.idle:  # submit() has not woken this thread meanwhile
                        at.idle.remove(woken)
                        self._end(at)
                        return

    def _end(self, at: _Kind) -> None:
        at.threads -= 1
        self._ended.notify_all()


class _Work:
    """A submitted function and its future."""

    __slots__ = ("_function", "future")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except BaseException as error:
            self.future.set_exception(error)


class FairQueue(Generic[T]):
    """A queue that serves projects round robin. Not thread-safe."""

    def __init__(self) -> None:
        self.waiting = 0
        # Projects with waiting items, in the order in which they are served.
        self.projects: collections.OrderedDict[str, collections.deque[T]] = collections.OrderedDict()

    def put(self, project: str, item: T) -> None:
        self.projects.setdefault(project, collections.deque()).append(item)
        self.waiting += 1

    def take(self) -> T:
        """Remove and return the oldest item of the next project, which is then served after all other projects."""
        project, items = next(iter(self.projects.items()))
        item = items.popleft()
        if items:
            self.projects.move_to_end(project)
        else:
            del self.projects[project]
        self.waiting -= 1
        return item


class _Kind(FairQueue[_Work]):
    """The waiting functions and the threads of one kind. Protected by the lock of the pool."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.threads = 0
        self.running: set[concurrent.futures.Future[Any]] = set()
        self.replaced: set[concurrent.futures.Future[Any]] = set()  # futures of hanging threads that were replaced
        self.idle: list[threading.Event] = []

    def has_ended(self) -> bool:
        """Return True if no thread is left, except those that were replaced."""
        return not self.threads


class FairSemaphore:
    """A semaphore with ``slots`` slots that serves waiting projects round robin, like ``FairThreadPool``. A thread that
    holds a slot for longer than ``stalled_after`` seconds is assumed to be blocked, for example by a database lock. Its
    slot is given to a waiting thread, so that blocked threads do not delay others. Thread-safe."""

    def __init__(self, slots: int, stalled_after: float = _STALLED_AFTER) -> None:
        self._stalled_after = stalled_after
        self._lock = threading.Lock()
        self._free = slots
        self._queue: FairQueue[_Entry] = FairQueue()
        self._holders: set[_Entry] = set()

    @contextlib.contextmanager
    def slot(self, project_id: str | None) -> Iterator[None]:
        """Run the block with a slot, waiting for one if none is free."""
        entry = _Entry()
        with self._lock:
            if self._free and not self._queue.waiting:
                self._admit(entry)
            else:
                self._queue.put(project_id or "", entry)
                entry.admitted = threading.Event()
        while entry.admitted is not None and not entry.admitted.wait(self._stalled_after):
            with self._lock:
                self._release_stalled()
        try:
            yield
        finally:
            with self._lock:
                self._release(entry)

    def waiting(self) -> int:
        """Return the number of threads that wait for a slot."""
        with self._lock:
            return self._queue.waiting

    def free(self) -> int:
        """Return the number of free slots."""
        with self._lock:
            return self._free

    def _admit(self, entry: _Entry) -> None:
        self._free -= 1
        entry.since = time.monotonic()
        self._holders.add(entry)
        if entry.admitted is not None:
            entry.admitted.set()

    def _release(self, entry: _Entry) -> None:
        if entry not in self._holders:
            return  # another thread has the slot of this entry already
        self._holders.remove(entry)
        self._free += 1
        if self._queue.waiting:
            self._admit(self._queue.take())

    def _release_stalled(self) -> None:
        before = time.monotonic() - self._stalled_after
        for entry in [entry for entry in self._holders if entry.since <= before]:
            self._release(entry)


class _Entry:
    """A thread that holds or waits for a slot. ``admitted`` is set only for a thread that has to wait."""

    __slots__ = ("admitted", "since")

    def __init__(self) -> None:
        self.admitted: threading.Event | None = None
        self.since = 0.0
