"""Rate limits of projects, users and addresses: [api]rate_limit_*."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from nova.api import errors, forwarded
from nova.api.reply import Reply
from nova.conf import CONF
from nova.context import RequestContext
from nova.http.messages import Environ, Wsgi
from nova.service.rates import limiter


class Rates:
    """The rate limits of the API. Create this object before forking the workers, since they share it. Raises
    InvalidInput for invalid options."""

    def __init__(self) -> None:
        self._project, self._user, self._address = (
            limiter("api", f"rate_limit_{name}") for name in ("project", "user", "address"))
        self._free = frozenset(CONF.api.rate_limit_free_roles)

    def count(self, ctx: RequestContext) -> None:
        """Count a request. Raises OverLimit (429)."""
        if self._project is None and self._user is None:
            return
        if not self._free.isdisjoint(ctx.roles):
            return
        for buckets, who in ((self._user, ctx.user_id), (self._project, ctx.project_id)):
            if buckets is not None and who and (wait := buckets.take(who)):
                raise errors.OverLimit(retry_after=math.ceil(wait))

    def by_address(self, application: Wsgi) -> Wsgi:
        """Limit the rate of requests to ``application`` per client address, before authentication."""
        buckets = self._address
        if buckets is None:
            return application

        def counted(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
            who = forwarded.client(environ)
            wait = buckets.take(who) if who is not None else 0.0
            if not wait:
                return application(environ, start_response)
            error = errors.OverLimit(retry_after=math.ceil(wait))
            reply = Reply()
            reply.status, body = errors.describe(error)
            reply.data = msgspec.json.encode(body)
            reply.set_headers(errors.headers(error))
            return reply.send(environ, start_response)

        return counted
