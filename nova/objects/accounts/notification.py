"""Notifications: messages about events for consumers on the message bus."""

import datetime
from typing import Any

from nova.objects.base import Object


class Notification(Object, kw_only=True):
    """A message. ``subject``: the object of the event; messages of one subject are sent in the order of their creation.
    ``message_id`` stays the same when the message is sent again. ``versioned``: True for a versioned notification,
    which has other topics. ``context``: user and request of the event."""

    id: int = 0
    message_id: str
    subject: str
    versioned: bool
    event_type: str
    priority: str
    publisher_id: str
    payload: dict[str, Any]
    context: dict[str, str] = {}
    created_at: datetime.datetime
