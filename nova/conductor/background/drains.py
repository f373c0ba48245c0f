"""Drains of hosts: conductors start the moves of servers, a limited number at a time, and follow them. All state is in
rows, and each move is an operation, so any conductor can continue a drain. The row of a server, its line, is written
before the server's move starts, with the request id that identifies the move after a crash."""

import datetime
import functools
import logging

import sqlalchemy as sa

from nova import context, exception
from nova.conductor import announcer
from nova.conductor.acceptance import start
from nova.conductor.background.drain_plan import Plan, plan
from nova.conductor.core import Core
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.db.hosts import drains, services
from nova.db.hosts.drains import Candidate, Survey
from nova.db.sql import clock
from nova.objects.base import new_uuid
from nova.objects.hosts import drain as drain_states
from nova.objects.hosts.drain import Drain, DrainedServer
from nova.objects.hosts.service import Service
from nova.objects.servers import states
from nova.objects.servers.action import Action
from nova.operations.framework.base import journal
from nova.operations.resize import ConfirmResize
from nova.service.periodic import continuing

LOG = logging.getLogger(__name__)

# Number of leases after which another conductor takes over a drain whose row was not updated.
_LEASES = 2
_SOON = 1.0  # seconds between two checks while a host is drained
_PAGE = 50  # number of servers per query
_REASON = 1000  # maximum number of characters of a stored reason
_HINT = " (with --cold it is shut down and moved)"
# Errors after which a move is tried again later, since an unavailable service may return.
_PASSING = (exception.ServiceUnavailable, exception.ComputeServiceUnavailable)


class _Lost(Exception):
    """The lease of the drain belongs to another conductor."""


def run_periodic(core: Core, engine: Engine) -> float | None:
    """Continue all drains; return the seconds until the next pass, or None if no host is being drained."""
    due_drains = core.db.read(drains.due)
    for drain in due_drains:
        with continuing(LOG, "Cannot continue the drain of host %s", drain.host):
            if core.db.write(functools.partial(drains.take, uuid=drain.uuid, owner=core.name, until=_until())):
                try:
                    _DrainPass(core, engine, drain).go_on()
                except _Lost:
                    LOG.info("Another conductor continues the drain of host %s", drain.host)
                finally:
                    core.db.write(functools.partial(drains.let_go, uuid=drain.uuid, owner=core.name))
    return _SOON if due_drains else None


def _until() -> datetime.datetime:
    return clock.after(_LEASES * CONF.conductor.lease)


