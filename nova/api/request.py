"""Requests as handlers get them, and their answers."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from nova import exception, policies
from nova.api.clients import Clients
from nova.api.validation import formats, types
from nova.conf import CONF
from nova.context import RequestContext
from nova.objects import expression

Links = list[dict[str, str]]
# Characters that need no quoting in a URL.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")


class Response:
    """An answer that is more than a body: ``status`` None is the route's own."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: Any = None, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.body = body
        self.status = status
        self.headers = headers or {}


class Request:
    """A request, parsed and validated.

    ``version``: the microversion (a minor number); ``legacy``: it came to /v2. ``params``: the
    values of the path template. ``query``: known parameters, each a list of texts. ``body``: as
    validated. ``project``: the project in the URL, if it was there. ``headers``: those that the
    handler has declared, if they were sent. ``clients``: the other services. ``host_url``: what
    links begin with.
    """

    __slots__ = ("_allowed", "_creds", "body", "clients", "ctx", "headers", "host_url", "legacy", "method", "params",
                 "path", "project", "query", "query_string", "version")

    def __init__(self, ctx: RequestContext, clients: Clients, method: str, path: str, host_url: str) -> None:
        self.ctx = ctx
        self.clients = clients
        self.method = method
        self.path = path
        self.host_url = host_url
        self.version = 1
        self.legacy = False
        self.project: str | None = None
        self.params: dict[str, str] = {}
        self.query: dict[str, list[str]] = {}
        self.query_string = ""
        self.headers: dict[str, str] = {}
        self.body: Any = None
        self._creds: dict[str, Any] | None = None
        self._allowed: dict[str, bool] = {}

    # -- policy ----------------------------------------------------------------------------------
    def credentials(self) -> dict[str, Any]:
        if self._creds is None:
            self._creds = policies.credentials(self.ctx)
        return self._creds

    def allowed(self, rule: str, target: Mapping[str, Any] | None = None) -> bool:
        """May the caller, to ``target`` (None: to what is their own; asked once per request)?"""
        if target is not None:
            return policies.allowed(self.ctx, rule, target, self.credentials())
        answer = self._allowed.get(rule)
        if answer is None:
            answer = self._allowed[rule] = policies.allowed(self.ctx, rule, None, self.credentials())
        return answer

    def authorize(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raises PolicyNotAuthorized (403)."""
        policies.authorize(self.ctx, rule, target, self.credentials())

    @property
    def scope(self) -> str | None:
        """``project_id`` for calls that take one: None (every project) for administrators."""
        return None if self.ctx.is_admin else self.ctx.project_id

    # -- query -----------------------------------------------------------------------------------
    def arg(self, name: str, default: str | None = None) -> str | None:
        """The last value of a query parameter."""
        values = self.query.get(name)
        return values[-1] if values else default

    def expression(self, name: str) -> str | None:
        """The last value of a query parameter that texts are searched by. Raises InvalidInput for one too long."""
        value = self.arg(name)
        try:
            return value if value is None else expression.check(value)
        except ValueError as error:
            raise exception.InvalidInput(f"Invalid input for query parameters {name}. {error}") from None

    def flag(self, name: str) -> bool:
        """A query parameter that was checked as a BOOLEAN."""
        return is_true(self.arg(name, "False"))

    def time(self, name: str) -> datetime.datetime | None:
        """A query parameter that was checked as a date-time."""
        value = self.arg(name)
        return formats.parse_time(value) if value else None

    def page(self) -> tuple[int, str | None]:
        """Return the number of items, at most [api]max_limit, and the marker."""
        value = self.arg("limit")
        most: int = CONF.api.max_limit
        return (most if not value else min(whole(value), most)), self.arg("marker")

    def offset_page(self) -> tuple[int, int]:
        """Return the number of items and the offset, of a list without markers, where a limit of 0 is no limit."""
        return self.page()[0] or CONF.api.max_limit, whole(self.arg("offset") or 0)

    # -- links -----------------------------------------------------------------------------------
    def _base(self, versioned: bool) -> str:
        base = self.host_url
        if versioned:
            base += "/v2" if self.legacy else "/v2.1"
        return f"{base}/{self.project}" if self.project else base

    def self_link(self, collection: str, ident: str) -> str:
        return f"{self._base(True)}/{collection}/{_quoted(ident)}"

    def bookmark(self, collection: str, ident: str) -> dict[str, str]:
        return {"rel": "bookmark", "href": f"{self._base(False)}/{collection}/{_quoted(ident)}"}

    def links(self, collection: str, ident: str) -> Links:
        """Self and bookmark of a thing."""
        return [{"rel": "self", "href": self.self_link(collection, ident)}, self.bookmark(collection, ident)]

    def next_links(self, path: str, items: Sequence[Any], limit: int, marker: str | None,
                   cut_at: str | None = None) -> Links:
        """Return a link to the next page when this one is full, else [].

        ``marker`` is the last item's, ``path`` the list's. ``cut_at``: the marker of a page that was cut, full or not.
        """
        marker = cut_at or (marker if items and len(items) >= limit else None)
        if marker is None:
            return []
        pairs = [(name, value) for name, values in self.query.items() if name != "marker" for value in values]
        pairs.append(("marker", marker))
        return [{"rel": "next", "href": f"{self._base(True)}/{path}?{urlencode(sorted(pairs))}"}]


def whole(value: Any) -> int:
    """A checked number or string of digits as an int; absurdly long ones are just very big."""
    try:
        return min(int(value), 2**63 - 1)
    except ValueError:  # thousands of digits
        return 2**63 - 1


def is_true(value: Any) -> bool:
    """Return the meaning of a value that passed BOOLEAN."""
    return value is True or (isinstance(value, str) and value in types.TRUE_VALUES)


def _quoted(ident: str) -> str:
    # Nearly all are UUIDs; quoting was a tenth of a long list.
    return ident if _PLAIN.fullmatch(ident) else quote(ident, safe="")


def _utc(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is datetime.UTC else value.astimezone(datetime.UTC)


def iso(value: datetime.datetime | None) -> str | None:
    """2026-01-01T00:00:00Z"""
    return None if value is None else _utc(value).isoformat(timespec="seconds")[:19] + "Z"


def iso_precise(value: datetime.datetime | None) -> str | None:
    """2026-01-01T00:00:00.000000, in UTC."""
    return None if value is None else _utc(value).isoformat(timespec="microseconds")[:26]
