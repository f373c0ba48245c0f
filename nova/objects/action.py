"""The journal: actions, their events, and the messages that run their steps."""

from __future__ import annotations

import datetime
from typing import Any

from nova.objects.base import Object


class Event(Object, kw_only=True):
    """A step of an action as os-instance-actions shows it."""

    event: str
    start_time: datetime.datetime
    finish_time: datetime.datetime | None = None
    result: str | None = None
    traceback: str | None = None
    host: str | None = None
    details: str | None = None


class Action(Object, kw_only=True):
    """One accepted operation on one instance, and how far it is.

    ``step`` is the name of the current step (None: done); ``attempt`` numbers the dispatches of
    the action (fencing: reports of an older attempt are refused); ``owner`` is the service that
    runs the step and ``lease_until`` when it counts as lost; ``outcome`` is None while it runs,
    then ``success``, ``error`` or ``superseded`` (a delete came in between).
    ``undoing`` is set while compensations run backwards. ``queued``: it waits until the operations of the instance
    that came before have ended; ``waits_for``: the external events that wake it, between commas. ``id`` grows from one
    action of an instance to the next; it is 0 until the first one is read from the journal.
    """

    id: int = 0
    uuid: str
    instance_uuid: str
    action: str
    operation: str | None = None
    payload: dict[str, Any] = {}
    step: str | None = None
    attempt: int = 0
    undoing: bool = False
    owner: str | None = None
    lease_until: datetime.datetime | None = None
    outcome: str | None = None
    request_id: str
    user_id: str | None = None
    project_id: str | None = None
    start_time: datetime.datetime
    finish_time: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    message: str | None = None
    events: list[Event] = []
    queued: bool = False
    waits_for: str | None = None


class Accepted(Object, kw_only=True):
    """An operation that was promised, and what its acceptance has to say (the operation's ``answer_type``)."""

    action: Action
    answer: dict[str, Any] = {}


class Failure(Object, kw_only=True):
    """Why a step failed: what a user may read, the class of the error, and where it happened.

    ``retry``: another host may succeed. ``inside`` (the message with what users shall not know, if there is more to
    say) and ``details`` (a traceback) are for administrators.
    """

    code: int = 500
    message: str
    inside: str = ""
    kind: str = ""
    details: str = ""
    host: str | None = None
    retry: bool = True
