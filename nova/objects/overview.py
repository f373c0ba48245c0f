"""The deployment at one look: what nova-api's status page shows."""

from __future__ import annotations

import datetime

from nova.objects.base import Object


class Capacity(Object, kw_only=True):
    """Of a resource class (memory in MiB, disk in GiB): what may be claimed in all, and what is claimed."""

    total: int
    used: int


class BinaryOverview(Object, kw_only=True):
    """How many services of a kind there are; ``disabled`` ones are up or down as well."""

    binary: str
    up: int
    down: int
    disabled: int


class NodeOverview(Object, kw_only=True):
    """A compute node, its service and its load. ``failed_builds``: in a row, up to now."""

    host: str
    name: str
    up: bool
    forced_down: bool
    disabled: bool
    reason: str | None = None
    last_seen: datetime.datetime | None = None
    servers: int
    under_way: int
    failed_builds: int
    capacity: dict[str, Capacity] = {}


class OperationOverview(Object, kw_only=True):
    """An operation that has not ended, and whom it waits for.

    ``state``: "waiting" (for a thread or an event), "host", "conductor" (who has it), "undoing" (its compensations
    run), "overdue" (its lease has ended, a conductor will take it over) or "queued" (behind the operation
    ``behind`` of the same server). ``events``: the external events that wake it.
    """

    request_id: str
    server_uuid: str
    server_name: str | None = None
    project_id: str | None = None
    operation: str
    step: str | None = None
    state: str
    owner: str | None = None
    behind: str | None = None
    events: list[str] = []
    attempt: int
    since: datetime.datetime


class FailureOverview(Object, kw_only=True):
    """An operation that failed, and what its user was told."""

    request_id: str
    server_uuid: str
    server_name: str | None = None
    project_id: str | None = None
    operation: str
    at: datetime.datetime | None = None
    message: str | None = None


class Overview(Object, kw_only=True):
    """``nodes``: those in trouble first, then those with the most under way; ``node_count`` is of all.

    ``operations``: the oldest first; ``unfinished`` counts all. ``failures``: the latest first.
    """

    at: datetime.datetime
    node_count: int
    servers: int
    capacity: dict[str, Capacity]
    services: list[BinaryOverview]
    nodes: list[NodeOverview]
    unfinished: int
    operations: list[OperationOverview]
    failures: list[FailureOverview]
