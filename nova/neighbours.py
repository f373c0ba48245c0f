"""Other OpenStack services, asked over HTTP: where they are, and with whose rights.

A service that is asked is a group of nova.conf with keystoneauth's options: the credentials of Nova itself. Connections
are made at first use in each process, and shared by its threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import requests
from keystoneauth1 import adapter, loading
from keystoneauth1 import exceptions as keystone

from nova.conf import CONF, register_asked_services
from nova.context import RequestContext
from nova.objects.base import compile_once

LOG = logging.getLogger(__name__)

# Seconds without a byte after which a connection counts as dead, unless [group]timeout says otherwise.
TIMEOUT = 60


class Unreachable(Exception):
    """It does not answer, does not let Nova in, or the catalog does not know it. What it was asked may be done."""


# Requests that users wait for: how many wait for one service at once, and how many while it has answered nobody for so
# many seconds though it was asked. The others are told that it is away, rather than hold a thread that others need.
_AT_ONCE, _WHILE_SUSPECT, _SUSPECT = 24, 4, 3.0


class _Queue:
    """The requests of this process at one service that users wait for. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, float] = {}
        self._next = 0
        self._answered_at = 0.0

    def answered(self) -> None:
        """It has answered somebody."""
        self._answered_at = time.monotonic()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """A request is made in the block. Raises Unreachable when too many wait for an answer."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _AT_ONCE or self._suspect(), _SUSPECT)
            if len(self._waiting) >= (_WHILE_SUSPECT if self._suspect() else _AT_ONCE):
                raise Unreachable(f"{len(self._waiting)} requests wait for its answer already")
            self._next += 1
            number = self._next
            self._waiting[number] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._waiting[number]
                self._changed.notify()

    def _suspect(self) -> bool:
        now = time.monotonic()
        return min(self._waiting.values(), default=now) < now - _SUSPECT > self._answered_at


class Neighbour:
    """``where``: keyword arguments of keystoneauth's adapter, for what the group's own options leave open.

    ``versions``: endings of its address in the catalog that are not part of where it is ("/v2").
    """

    def __init__(self, group: str, where: dict[str, Any], versions: tuple[str, ...] = ()) -> None:
        register_asked_services()
        self._group, self._where, self._versions = group, where, versions
        self._lock = threading.Lock()
        self._made: tuple[int, adapter.Adapter] | None = None
        self._queue = _Queue()

    def request(self, ctx: RequestContext, method: str, path: str, token: str | None = None,
                headers: dict[str, str] | None = None, waits: bool | None = None, **more: Any) -> requests.Response:
        """One request; whatever is answered is returned. ``token``: the caller's rights, instead of Nova's own.

        ``waits``: whether a user waits for the answer, in a thread that others need; None: for look-ups with a
        caller's rights. Raises Unreachable, also when many such requests wait for it already.
        """
        sent = {"X-OpenStack-Request-ID": ctx.global_id or ctx.request_id, **(headers or {})}
        try:
            client = self._client()
            if token:
                # Nova's own credentials only find the endpoint.
                sent["X-Auth-Token"] = token
                more["authenticated"] = False
            waits = bool(token) and method == "GET" if waits is None else waits
            with self._queue.turn() if waits else contextlib.nullcontext():
                answer: requests.Response = client.request(path, method, headers=sent, raise_exc=False,
                                                           endpoint_override=self._endpoint(client), **more)
            self._queue.answered()
        except keystone.ClientException as error:
            raise Unreachable(type(error).__name__) from error
        return answer

    def token(self) -> str | None:
        """A token of Nova itself, for those who want to see one beside the caller's. Raises Unreachable."""
        try:
            found: str | None = self._client().get_token()
        except keystone.ClientException as error:
            raise Unreachable(type(error).__name__) from error
        return found

    def project_id(self) -> str | None:
        """The project of Nova's own credentials. Raises Unreachable."""
        try:
            found: str | None = self._client().get_project_id()
        except keystone.ClientException as error:
            raise Unreachable(type(error).__name__) from error
        return found

    def _client(self) -> adapter.Adapter:
        """The adapter of this process: one made before a fork must not be shared."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                group = CONF[self._group]
                auth = loading.load_auth_from_conf_options(CONF, self._group) if group.auth_type else None
                session = loading.load_session_from_conf_options(
                    CONF, self._group, auth=auth, timeout=group.timeout or TIMEOUT)
                where = {name: value for name, value in self._where.items() if not _is_set(group, name)}
                client = loading.load_adapter_from_conf_options(CONF, self._group, session=session, auth=auth, **where)
                self._made = os.getpid(), client
            return self._made[1]

    def _endpoint(self, client: adapter.Adapter) -> str:
        found = CONF[self._group].endpoint_override or client.get_endpoint()
        if not found:
            raise Unreachable("the catalog has no endpoint of it")
        address = str(found).rstrip("/")
        for version in self._versions:
            address = address.partition(version + "/")[0].removesuffix(version)
        return address


def decoded(answer: requests.Response, shape: Any, key: str = "") -> Any:
    """The JSON of an answer (what it has under ``key``): at least this ``shape``, a type that msgspec can check.

    What is not as it ought to be must not get into our rows: nobody could read them. Raises Unreachable.
    """
    compile_once(shape)
    try:
        found = msgspec.json.decode(answer.content, type=dict[str, Any])
        if key and key not in found:
            raise msgspec.ValidationError(f"Object missing required field `{key}`")
        told = found[key] if key else found
        msgspec.convert(told, shape)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        LOG.warning("An answer from %s is not what it ought to be: %s", (answer.url or "").partition("?")[0], error)
        raise Unreachable(f"its answer makes no sense ({error})") from error
    return told


def message_of(answer: requests.Response, service: str) -> str:
    """What a service tells people of an error, {"badRequest": {"code": 400, "message": ...}}; else its status."""
    try:
        return str(next(iter(answer.json().values()))["message"])
    except (ValueError, AttributeError, StopIteration, KeyError, TypeError):
        return f"the {service} service answered {answer.status_code}"


def _is_set(group: Any, name: str) -> bool:
    """Whether the operator chose it. The adapter wants "interface", the option is called valid_interfaces."""
    return bool(getattr(group, {"interface": "valid_interfaces"}.get(name, name), None))
