"""Drains: hosts that are being emptied, and the progress of each server."""

import datetime

from nova.objects.base import Object

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
