"""The journal of operations: actions and their events."""

import datetime
from typing import Any

from nova.objects.base import Object


class Event(Object, kw_only=True):
    """A step of an action as shown by os-instance-actions."""

    event: str
    start_time: datetime.datetime
    finish_time: datetime.datetime | None = None
    result: str | None = None
    traceback: str | None = None
    host: str | None = None
    details: str | None = None


class Action(Object, kw_only=True):
    """An accepted operation on one instance, and its progress.

    ``step``: name of the current step (None: done). ``attempt``: number of dispatches; reports of an older attempt are
    refused (fencing). ``owner``: the service that runs the step. ``lease_until``: time at which the owner counts as
    lost. ``outcome``: None while the operation runs, then ``success``, ``error`` or ``superseded`` (another operation
    took over). ``undoing``: compensations run backwards. ``queued``: the action waits for the previous operations of
    the instance. ``waits_for``: the external events that wake the action, separated by commas. ``id`` increases with
    each action; 0 until the action is read from the journal."""

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
    """An accepted operation and the answer of its acceptance (of the operation's ``answer_type``)."""

    action: Action
    answer: dict[str, Any] = {}


class Failure(Object, kw_only=True):
    """The cause of a failed step: message for the user, error class and host. ``retry``: another host may succeed.
    ``inside`` (the message with details hidden from users, if it differs) and ``details`` (a traceback) are for
    administrators."""

    code: int = 500
    message: str
    inside: str = ""
    kind: str = ""
    details: str = ""
    host: str | None = None
    retry: bool = True
