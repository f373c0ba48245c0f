"""The request that a handler receives, and the response that it returns."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
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


class Response(NamedTuple):
    """A response with headers, or with another status than that of its route. ``status`` None: that of the route."""

    body: Any = None
    status: int | None = None
    headers: Mapping[str, str] = {}


class Request:
    """A request, parsed and validated.

    ``version``: the microversion (a minor number); ``legacy``: True for /v2. ``params``: the values of the path
    template. ``query``: declared query parameters, each a list of texts. ``body``: the validated body. ``project``: the
    project in the URL, if any. ``headers``: the headers that the handler declares, if present. ``clients``: RPC clients
    of the other services. ``host_url``: the URL with which links begin."""

    __slots__ = ("_allowed", "_creds", "body", "clients", "ctx", "headers", "host_url", "legacy", "params", "project",
                 "query", "query_string", "version")

    def __init__(self, ctx: RequestContext, clients: Clients, host_url: str) -> None:
        self.ctx, self.clients, self.host_url = ctx, clients, host_url
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
        """Return True if the rule allows the caller to access ``target``.

        ``target`` None: a resource of the caller's project; this result is cached for the request."""
        if target is not None:
            return policies.allowed(self.ctx, rule, target, self.credentials())
        answer = self._allowed.get(rule)
        if answer is None:
            answer = self._allowed[rule] = policies.allowed(self.ctx, rule, None, self.credentials())
        return answer

    def authorize(self, rule: str, target: Mapping[str, Any] | None = None) -> None:
        """Raise PolicyNotAuthorized (403) unless the rule allows the caller to access ``target`` (:meth:`allowed`)."""
        policies.authorize(self.ctx, rule, target, self.credentials())

    @property
    def scope(self) -> str | None:
        """Return the project to filter by: None (all projects) for administrators."""
        return None if self.ctx.is_admin else self.ctx.project_id

    # -- query -----------------------------------------------------------------------------------
    def arg(self, name: str, default: str | None = None) -> str | None:
        """Return the last value of a query parameter."""
        values = self.query.get(name)
        return values[-1] if values else default

    def expression(self, name: str) -> str | None:
        """Return the last value of a query parameter that is a regular expression. Raises InvalidInput if too long."""
        value = self.arg(name)
        try:
            return value if value is None else expression.check(value)
        except ValueError as error:
            raise exception.InvalidInput(f"Invalid input for query parameters {name}. {error}") from None

    def flag(self, name: str) -> bool:
        """Return a query parameter that was checked as a BOOLEAN."""
        return is_true(self.arg(name, "False"))

    def time(self, name: str) -> datetime.datetime | None:
        """Return a query parameter that was checked as a date-time."""
        value = self.arg(name)
        return formats.parse_time(value) if value else None

    def uuid(self, missing: type[exception.NovaException], field: str) -> str:
        """Return the id of the URL. Raises ``missing`` with the id as its ``field`` if it is not a UUID."""
        ident = self.params["id"]
        if not formats.is_uuid(ident):
            raise missing(**{field: ident})
        return ident

    def changes(self) -> tuple[datetime.datetime | None, datetime.datetime | None]:
        """Return changes-since and changes-before. Raises InvalidInput if changes-since is the later one."""
        since, before = self.time("changes-since"), self.time("changes-before")
        if since and before and since > before:
            raise exception.InvalidInput("The value of changes-since must be less than or equal to changes-before.")
        return since, before

    def page(self) -> tuple[int, str | None]:
        """Return the number of items, at most [api]max_limit, and the marker."""
        value = self.arg("limit")
        most: int = CONF.api.max_limit
        return (most if not value else min(whole(value), most)), self.arg("marker")

    def offset_page(self) -> tuple[int, int]:
        """Return the limit (0 in the query: [api]max_limit) and the offset of a list that is paged without markers."""
        return self.page()[0] or CONF.api.max_limit, whole(self.arg("offset") or 0)

    # -- links -----------------------------------------------------------------------------------
    def _base(self, versioned: bool) -> str:
        prefix = ("/v2" if self.legacy else "/v2.1") if versioned else ""
        return f"{self.host_url}{prefix}" + (f"/{self.project}" if self.project else "")

    def self_link(self, collection: str, ident: str) -> str:
        return f"{self._base(True)}/{collection}/{_quoted(ident)}"

    def bookmark(self, collection: str, ident: str) -> dict[str, str]:
        return {"rel": "bookmark", "href": f"{self._base(False)}/{collection}/{_quoted(ident)}"}

    def links(self, collection: str, ident: str) -> Links:
        """Return the links self and bookmark of a resource."""
        return [{"rel": "self", "href": self.self_link(collection, ident)}, self.bookmark(collection, ident)]

    def with_next(self, answer: dict[str, Any], key: str, path: str, items: Sequence[Any], limit: int, marker: str,
                  since: int = 0, cut_at: str | None = None) -> dict[str, Any]:
        """Return the answer with a link to the next page as ``key``, if this page is full (from version ``since``).

        ``marker``: the attribute of an item that is its marker; ``path``: the path of the list. ``cut_at``: the marker
        for the next page if this page was cut before ``limit`` items."""
        last = cut_at or (str(getattr(items[-1], marker)) if items and len(items) >= limit else None)
        if last is not None and self.version >= since:
            pairs = [(name, value) for name, values in self.query.items() if name != "marker" for value in values]
            query = urlencode(sorted([*pairs, ("marker", last)]))
            answer[key] = [{"rel": "next", "href": f"{self._base(True)}/{path}?{query}"}]
        return answer


def whole(value: Any) -> int:
    """Return a number, or a string of digits, as an int; larger values become 2**63 - 1."""
    try:
        return min(int(value), 2**63 - 1)
    except ValueError:  # raised for thousands of digits
        return 2**63 - 1


def is_true(value: Any) -> bool:
    """Return the bool of a value that was validated as a BOOLEAN."""
    return value is True or (isinstance(value, str) and value in types.TRUE_VALUES)


def _quoted(ident: str) -> str:
    # Most ids are UUIDs, which need no quoting. Quoting them took a tenth of the time of a long list.
    return ident if _PLAIN.fullmatch(ident) else quote(ident, safe="")


def _utc(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is datetime.UTC else value.astimezone(datetime.UTC)


def iso(value: datetime.datetime | None) -> str | None:
    """Return a UTC time like 2026-01-01T00:00:00Z."""
    return None if value is None else _utc(value).isoformat(timespec="seconds")[:19] + "Z"


def iso_precise(value: datetime.datetime | None) -> str | None:
    """Return a UTC time like 2026-01-01T00:00:00.000000."""
    return None if value is None else _utc(value).isoformat(timespec="microseconds")[:26]
