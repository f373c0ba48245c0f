"""Requests in the form for handlers, and responses of handlers."""

import dataclasses
from email.utils import formatdate
from typing import Any, NamedTuple

from nova import policies
from nova.context import RequestContext
from nova.rpcapi.placement import Placement

PREFIX = "/placement"


class Answer(NamedTuple):
    """A response. ``body`` None: no content."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = {}


@dataclasses.dataclass
class Request:
    """A request. ``version``: the minor number of the microversion; ``base_url``: the beginning of absolute URLs."""

    ctx: RequestContext
    conductor: Placement
    base_url: str
    version: int
    query: str
    body: Any
    params: dict[str, str] = dataclasses.field(default_factory=dict)

    def authorize(self, rule: str, project_id: str | None = None) -> None:
        """Raise PolicyNotAuthorized unless the rule allows the caller to access the project (None: its own)."""
        policies.authorize(self.ctx, rule, None if project_id is None else {"project_id": project_id})

    def location(self, path: str) -> dict[str, str]:
        return {"location": f"{self.base_url}{PREFIX}{path}"}

    def shown(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
        """Return a response; from 1.15 on with the headers last-modified and cache-control."""
        fresh = {"last-modified": formatdate(usegmt=True), "cache-control": "no-cache"} if self.version >= 15 else {}
        return Answer(body, status, {**fresh, **(headers or {})})
