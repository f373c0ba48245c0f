"""What was done to servers."""

from __future__ import annotations

import datetime

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.action import Action
from nova.rpcapi import CONDUCTOR


class Actions(Interface):
    """os-instance-actions. Newest first."""

    topic = CONDUCTOR
    namespace = "actions"

    @call
    def index(self, ctx: RequestContext, instance_uuid: str, limit: int | None = None, marker: str | None = None,
              changes_since: datetime.datetime | None = None,
              changes_before: datetime.datetime | None = None) -> list[Action]:
        """``marker`` is a request id; raises MarkerNotFound."""

    @call
    def get(self, ctx: RequestContext, instance_uuid: str, request_id: str) -> Action:
        """Raises InstanceActionNotFound."""
