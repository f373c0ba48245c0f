"""Operations on servers that are shelved, rescued or soft-deleted for longer than configured."""

import dataclasses
import datetime
import functools
import logging

from nova import context
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.db.servers import servers
from nova.db.sql import clock
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.operations import rescue, shelve
from nova.operations.soft_delete import Reclaim
from nova.service.periodic import continuing

LOG = logging.getLogger(__name__)

_WINDOW = 1000  # number of servers per query
# Servers reclaimed per check, so that many servers deleted together do not delay operations of users.
_RECLAIMED_AT_ONCE = 20


@dataclasses.dataclass(frozen=True)
class _Stay:
    """A limited state. ``since``: the item of system_metadata with its start; ``ends``: the operation that ends it."""

    vm_state: str
    since: str
    ends: str
    what: str


_SHELF = _Stay(states.SHELVED, shelve.SINCE, shelve.ShelveOffload.name, "shelved")
_RESCUE = _Stay(states.RESCUED, rescue.SINCE, rescue.Unrescue.name, "in rescue")


def offload(core: Core, engine: Engine) -> None:
    """Offload shelved servers, including those whose offload failed when it was due."""
    if CONF.shelved_offload_time >= 0:
        _end(core, engine, _SHELF, CONF.shelved_offload_time)


def unrescue(core: Core, engine: Engine) -> None:
    """Unrescue servers after [DEFAULT]rescue_timeout (0: never)."""
    if CONF.rescue_timeout:
        _end(core, engine, _RESCUE, CONF.rescue_timeout)


def _end(core: Core, engine: Engine, stay: _Stay, seconds: int) -> None:
    """Start the operation that ends the state of each overdue server, by the database's clock."""
    if not clock.steady(CONF.service_down_time):
        return
    before = clock.overdue(seconds)
    after: int | None = 0
    while after is not None:
        servers_at_rest, after = core.db.read(functools.partial(
            servers.at_rest, vm_state=stay.vm_state, after=after, window=_WINDOW))
        for server in servers_at_rest:
            if _began(server, stay) > before:
                continue
            with continuing(LOG, "[instance: %s] The server stays %s", server.uuid, stay.what, expected=logging.INFO):
                start(engine, context.admin(), server.uuid, stay.ends, {})
                LOG.info("[instance: %s] The server has been %s for %d s: starting %s", server.uuid, stay.what, seconds,
                         stay.ends)


def _began(server: Instance, stay: _Stay) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(server.system_metadata[stay.since])
    except (KeyError, ValueError):  # There is no start time if reset-state set the state: such a server is not overdue.
        return clock.now()


def reclaim(core: Core, engine: Engine) -> None:
    """Delete servers that were soft-deleted [DEFAULT]reclaim_instance_interval seconds ago (0: never). The age is
    measured by the database's clock, since a server that is deleted because of a wrong clock cannot be restored."""
    interval = CONF.reclaim_instance_interval
    if not interval or not clock.steady(CONF.service_down_time):
        return
    before, reclaimed = clock.overdue(interval), 0
    for uuid in core.db.read(lambda connection: servers.soft_deleted(connection, before, _WINDOW)):
        if reclaimed == _RECLAIMED_AT_ONCE:
            return
        # The request is refused if the user restored the server, or another conductor was faster.
        with continuing(LOG, "[instance: %s] The server is not reclaimed", uuid, expected=logging.INFO):
            start(engine, context.admin(), uuid, Reclaim.name, {"before": before})
            reclaimed += 1
            LOG.info("[instance: %s] Reclaiming the server: it was soft-deleted at least %d s ago", uuid, interval)