class _DrainPass:
    """A pass over one drain, by the conductor that has its lease."""

    def __init__(self, core: Core, engine: Engine, drain: Drain) -> None:
        self.core, self.engine, self.drain = core, engine, drain
        self.moving = 0

    def go_on(self) -> None:
        """Record finished moves, start new ones up to the limit, and end the drain when no move remains."""
        drain = self.drain
        survey = self.core.db.read(functools.partial(drains.survey, drain=drain))
        waiting = self._follow(survey)
        if drain.state == drain_states.RUNNING:
            flags = self.core.db.read(functools.partial(services.flags, hosts=[drain.host])).get(drain.host)
            if flags is None or not flags.disabled:
                LOG.info("Stopping the drain of host %s: the host was enabled", drain.host)
                self.core.db.write(functools.partial(drains.stop, host=drain.host))
                drain.state = drain_states.STOPPING
        left = 0
        if drain.state == drain_states.RUNNING:
            left = self._begin_those_that_waited(waiting, survey)
            left += self._begin_others() + (survey.coming if self._may_wait(drain.created_at) else 0)
        if not left and not self.moving:
            self._end()

    def _may_wait(self, since: datetime.datetime) -> bool:
        return (clock.now() - since).total_seconds() < self.drain.patience

    def _note(self, *lines: DrainedServer) -> None:
        """Write lines and read the state of the drain, which an operator may have stopped. Raises _Lost."""
        state = self.core.db.write(functools.partial(
            drains.note, uuid=self.drain.uuid, owner=self.core.name, until=_until(), lines=lines))
        if state is None:
            raise _Lost
        self.drain.state = state

    def _end(self) -> None:
        if not self.core.db.write(functools.partial(drains.end, uuid=self.drain.uuid, owner=self.core.name)):
            return
        _drain, lines = self.core.db.read(functools.partial(drains.get, host=self.drain.host))
        LOG.info("The drain of host %s (%s) has ended: %d servers were moved, %d remain", self.drain.host,
                 self.drain.kind, sum(line.state == drain_states.MOVED for line in lines),
                 sum(line.state == drain_states.LEFT for line in lines))

    # --- running moves -------------------------------------------------------------------------------
    def _follow(self, survey: Survey) -> list[DrainedServer]:
        """Check the moves in progress; return the lines of servers that wait for their move."""
        waiting, changed = [], []
        for line in survey.lines:
            server = survey.servers.get(line.instance_uuid)
            if server is None or server.deleted:
                changed.append(_ended(line, drain_states.DELETED, "it was deleted"))
            elif line.state == drain_states.MOVING:
                if self._has_ended(line, server, survey):
                    changed.append(line)
                if line.state == drain_states.MOVING:
                    self.moving += 1
                elif line.state == drain_states.WAITING:
                    waiting.append(line)
            elif server.host != self.drain.host:  # Another operation moved the server.
                changed.append(_ended(line, drain_states.MOVED, "moved by another operation", server.host or ""))
            else:
                waiting.append(line)
        if changed:
            self._note(*changed)
        return waiting

    def _has_ended(self, line: DrainedServer, server: Candidate, survey: Survey) -> bool:
        """Return True if the move of a server has ended or must be repeated; record its result in the line."""
        action = survey.actions.get(line.request_id)
        if server.busy or (action is not None and action.outcome is None):
            return False
        if server.host != self.drain.host:
            migration = survey.unconfirmed.get(server.uuid)
            if action is not None and migration is not None and migration.action_uuid == action.uuid:
                return self._confirm(line, server)
            _ended(line, drain_states.MOVED, _why(action) if action else "", server.host or "")
        elif action is None:  # The conductor that wrote the row stopped before it started the action.
            line.state, line.request_id, line.started_at = drain_states.WAITING, "", None
        elif line.how == drain_states.LIVE and self.drain.cold and server.vm_state == states.ACTIVE:
            line.state, line.how, line.reason = drain_states.WAITING, drain_states.COLD, _why(action)
        else:
            hint = _HINT if line.how == drain_states.LIVE and server.vm_state == states.ACTIVE else ""
            _ended(line, drain_states.LEFT, (_why(action) or "it is on this host again") + hint)
        return True

    def _confirm(self, line: DrainedServer, server: Candidate) -> bool:
        """Confirm a cold migration that the drain has started."""
        try:
            start(self.engine, context.admin(), server.uuid, ConfirmResize.name, {})
            return False
        except exception.NovaException as error:
            if self._may_wait(line.started_at or line.since):
                return False
            _ended(line, drain_states.LEFT, f"its migration to {server.host} could not be confirmed: {error.message}",
                   server.host or "")
            return True

    # --- new moves ---------------------------------------------------------------------------------------
    def _room(self) -> bool:
        return self.drain.state == drain_states.RUNNING and self.moving < self.drain.parallel

    def _begin_those_that_waited(self, lines: list[DrainedServer], survey: Survey) -> int:
        """Start the moves of servers that waited; return the number of servers that still wait."""
        left = 0
        for line in lines:
            if self._room():
                server = survey.servers[line.instance_uuid]
                before = (line.state, line.reason)
                self._decide(line, server)
                if (line.state, line.reason) != before and line.state != drain_states.MOVING:
                    self._note(line)
            left += line.state == drain_states.WAITING
        return left

    def _begin_others(self) -> int:
        """Start the moves of servers that have no line yet; return the number of servers whose move was not started."""
        after, left = "", 0
        while self._room():
            page = self.core.db.read(functools.partial(drains.candidates, drain=self.drain, limit=_PAGE, after=after))
            seen = []
            for server in page:
                if not self._room():
                    left += 1
                    continue
                line = DrainedServer(drain_uuid=self.drain.uuid, instance_uuid=server.uuid, since=clock.now())
                self._decide(line, server)
                left += line.state == drain_states.WAITING
                if line.state != drain_states.MOVING:
                    seen.append(line)
            if seen:
                self._note(*seen)
            if len(page) < _PAGE:
                break
            after = page[-1].uuid
        if left or self.moving or self.drain.state != drain_states.RUNNING:
            return left + self.moving
        self._note_servers_with_open_resize()
        return 0

    def _note_servers_with_open_resize(self) -> None:
        reason = "its disks stay on this host until its resize is confirmed or reverted"
        lines = [_ended(DrainedServer(drain_uuid=self.drain.uuid, instance_uuid=uuid, since=clock.now()),
                        drain_states.LEFT, reason, host)
                 for uuid, host in self.core.db.read(functools.partial(drains.moved_out, drain=self.drain))]
        if lines:
            self._note(*lines)

    def _decide(self, line: DrainedServer, server: Candidate) -> None:
        """Start the move of a server, let it wait, or leave the server on the host."""
        wanted = plan(self.drain, server, cold_now=line.how == drain_states.COLD)
        if wanted.operation:
            wanted = self._begin(line, server, wanted)
        if not wanted.reason:
            return
        if wanted.later and self._may_wait(line.since):
            line.state, line.reason = drain_states.WAITING, wanted.reason[:_REASON]
        else:
            _ended(line, drain_states.LEFT, wanted.reason)

    def _begin(self, line: DrainedServer, server: Candidate, wanted: Plan) -> Plan:
        """Start a move; return its plan, or a plan with the reason if the move cannot be started."""
        line.state, line.how, line.reason = drain_states.MOVING, wanted.how, ""
        line.request_id, line.started_at = f"req-{new_uuid()}", clock.now()
        self._note(line)
        ctx = context.RequestContext(overwrite=False, is_admin=True, roles=["admin"], request_id=line.request_id)
        self.moving += 1
        try:
            start(self.engine, ctx, server.uuid, wanted.operation, wanted.request)
            LOG.info("[instance: %s] Moving the server from host %s: %s", server.uuid, self.drain.host, wanted.how)
            return wanted
        except exception.NovaException as error:
            self.moving -= 1
            return self._refused(line, server, wanted, error)

    def _refused(self, line: DrainedServer, server: Candidate, wanted: Plan, error: exception.NovaException) -> Plan:
        line.started_at, line.request_id = None, ""
        busy = isinstance(error, exception.InstanceInvalidState) and error.kwargs.get("attr") == "task_state"
        if busy or isinstance(error, _PASSING):
            return Plan(reason=error.message, later=True)
        if wanted.how == drain_states.LIVE and server.vm_state == states.ACTIVE:
            if self.drain.cold:
                return self._begin(line, server, plan(self.drain, server, cold_now=True))
            return Plan(reason=error.message + _HINT)
        return Plan(reason=error.message)


