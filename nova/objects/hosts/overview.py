"""Overview of the deployment for the status page of nova-api."""

import datetime

from nova.objects.base import Object


class Capacity(Object, kw_only=True):
    """Capacity of a resource class (memory in MiB, disk in GiB): claimable total and claimed amount."""

    total: int
    used: int


class BinaryOverview(Object, kw_only=True):
    """Number of services per binary. ``disabled`` services also count as up or down."""

    binary: str
    up: int
    down: int
    disabled: int


class NodeOverview(Object, kw_only=True):
    """A compute node, its service and its load. ``failed_builds``: consecutive failures."""

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
    """An operation that has not ended. ``state``: "waiting" (for a thread or an event), "host" or "conductor" (running
    there), "undoing" (compensations run), "overdue" (the lease has ended, a conductor will take over) or "queued"
    (behind the operation ``behind`` of the same server). ``events``: the external events that wake the operation."""

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
    """An operation that failed, with the message for its user."""

    request_id: str
    server_uuid: str
    server_name: str | None = None
    project_id: str | None = None
    operation: str
    at: datetime.datetime | None = None
    message: str | None = None


class Overview(Object, kw_only=True):
    """The status page. ``nodes``: failed nodes first, then by number of operations; ``node_count`` counts all nodes.
    ``operations``: oldest first; ``unfinished`` counts all of them. ``failures``: newest first. ``boots``: completed
    builds of each past minute, oldest first; -1 for minutes before the oldest examined action."""

    at: datetime.datetime
    node_count: int
    servers: int
    capacity: dict[str, Capacity]
    services: list[BinaryOverview]
    nodes: list[NodeOverview]
    unfinished: int
    operations: list[OperationOverview]
    failures: list[FailureOverview]
    boots: list[int] = []
