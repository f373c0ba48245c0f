"""A message about something that happened, on its way to whoever listens on the bus."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object


class Notification(Object, kw_only=True):
    """One message. ``subject``: what it tells of; the messages of one subject are sent in the order they were written.

    ``message_id`` stays the same however often it is sent. ``versioned`` decides about its topics. ``context`` names
    who asked, and by which request.
    """

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
