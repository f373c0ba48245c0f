"""A thin asyncio client of the Kubernetes API: requests with deadlines, apply, watch, and discovery of kinds."""

import asyncio
import contextlib
import copy
import logging
import math
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from nova.common.errors import ReportedError
from nova.federator.api.objects import Kind
from nova.federator.kube.config import Kubeconfig

LOG = logging.getLogger(__name__)
Object = dict[str, Any]
T = TypeVar("T")
_REQUEST_TIMEOUT = 15.0  # timeout of a request including its retries, in seconds
_LIST_TIMEOUT = 60.0  # timeout of the request of one page of a list, in seconds
_WATCH_SECONDS = 300  # seconds after which the server ends a watch, plus a random time of at most 60 s
_WATCH_SILENCE = 90.0  # seconds without an event or bookmark after which a watch is given up: a dead connection
_EVENT_LIMIT = 4 << 20  # bytes of one watch event; a larger one ends the watch
_RELOAD = 60.0  # seconds between two reads of credentials in files
_PAGE = 500  # objects of one page of a list
_DEPTH = 100  # levels of nested JSON objects and lists
TRUNCATED = "nova.elotl.co/truncated"  # replaces content below _DEPTH levels
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_RETRIES = 4  # retries of a request that the server has certainly not executed (status 429, connection refused)


