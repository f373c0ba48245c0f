"""The RPC interface of instance actions, the history of servers."""

from __future__ import annotations

import datetime

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.servers.action import Action
from nova.rpcapi import CONDUCTOR


class Actions(Interface):
    """The actions of os-instance-actions."""

    topic = CONDUCTOR
    namespace = "actions"

    @call
    def index(self, ctx: RequestContext, instance_uuid: str, limit: int | None = None, marker: str | None = None,
              changes_since: datetime.datetime | None = None,
              changes_before: datetime.datetime | None = None) -> list[Action]:
        """Return actions of a server, newest first, after the request id ``marker``. Raises MarkerNotFound."""

    @call
    def get(self, ctx: RequestContext, instance_uuid: str, request_id: str) -> Action:
        """Raises InstanceActionNotFound."""
