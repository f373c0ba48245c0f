"""The RPC interface of resource usage of servers."""

from __future__ import annotations

import datetime

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.accounts.usage import ServerUsage
from nova.rpcapi import CONDUCTOR


class Usages(Interface):
    topic = CONDUCTOR
    namespace = "usages"

    @call
    def index(self, ctx: RequestContext, begin: datetime.datetime, end: datetime.datetime, limit: int,
              project_id: str | None = None, marker: str | None = None) -> list[ServerUsage]:
        """Return a page of the servers that existed between ``begin`` and ``end``, including deleted ones.

        Servers are ordered by project and uuid and start after ``marker``. Raises MarkerNotFound.
        """