def _ended(line: DrainedServer, state: str, reason: str, destination: str = "") -> DrainedServer:
    line.state, line.reason, line.destination, line.ended_at = state, reason[:_REASON], destination, clock.now()
    return line


def _why(action: Action) -> str:
    """Return the error message of an action, or ""."""
    if action.outcome == "superseded":
        return "another operation took the server over"
    failure = journal(action).failure if action.outcome == "error" else None
    return (failure.inside or failure.message) if failure else ""


# --- requests of operators ---------------------------------------------------------------------------
def begin(core: Core, wanted: Drain, reason: str) -> Drain:
    """Disable the host (with this reason, unless it is disabled) and start the drain. Raises HostBinaryNotFound,
    ComputeHostNotFound (unknown target), EvacuateToSameHost, DrainConflict, HostIsDown (a drain requires a running
    host), ComputeServiceInUse (an evacuation requires a down host)."""
    def transaction(connection: sa.Connection) -> tuple[Drain, tuple[Service, bool] | None]:
        service = services.lock(connection, services.uuid_of(connection, wanted.host, services.COMPUTE))
        up = services.host_up(connection, wanted.host)
        if wanted.kind == drain_states.DRAIN and not up:
            raise exception.HostIsDown(host=wanted.host)
        if wanted.kind == drain_states.EVACUATE and up:
            raise exception.ComputeServiceInUse(host=wanted.host)
        if wanted.target == wanted.host:
            raise exception.EvacuateToSameHost()
        if wanted.target and not services.compute_exists(connection, wanted.target):
            raise exception.ComputeHostNotFound(host=wanted.target)
        disabled = None if service.disabled else services.update(connection, service.uuid, True, reason, None)
        return drains.begin(connection, wanted), disabled

    drain, disabled = core.db.write(transaction)
    if disabled is not None:
        announcer.publish_services(core, [disabled])
    LOG.info("Draining host %s (%s), %d servers at a time", drain.host, drain.kind, drain.parallel)
    return drain
