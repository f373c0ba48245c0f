"""What servers have used of projects' hosts."""

from __future__ import annotations

import datetime

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.usage import ServerUsage
from nova.rpcapi import CONDUCTOR


class Usages(Interface):
    topic = CONDUCTOR
    namespace = "usages"

    @call
    def index(self, ctx: RequestContext, begin: datetime.datetime, end: datetime.datetime, limit: int,
              project_id: str | None = None, marker: str | None = None) -> list[ServerUsage]:
        """A page of the servers (of a project, or all) that ran between ``begin`` and ``end``, also deleted ones.

        By project and uuid, after the server ``marker``. Raises MarkerNotFound.
        """
