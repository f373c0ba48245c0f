"""HTTP clients for other OpenStack services, with Keystone authentication.

Each service is a group of nova.conf with the options of keystoneauth: the credentials of Nova itself and the endpoint.
Connections are opened at first use in each process and shared by its threads."""

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

from nova.common.structs import compile_once
from nova.conf import CONF, register_external_services
from nova.context import RequestContext

LOG = logging.getLogger(__name__)

# Read timeout of a connection in seconds, unless [group]timeout is set.
TIMEOUT = 60


class Unreachable(Exception):
    """The service does not respond, rejects Nova's credentials or has no endpoint in the catalog. The request may have
    been executed all the same."""


# Maximum number of requests that wait for one service at the same time, if a user waits for each: in general, and while
# the service has been silent for _SUSPECT_AFTER seconds in spite of pending requests. Further requests fail at once, so
# that a silent service does not occupy all threads.
_MAX_PENDING, _MAX_PENDING_SUSPECT, _SUSPECT_AFTER = 24, 4, 3.0


class _RequestLimit:
    """A limit on the pending requests of this process to one service. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: dict[int, float] = {}  # number of the request -> its start
        self._next = 0
        self._responded_at = 0.0

    def responded(self) -> None:
        """Record that the service responded to a request."""
        self._responded_at = time.monotonic()

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Count a request as pending within the block. Raises Unreachable when too many requests are pending."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._pending) < _MAX_PENDING or self._suspect(), _SUSPECT_AFTER)
            if len(self._pending) >= (_MAX_PENDING_SUSPECT if self._suspect() else _MAX_PENDING):
                raise Unreachable(f"{len(self._pending)} requests are already waiting for a response")
            self._next += 1
            number = self._next
            self._pending[number] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._pending[number]
                self._changed.notify()

    def _suspect(self) -> bool:
        now = time.monotonic()
        return min(self._pending.values(), default=now) < now - _SUSPECT_AFTER > self._responded_at


class ServiceClient:
    """An HTTP client for the service that the ``group`` of nova.conf configures.

    ``defaults``: keyword arguments of keystoneauth's adapter, for what the options of the group leave open.
    ``versions``: version suffixes ("/v2") that are removed from the endpoint in the catalog."""

    def __init__(self, group: str, defaults: dict[str, Any], versions: tuple[str, ...] = ()) -> None:
        register_external_services()
        self._group, self._defaults, self._versions = group, defaults, versions
        self._lock = threading.Lock()
        self._adapter: tuple[int, adapter.Adapter] | None = None  # with the id of the process that made it
        self._limit = _RequestLimit()

    def request(self, ctx: RequestContext, method: str, path: str, token: str | None = None,
                headers: dict[str, str] | None = None, waits: bool | None = None, **more: Any) -> requests.Response:
        """Send a request and return the response, whatever its status. ``token``: the caller's token, used instead of
        Nova's own credentials. ``waits``: True if a user waits for the response, so that the request counts for the
        limit; None: GET requests with a ``token`` count. Raises Unreachable, also when too many requests are pending.
        """
        sent = {"X-OpenStack-Request-ID": ctx.global_id or ctx.request_id, **(headers or {})}
        try:
            client = self._client()
            if token:
                # Nova's own credentials are used only to find the endpoint.
                sent["X-Auth-Token"] = token
                more["authenticated"] = False
            waits = bool(token) and method == "GET" if waits is None else waits
            with self._limit.slot() if waits else contextlib.nullcontext():
                response: requests.Response = client.request(path, method, headers=sent, raise_exc=False,
                                                             endpoint_override=self._endpoint(client), **more)
            self._limit.responded()
        except keystone.ClientException as error:
            raise Unreachable(type(error).__name__) from error
        return response

    def token(self) -> str | None:
        """Return a token of Nova's own credentials, to be sent as a service token. Raises Unreachable."""
        try:
            token: str | None = self._client().get_token()
        except keystone.ClientException as error:
            raise Unreachable(type(error).__name__) from error
        return token

    def project_id(self) -> str | None:
        """Return the project of Nova's own credentials. Raises Unreachable."""
        try:
            project_id: str | None = self._client().get_project_id()
        except keystone.ClientException as error:
            raise Unreachable(type(error).__name__) from error
        return project_id

    def _client(self) -> adapter.Adapter:
        """Return the adapter of this process. An adapter that was made before a fork must not be shared."""
        with self._lock:
            if self._adapter is None or self._adapter[0] != os.getpid():
                group = CONF[self._group]
                auth = loading.load_auth_from_conf_options(CONF, self._group) if group.auth_type else None
                session = loading.load_session_from_conf_options(
                    CONF, self._group, auth=auth, timeout=group.timeout or TIMEOUT)
                # An option that the operator has set replaces the default ("interface" is valid_interfaces).
                defaults = {name: value for name, value in self._defaults.items()
                            if not getattr(group, {"interface": "valid_interfaces"}.get(name, name), None)}
                client = loading.load_adapter_from_conf_options(
                    CONF, self._group, session=session, auth=auth, **defaults)
                self._adapter = os.getpid(), client
            return self._adapter[1]

    def _endpoint(self, client: adapter.Adapter) -> str:
        endpoint = CONF[self._group].endpoint_override or client.get_endpoint()
        if not endpoint:
            raise Unreachable("the catalog has no endpoint of the service")
        url = str(endpoint).rstrip("/")
        for version in self._versions:
            url = url.partition(version + "/")[0].removesuffix(version)
        return url


def decode_response(response: requests.Response, shape: Any, key: str = "") -> Any:
    """Return the JSON body of a response, or its value under ``key``.

    ``shape``: a type that msgspec can check; further fields are allowed. Malformed data must not get into the database,
    where nothing could read them. Raises Unreachable if the body does not have this shape."""
    compile_once(shape)
    try:
        body = msgspec.json.decode(response.content, type=dict[str, Any])
        if key and key not in body:
            raise msgspec.ValidationError(f"Object missing required field `{key}`")
        value = body[key] if key else body
        msgspec.convert(value, shape)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        LOG.warning("Cannot read the response from %s, the request fails: %s",
                    (response.url or "").partition("?")[0], error)
        raise Unreachable(f"its response is malformed ({error})") from error
    return value


def error_message(response: requests.Response, service: str) -> str:
    """Return the message of an error response, {"badRequest": {"code": 400, "message": ...}}, or else its status."""
    try:
        return str(next(iter(response.json().values()))["message"])
    except (ValueError, AttributeError, StopIteration, KeyError, TypeError, RecursionError):
        return f"the {service} service responded with status {response.status_code}"
