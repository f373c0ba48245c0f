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
    """The status page. ``nodes``: failed ones first, then by number of operations; ``node_count`` counts all nodes.
    ``operations``: oldest first; ``unfinished`` counts all of them. ``failures``: latest first. ``boots``: completed
    builds of each of the last minutes, the current minute last; -1 for minutes before the examined actions."""

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


DRAIN, EVACUATE = "drain", "evacuate"  # kind

# State of a drain. While it is stopping, no further move starts.
RUNNING, STOPPING, ENDED = "running", "stopping", "ended"

WAITING, MOVING, MOVED, LEFT, DELETED = "waiting", "moving", "moved", "left", "gone"  # state of a server

LIVE, COLD, OFFLOAD = "live", "cold", "offload"  # ways in which a server leaves the host


class Drain(Object, kw_only=True):
    """A host that is being emptied. ``kind``: drain (the host is up) or evacuate (it is down). At most one per host.
    ``parallel``: maximum number of simultaneous moves. ``cold``: shut down and move running guests that cannot be
    migrated live. ``target``: destination ("": chosen by the scheduler). ``patience``: seconds to wait for another
    operation of a server."""

    uuid: str
    host: str
    kind: str = DRAIN
    state: str = RUNNING
    parallel: int = 1
    cold: bool = False
    target: str = ""
    patience: int = 0
    created_at: datetime.datetime
    ended_at: datetime.datetime | None = None


class DrainedServer(Object, kw_only=True):
    """A server of the host. ``how``: live, cold, offload (of a shelved server) or evacuate ("": not tried yet).
    ``since``: time of the first check; ``started_at``, ``ended_at``: of the move. ``request_id``: of the move's action.
    ``reason``: cause of the state."""

    instance_uuid: str
    drain_uuid: str
    state: str = WAITING
    how: str = ""
    destination: str = ""
    reason: str = ""
    request_id: str = ""
    since: datetime.datetime
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
