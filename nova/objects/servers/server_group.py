"""A server group."""

import datetime
from typing import Any

from nova.objects.base import Object


class ServerGroup(Object, kw_only=True):
    id: int = 0
    uuid: str
    name: str
    project_id: str
    user_id: str
    policy: str
    rules: dict[str, Any] = {}
    members: list[str] = []
    created_at: datetime.datetime | None = None
