"""The client of Nova's REST API, which sends the token of the caller."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import requests
from requests.adapters import HTTPAdapter

from nova.conf import CONF
from nova.context import RequestContext
from nova.ec2.credentials import Caller
from nova.ec2.errors import Ec2Error, RestError, bad_value, translated, unavailable

LOG = logging.getLogger(__name__)

# Microversion of most requests, and of requests for resources that later versions do not serve: images, volumes, key
# pairs that Nova generates, floating addresses and security groups.
VERSION, OLD = "2.96", "2.35"
_CONNECT_TIMEOUT = 10.0
# Maximum number of items per page; nova-api may have a lower limit.
_PAGE = 1000
# A page with fewer items is the last page of a list that has no `next` links, so [api]max_limit must not be lower.
_SHORT = 20


def path_of(*parts: str) -> str:
    """Return a path of quoted parts. Raises InvalidParameterValue for dot segments, which HTTP clients resolve."""
    for part in parts:
        if part in (".", ".."):
            raise bad_value("Name", f"{part} is not allowed as a name.")
    return "".join(f"/{quote(part, safe='')}" for part in parts)


class Connection:
    """The connections of this process to nova-api, shared by its threads."""

    def __init__(self, url: str, threads: int) -> None:
        self.url = url.rstrip("/").removesuffix("/v2.1")
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = CONF.ec2.nova_ca_file or True
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=threads))


class Rest:
    """The REST API for one EC2 request. ``address``: the address of the client, for rate limits of nova-api."""

    def __init__(self, connection: Connection, ctx: RequestContext, caller: Caller, address: str) -> None:
        self._connection = connection
        self._headers = {**caller.headers, "X-Auth-Token": caller.token, "X-OpenStack-Request-ID": ctx.request_id}
        if address:
            self._headers["X-Forwarded-For"] = address

    def request(self, method: str, path: str, body: Any = None, version: str = VERSION,
                codes: Mapping[int, str] | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """Return the decoded response. Raises Ec2Error; ``codes``: status -> code, see errors.translated."""
        try:
            return self.send(method, path, body, version, headers)
        except RestError as error:
            raise translated(error, codes or {}) from error

    def get(self, path: str, key: str, version: str = VERSION, codes: Mapping[int, str] | None = None) -> Any:
        """Return the value of ``key`` in the response to GET. Raises Ec2Error."""
        return _value(self.request("GET", path, version=version, codes=codes), key)

    def find(self, path: str, key: str, version: str = VERSION) -> Any:
        """Return the value of ``key`` in the response to GET, or None for 404. Raises Ec2Error."""
        try:
            return _value(self.send("GET", path, version=version), key)
        except RestError as error:
            if error.status == 404:
                return None
            raise translated(error, {}) from error

    def remove(self, path: str, version: str = VERSION) -> None:
        """Delete an object. Succeeds if it does not exist. Raises Ec2Error."""
        try:
            self.send("DELETE", path, version=version)
        except RestError as error:
            if error.status != 404:
                raise translated(error, {}) from error

    def list(self, path: str, key: str, version: str = VERSION, paged: str = "marker",
             **query: str) -> list[dict[str, Any]]:
        """Return all items of a list. ``paged``: "marker", "offset", or "" for a list without pages.

        Raises ResourceCountExceeded above [ec2]max_listed."""
        items: list[dict[str, Any]] = []
        while True:
            position = {} if not items else {paged: items[-1]["id"] if paged == "marker" else str(len(items))}
            limit = {"limit": str(_PAGE)} if paged else {}
            text = urlencode({**query, **limit, **position})
            answer = self.request("GET", f"{path}?{text}" if text else path, version=version)
            page = _value(answer, key)
            items += page
            if len(items) > CONF.ec2.max_listed:
                raise Ec2Error("ResourceCountExceeded", f"There are more than {CONF.ec2.max_listed} {key}.")
            more = f"{key}_links" in answer if paged == "marker" else bool(paged) and len(page) >= _SHORT
            if not more or not page:
                return items

    def send(self, method: str, path: str, body: Any = None, version: str = VERSION,
             headers: Mapping[str, str] | None = None) -> Any:
        """Return the decoded response, or None if it has no body. Raises RestError, and Unavailable if nova-api does
        not respond; the request may nevertheless have been executed."""
        sent = {**self._headers, "OpenStack-API-Version": f"compute {version}", **(headers or {})}
        data = None
        if body is not None:
            data, sent["Content-Type"] = msgspec.json.encode(body), "application/json"
        try:
            response = self._connection.session.request(
                method, f"{self._connection.url}/v2.1{path}", data=data, headers=sent, allow_redirects=False,
                timeout=(_CONNECT_TIMEOUT, CONF.ec2.nova_timeout))
            content = response.content
        except requests.RequestException as error:
            LOG.warning("nova-api did not respond to %s %s, the request fails: %s", method, path, error)
            raise unavailable("The compute service is unavailable.") from error
        try:
            decoded = msgspec.json.decode(content) if content else None
        except msgspec.DecodeError:
            decoded = None
        if response.status_code >= 300:
            raise RestError(response.status_code, _message(decoded))
        return decoded


def _value(answer: Any, key: str) -> Any:
    if not isinstance(answer, dict) or key not in answer:
        LOG.error("The response of nova-api has no field %s, the request fails", key)
        raise unavailable("The compute service is unavailable.")
    return answer[key]


def _message(body: Any) -> str:
    """Return the message of an error, {"badRequest": {"message": ...}}."""
    for fault in body.values() if isinstance(body, dict) else ():
        if isinstance(fault, dict) and isinstance(fault.get("message"), str):
            return str(fault["message"])
    return "The compute service refused the request."
