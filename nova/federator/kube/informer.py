"""A cache of a collection that follows its watch: list once, resume after interruptions, list again only if needed."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from nova.common.errors import ReportedError
from nova.federator.kube.client import Api, ApiError, Object

LOG = logging.getLogger(__name__)
T = TypeVar("T")
# The key of an object, its new state or None if it was deleted, and its previous state or None if it is new.
Handler = Callable[[str, T | None, T | None], None]
_SILENT = 80.0  # seconds; if a retried watch breaks later than this without an event, the collection is listed again
_LONGEST_DELAY = 30.0  # seconds between two attempts to list or watch
_KINDS_INTERVAL = 30.0  # seconds between two requests for custom resources that are not installed
_SHORTEST_WATCH = 1.0  # seconds; if a server ends a watch sooner, the next watch begins after this delay


def key_of(obj: Object) -> str:
    """Return namespace/name of an object, or its name if it has no namespace."""
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


class Informer(Generic[T]):
    """The objects of a collection by key, kept current by :meth:`run`.

    ``decode``: returns the stored form of a raw object. An object is treated as absent if ``decode`` returns None, or
    raises ValueError or Invalid, which is logged. ``handler``: called for each change, also for differences between
    two lists. Stored objects must not be changed.
    """

    def __init__(self, api: Api, path: str, decode: Callable[[Object], T | None], handler: Handler[T] | None = None,
                 **query: str) -> None:
        self.api, self.path, self.decode, self.handler, self.query = api, path, decode, handler, query
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()  # set after the first complete list
        self.version = ""  # resource version up to which the cache is current
        self.lists = 0
        self.error: ApiError | None = None  # of the last attempt to list or watch
        self._reachable = asyncio.Event()
        self._relist = False
        self._versions: dict[str, str] = {}  # key -> resource version

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        failures = 0
        while True:
            started = time.monotonic()
            try:
                if self._relist:
                    self._relist, self.version = False, ""
                if not self.version:
                    await self.refresh()
                self.error = None
                async for event in self.api.watch(self.path, self.version, **self.query):
                    failures = 0
                    version = str(event.object["metadata"]["resourceVersion"])
                    if later(self.version, version):
                        raise ApiError("the server has older data than before: it was restored from a backup", 410)
                    if event.type == "DELETED":
                        self._store(key_of(event.object), None)
                    elif event.type != "BOOKMARK" and not later(self._versions.get(key_of(event.object), ""), version):
                        self._store(key_of(event.object), event.object)  # else the result of a write is stored already
                    self.version = version
                if time.monotonic() - started < _SHORTEST_WATCH:
                    await asyncio.sleep(_SHORTEST_WATCH)
            except (ApiError, KeyError, TypeError) as error:
                silent = time.monotonic() - started > _SILENT
                if not isinstance(error, ApiError) or error.status or (silent and failures):
                    self.version = ""  # an unreadable event, or a version that the server does not have: list again
                self.error = error if isinstance(error, ApiError) else None
                failures = 1 if time.monotonic() - started > _LONGEST_DELAY else failures + 1
                delay = min(0.2 * 2 ** min(failures, 10), _LONGEST_DELAY) * random.uniform(0.5, 1)  # noqa: S311
                LOG.log(logging.WARNING if failures in (3, 30) else logging.DEBUG,
                        "The watch of %s failed %d times, retrying: %s", self.path, failures, error)
                self._reachable.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._reachable.wait()

    def retry(self) -> None:
        """List again once the present watch has ended, without a delay. Called after a server was unreachable: it may
        have been restored from a backup, and a watch from a version that it does not have yet reports nothing."""
        self._relist = True
        self._reachable.set()

    async def refresh(self) -> None:
        """List the collection and handle the differences, page by page, so that the raw form of a large collection is
        never in memory as a whole. Raises ApiError."""
        before = dict(self._versions)
        missing = set(before)
        version = ""
        async for page in self.api.list_pages(self.path, **self.query):
            api_version, kind = page.get("apiVersion"), str(page.get("kind", "")).removesuffix("List")
            for obj in page["items"]:
                key, listed = key_of(obj), obj["metadata"].get("resourceVersion")
                stored = self._versions.get(key)
                missing.discard(key)
                obj.setdefault("apiVersion", api_version)  # items of a list lack both
                obj.setdefault("kind", kind)
                written = stored != before.get(key) and later(stored or "", str(listed))  # True: written after the list
                if stored != listed and not written:
                    self._store(key, obj)
            version = str(page["metadata"]["resourceVersion"])
        for key in missing:
            if self._versions.get(key) == before[key]:
                self._store(key, None)
        self.lists += 1
        self.version = version
        self.synced.set()

    def clear(self) -> None:
        """Handle all objects as deleted, because their kind was removed."""
        for key in list(self._versions):
            self._store(key, None)
        self.version = ""

    def put(self, obj: Object) -> bool:
        """Store the result of a write, without a call of the handler, so that the next reader need not wait for the
        watch. Return False if the watch has reported this state, or a later one, already."""
        key, version, decoded = key_of(obj), str(obj["metadata"].get("resourceVersion")), self.decode(obj)
        reported = self._versions.get(key, "0")
        if decoded is None or not later(version, self.version or "0") or not later(version, reported):
            return False
        self._versions[key], self.objects[key] = version, decoded
        return True

    def _store(self, key: str, raw: Object | None) -> None:
        if raw is not None and key in self.objects and self._versions[key] == raw["metadata"].get("resourceVersion"):
            return  # nothing new: the result of a write was stored already
        new, old = None, self.objects.pop(key, None)
        self._versions.pop(key, None)
        try:
            if raw is not None:
                self._versions[key] = str(raw["metadata"].get("resourceVersion"))
                new = self.decode(raw)
                if new is not None:
                    self.objects[key] = new
            if self.handler and (new is not None or old is not None):
                self.handler(key, new, old)
        except (ReportedError, ValueError) as error:
            LOG.warning("Ignoring object %s %s until it is corrected: %s", self.path, key, error)
            if self.handler and old is not None:
                self.handler(key, None, old)
        except Exception:  # a malformed object must not stop the watch of other objects
            LOG.exception("Unexpected error, ignoring object %s %s until its next change", self.path, key)


def later(version: str, other: str) -> bool:
    """Return True if a resource version is certainly later than another one; False if one of them is not a number."""
    return version.isdecimal() and other.isdecimal() and int(version) > int(other)


async def start_optional(api: Api, api_version: str, kinds: Collection[str], informers: Collection[Informer[Any]],
                         tasks: asyncio.TaskGroup) -> None:
    """Wait until the server has the custom resources ``kinds``. Then run informers as tasks, and wait until these
    have listed."""
    while True:
        with contextlib.suppress(ApiError):
            if set(kinds) <= (await api.discover(api_version)).keys():
                break
        await asyncio.sleep(_KINDS_INTERVAL)
    for informer in informers:
        tasks.create_task(informer.run())
    for informer in informers:
        await informer.synced.wait()


async def wait_synced(informers: Mapping[str, Informer[Any]], timeout: float) -> None:
    """Wait until all informers have listed, however long a slow server takes. Raises TimeoutError, which names the
    informers that have not listed, if no page of a list arrives for ``timeout`` seconds."""
    def pages() -> int:
        return sum(api.pages for api in {id(informer.api): informer.api for informer in informers.values()}.values())
    for informer in informers.values():
        before = -1
        while not informer.synced.is_set():
            if before == (before := pages()):
                late = [name for name, other in informers.items() if not other.synced.is_set()]
                raise TimeoutError(f"no part of these lists arrived within {timeout:.0f} s: {', '.join(late)}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(informer.synced.wait(), timeout)
