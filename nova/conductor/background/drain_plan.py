"""The plan of a drain: the operation by which a server leaves the host, or the reason why it stays."""

import dataclasses
from typing import Any

from nova.db.hosts.drains import Candidate
from nova.objects.hosts import drain as drain_types
from nova.objects.hosts.drain import Drain
from nova.objects.servers import states
from nova.operations.evacuate import Evacuate
from nova.operations.live_migrate import LiveMigrate
from nova.operations.resize import Migrate
from nova.operations.shelve import ShelveOffload


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan for a server: the kind of move (``how``) and the ``operation`` with its ``request``, or the ``reason``
    why the server is not moved. ``later``: the reason may pass, so check the server again."""

    how: str = ""
    operation: str = ""
    request: dict[str, Any] = dataclasses.field(default_factory=dict)
    reason: str = ""
    later: bool = False


_STAYS = {states.SUSPENDED: "it is suspended: its memory cannot be moved; resume it first",
          states.RESCUED: "it is being rescued: unrescue it first",
          states.RESIZED: "its resize waits to be confirmed or reverted",
          states.ERROR: "it is in ERROR: reboot it hard, evacuate it or reset its state first",
          states.SOFT_DELETED: "it is soft-deleted: it leaves the host when it is reclaimed"}


def plan(drain: Drain, server: Candidate, cold_now: bool = False) -> Plan:
    """Return the plan for a server. ``cold_now``: its live migration failed, and it may be stopped."""
    proposed = _evacuation(drain, server) if drain.kind == drain_types.EVACUATE else _move(drain, server, cold_now)
    waits = server.task_state == states.DELETING or server.vm_state == states.BUILDING
    if waits or (server.busy and drain.kind == drain_types.DRAIN):
        what = f": its task_state is {server.task_state}" if server.task_state else ""
        return Plan(how=proposed.how, reason=f"another operation runs on it{what}", later=True)
    return proposed


def _move(drain: Drain, server: Candidate, cold_now: bool) -> Plan:
    target: dict[str, Any] = {"host": drain.target or None}
    if server.vm_state == states.STOPPED or (server.vm_state == states.ACTIVE and cold_now):
        return Plan(drain_types.COLD, Migrate.name, target)
    if server.vm_state in (states.ACTIVE, states.PAUSED):
        return Plan(drain_types.LIVE, LiveMigrate.name, target)
    return _other(server)


def _evacuation(drain: Drain, server: Candidate) -> Plan:
    if server.vm_state in (states.ACTIVE, states.STOPPED, states.ERROR):
        return Plan(drain_types.EVACUATE, Evacuate.name, {"host": drain.target or None})
    if server.vm_state == states.PAUSED:
        return Plan(reason="it is paused: only servers that are active, stopped or in ERROR are evacuated")
    return _other(server)


def _other(server: Candidate) -> Plan:
    if server.vm_state == states.SHELVED:
        return Plan(drain_types.OFFLOAD, ShelveOffload.name)
    return Plan(reason=_STAYS.get(server.vm_state, f"it is {server.vm_state}"))
