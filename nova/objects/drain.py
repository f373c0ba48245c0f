"""Hosts that are emptied: what was asked for, and what becomes of each server."""

from __future__ import annotations

import datetime

from nova.objects.base import Object

# kind
DRAIN = "drain"
EVACUATE = "evacuate"

# state of a drain: nothing is begun any more while it is stopping
RUNNING = "running"
STOPPING = "stopping"
ENDED = "ended"

# state of a server
WAITING = "waiting"
MOVING = "moving"
MOVED = "moved"
LEFT = "left"
GONE = "gone"

# how a server leaves
LIVE = "live"
COLD = "cold"
OFFLOAD = "offload"


class Drain(Object, kw_only=True):
    """A host that is emptied: ``kind`` drain (it is up) or evacuate (it is down). Every host has one at most.

    ``parallel``: so many servers move at the same time. ``cold``: running guests that cannot be migrated live are shut
    down and moved. ``target``: the host where they go ("": the scheduler chooses). ``patience``: seconds that a server
    is waited for which something else is done with.
    """

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
    """A server of the host. ``how``: live, cold, offload (off the shelf) or evacuate ("": nothing was tried).

    ``since``: when it was first looked at; ``started_at``, ``ended_at``: of its move. ``request_id``: that of the
    move's action. ``reason``: why it is where it is.
    """

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