class ApiError(ReportedError):
    """A request failed. ``status``: the HTTP status, 0 if no response arrived. ``reason``: as in metav1.Status."""

    def __init__(self, message: str, status: int = 0, reason: str = "",
                 details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.details = status, reason, details or {}

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Return True if the object changed meanwhile, exists already, or its fields belong to another manager."""
        return self.status == 409

    @property
    def expired(self) -> bool:
        """Return True if the resource version is too old for a watch or list."""
        return self.status == 410


class Resource(Kind, frozen=True):
    """A kind as an API server serves it."""

    verbs: frozenset[str] = frozenset()
    scalable: bool = False  # has the subresource scale


class Event(msgspec.Struct, frozen=True):
    """A change that a watch reports. For a deleted object, ``object`` is its final state."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Object


class _Line(msgspec.Struct):
    type: str
    object: Object


_LINE: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


class _Link:
    """The credentials and the connections of a client, shared by its views (:meth:`Api.limited`)."""

    def __init__(self, config: Kubeconfig, reload: Callable[[], Kubeconfig] | None) -> None:
        self.config, self.reload = config, reload
        self.session: aiohttp.ClientSession | None = None
        self.streams: set[aiohttp.StreamReader] = set()  # streams of running watches
        self.loaded, self.problem = time.monotonic(), ""


class Api:
    """A connection pool to one API server. Use as an async context manager.

    Methods raise :class:`ApiError`, also if the server is unreachable or its response is not JSON. ``counts``: requests
    sent, by method, for metrics and tests. ``reload``: reads the credentials again, which clusters replace in the files
    of running pods. It is called each minute; if it raises Invalid, the previous credentials stay in use.
    """

    def __init__(self, config: Kubeconfig, agent: str = "nova-federator", connections: int = 64,
                 timeout: float = _REQUEST_TIMEOUT, reload: Callable[[], Kubeconfig] | None = None) -> None:
        self.timeout = timeout
        self.counts: dict[str, int] = {}
        self.pages = 0  # number of received pages of lists
        self._agent, self._requests = agent, asyncio.Semaphore(connections)
        self._link = _Link(config, reload)
        self._resources: dict[str, dict[str, Resource]] = {}  # group/version -> kind -> resource
        self._validity: Callable[[], float] = lambda: math.inf

    @property
    def config(self) -> Kubeconfig:
        return self._link.config

    async def __aenter__(self) -> Self:
        self._connect(self.config)
        return self

    def limited(self, validity: Callable[[], float]) -> Self:
        """Return a view of this open client for a duty that another process may take. ``validity``: returns the seconds
        for which this process may still write. Later writes fail, also retries and writes that wait for a response:
        a process that was suspended, or has a slow server, must not overwrite decisions of the next holder."""
        view = copy.copy(self)
        view._validity = validity
        return view

    async def use(self, config: Kubeconfig) -> None:
        """Continue with other credentials. Watches end as if their connections broke; running requests without a
        response fail at their timeout. Raises Invalid for an unusable certificate, and changes nothing in this case."""
        previous = self._link.session
        self._connect(config)
        for stream in self._link.streams:  # aiohttp does not inform the readers of connections that it closes
            stream.set_exception(aiohttp.ClientConnectionError("its connection was replaced"))
        if previous:
            await previous.close()

    def _connect(self, config: Kubeconfig) -> None:
        headers = {"User-Agent": self._agent, "Accept": "application/json"}
        connector = aiohttp.TCPConnector(ssl=config.tls() or False, limit=0, keepalive_timeout=60)
        self._link.config = config
        self._link.session = aiohttp.ClientSession(connector=connector, headers=headers, auto_decompress=True)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if self._link.session:
            await self._link.session.close()

    async def get(self, path: str, **query: str) -> Object:
        return await self._request("GET", path, query)

    async def find(self, path: str, **query: str) -> Object | None:
        """Return an object, or None if it does not exist."""
        try:
            return await self.get(path, **query)
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def list(self, path: str, **query: str) -> Object:
        """Return a whole collection: ``items`` and ``metadata.resourceVersion``. Fetches it in pages."""
        items: list[Object] = []
        page: Object = {}
        async for page in self.list_pages(path, **query):
            items += page["items"]
        return {**page, "items": items}

    async def list_pages(self, path: str, **query: str) -> AsyncIterator[Object]:
        """Yield a collection in pages with ``items``. All pages have the same ``metadata.resourceVersion``."""
        more = ""
        while True:
            position = {"limit": str(_PAGE), **({"continue": more} if more else {})}
            page = await self._request("GET", path, {**query, **position}, timeout=_LIST_TIMEOUT)
            metadata = page.get("metadata")
            if not isinstance(metadata, dict) or not isinstance(page.get("items", []), list):
                raise ApiError(f"{self.config.server}{path} returned no list.", 502)
            self.pages += 1
            more = metadata.get("continue") or ""
            yield {**page, "items": page.get("items") or []}
            if not more:
                return

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        return await self._request("POST", path, query, body)

    async def ensure(self, path: str, body: Mapping[str, Any]) -> bool:
        """Create an object unless it exists. Return True if it was created."""
        try:
            await self.create(path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return False
        return True

    async def replace(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Replace an object. Fails with status 409 if the object's resourceVersion is not the one in ``body``."""
        return await self._request("PUT", path, query, body)

    async def patch(self, path: str, body: Mapping[str, Any], **query: str) -> Object:
        """Apply a merge patch. Fails with status 409 if ``body`` contains another resourceVersion than the object."""
        return await self._request("PATCH", path, query, body, "application/merge-patch+json")

    async def apply(self, path: str, body: Mapping[str, Any], manager: str, force: bool = False,
                    **query: str) -> Object:
        """Apply an object as field manager ``manager``. Without ``force``, fields of other managers are a conflict."""
        query = {"fieldManager": manager, "force": "true" if force else "false", **query}
        return await self._request("PATCH", path, query, body, "application/apply-patch+yaml")

    async def delete(self, path: str, propagation: str = "Background", uid: str = "", version: str = "",
                     grace: int | None = None, **query: str) -> Object:
        """Delete an object. ``uid``, ``version``: required values of the object, status 409 if it has others.
        ``grace``: seconds that a pod may take to stop, instead of the value in its spec."""
        conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", version)) if value}
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation,
                **({} if grace is None else {"gracePeriodSeconds": grace}),
                **({"preconditions": conditions} if conditions else {})}
        return await self._request("DELETE", path, query, body)

    async def remove(self, path: str, propagation: str = "Background", uid: str = "", version: str = "") -> None:
        """Delete an object as :meth:`delete` does. Succeeds also if the object does not exist."""
        try:
            await self.delete(path, propagation, uid, version)
        except ApiError as error:
            if not error.missing:
                raise

    async def resource(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of a kind, or None if the server does not serve it. Discovery is cached per version."""
        if kind not in self._resources.get(api_version, {}):
            await self.discover(api_version)
        return self._resources.get(api_version, {}).get(kind)

    async def discover(self, api_version: str) -> Mapping[str, Resource]:
        """Return the kinds of a group and version by name; empty if the server does not have the version."""
        group, _slash, version = api_version.rpartition("/")
        try:
            page = await self.get(f"/apis/{api_version}" if group else f"/api/{version}")
        except ApiError as error:
            if not error.missing:
                raise
            page = {}
        kinds: dict[str, Resource] = {}
        scalable = {entry["name"].removesuffix("/scale") for entry in page.get("resources", ())
                    if entry["name"].endswith("/scale")}
        for entry in page.get("resources", ()):
            if "/" not in entry["name"]:
                kinds[entry["kind"]] = Resource(group, version, entry["kind"], entry["name"], entry["namespaced"],
                                                verbs=frozenset(entry.get("verbs") or ()),
                                                scalable=entry["name"] in scalable)
        self._resources[api_version] = kinds
        return kinds

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[Event]:
        """Yield the changes of a collection after a resource version, and bookmarks, until the server ends the watch.
        Raises ApiError, whose ``expired`` is True if a new list is needed."""
        query = {**query, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
                 "timeoutSeconds": str(_WATCH_SECONDS + random.randint(0, 60))}  # noqa: S311
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout)
        self._count("WATCH")
        login = await self._login()
        try:
            async with asyncio.timeout(self.timeout):
                response = await self._open().get(
                    f"{self.config.server}{path}?{urlencode(query)}", timeout=timeout, read_bufsize=_EVENT_LIMIT,
                    headers=login, server_hostname=self.config.tls_server_name or None)
            async with response:
                if response.status != 200:
                    async with asyncio.timeout(self.timeout):
                        raise self._error("WATCH", path, response.status, await response.read())
                self._link.streams.add(response.content)
                try:
                    while line := await self._line(response.content):
                        yield self._event(path, line)
                finally:
                    self._link.streams.discard(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(f"The watch of {self.config.server}{path} broke: {_text(error)}") from None

    async def _line(self, stream: aiohttp.StreamReader) -> bytes:
        async with asyncio.timeout(_WATCH_SILENCE):
            return await stream.readline()

    def _event(self, path: str, line: bytes) -> Event:
        try:
            decoded = _decode(line, _LINE)
        except msgspec.MsgspecError as error:
            raise ApiError(f"The watch of {self.config.server}{path} sent an unreadable event: {error}") from None
        if decoded.type == "ERROR":
            code = decoded.object.get("code")
            raise ApiError(f"The watch of {self.config.server}{path} ended: {decoded.object.get('message')}",
                           code if isinstance(code, int) else 500, str(decoded.object.get("reason") or ""))
        if decoded.type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise ApiError(f"The watch of {self.config.server}{path} sent an event of type {decoded.type!r}.")
        return Event(decoded.type, decoded.object)  # type: ignore[arg-type]

    async def _request(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None,
                       content_type: str = "application/json", timeout: float = 0) -> Object:
        login = await self._login()
        url = f"{self.config.server}{path}{'?' + urlencode(query) if query else ''}"
        data = None if body is None else _encode(body)
        validity: Callable[[], float] = (lambda: math.inf) if method == "GET" else self._validity
        try:
            async with asyncio.timeout(min(timeout or self.timeout, max(0.1, validity()))):
                for attempt in range(_RETRIES + 1):
                    try:
                        async with self._requests:
                            if validity() <= 0:
                                raise ApiError(f"{method} {path} was not sent: another process may hold the Lease.")
                            self._count(method)
                            async with self._open().request(
                                    method, url, data=data, headers={"Content-Type": content_type, **login},
                                    server_hostname=self.config.tls_server_name or None) as response:
                                content, status = await response.read(), response.status
                                delay = response.headers.get("Retry-After", "")
                    except aiohttp.ClientConnectorError:  # not sent
                        if attempt == _RETRIES:
                            raise
                        await asyncio.sleep(0.1 * 2 ** attempt)
                        continue
                    if status != 429 or attempt == _RETRIES:
                        return self._result(method, path, status, content)
                    await asyncio.sleep(min(float(delay), 5.0) if delay.isdigit() else 0.2 * 2 ** attempt)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(f"{method} {self.config.server}{path} failed: {_text(error)}") from None
        raise AssertionError

    def _result(self, method: str, path: str, status: int, content: bytes) -> Object:
        if status >= 300:
            raise self._error(method, path, status, content)
        with contextlib.suppress(msgspec.MsgspecError):
            if isinstance(result := _decode(content, _ANY), dict):
                return result
        raise ApiError(f"{method} {self.config.server}{path} returned no JSON object.", 502)

    def _error(self, method: str, path: str, status: int, content: bytes) -> ApiError:
        message, reason = content[:300].decode(errors="replace"), ""
        details: Mapping[str, Any] = {}
        with contextlib.suppress(msgspec.MsgspecError):
            if isinstance(body := _decode(content, _ANY), dict):
                message, reason = str(body.get("message") or message), str(body.get("reason") or "")
                details = body["details"] if isinstance(body.get("details"), dict) else {}
        return ApiError(f"{method} {path}: {status} {message}", status, reason, details)

    async def _login(self) -> dict[str, str]:
        """Return the header with the token, if there is one. Read the credentials again every _RELOAD seconds."""
        link = self._link
        if link.reload and time.monotonic() - link.loaded > _RELOAD:
            link.loaded, problem = time.monotonic(), ""
            try:
                config = link.reload()
                if msgspec.structs.replace(config, token="") == msgspec.structs.replace(link.config, token=""):
                    link.config = config  # for another token, the connections can stay
                else:
                    await self.use(config)
                    LOG.info("The credentials for %s were replaced", config.server)
            except ReportedError as error:
                problem = error.message
            if problem and problem != link.problem:
                LOG.warning("Cannot reload the credentials for %s, continuing with the previous ones: %s",
                            link.config.server, problem)
            link.problem = problem
        return {"Authorization": f"Bearer {link.config.token}"} if link.config.token else {}

    def _open(self) -> aiohttp.ClientSession:
        if self._link.session is None:
            raise RuntimeError("The client is used outside its context.")
        return self._link.session

    def _count(self, method: str) -> None:
        self.counts[method] = self.counts.get(method, 0) + 1


async def hedged(attempt: Callable[[], Coroutine[Any, Any, T]], pause: float) -> T:
    """Return the first result of up to three attempts, each begun ``pause`` seconds after the previous one. An API
    server may send a request to a member of etcd that does not respond; a retry may use another member. A request must
    permit two executions, as writes with a resourceVersion do: the second one fails with a conflict. Raises ApiError
    when a server refuses an attempt (4xx), or after three failures. The caller limits the time."""
    async def delayed(seconds: float) -> T:
        await asyncio.sleep(seconds)
        return await attempt()

    attempts = [asyncio.create_task(delayed(number * pause)) for number in range(3)]
    try:
        for number, ended in enumerate(asyncio.as_completed(attempts), 1):
            try:
                return await ended
            except ApiError as error:
                if 400 <= error.status < 500 or number == len(attempts):
                    raise
        raise AssertionError
    finally:
        for task in attempts:
            task.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


def _decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode JSON. TRUNCATED replaces content that is nested too deeply, so that the object of a hostile client cannot
    end the watch of all objects. Raises MsgspecError."""
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(_truncate(data))


def _truncate(data: bytes) -> bytes:
    result, depth, start = bytearray(), 0, 0
    for match in _TOKEN.finditer(data):
        token = match[0]
        if token in b"{[":
            depth += 1
            if depth == _DEPTH:
                result += data[start:match.start()] + b'"' + TRUNCATED.encode() + b'"'
        elif token in b"}]":
            if depth == _DEPTH:
                start = match.end()
            depth -= 1
    return bytes(result + data[start:])


def _text(error: BaseException) -> str:
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
