"""An action that a conductor runs: its journal, its operation and its events."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.db.hosts import services
from nova.db.servers import servers
from nova.db.sql import clock
from nova.notifications.requests import SchedulerQuery
from nova.objects.servers.action import Action, Event, Failure
from nova.objects.servers.instance import Instance, without_secrets
from nova.objects.volumes.volume import journal_without_secrets
from nova.operations import REGISTRY
from nova.operations.framework.base import CONDUCTOR, Cleanup, Inherited, Journal, Operation, Step, journal

LOG = logging.getLogger(__name__)


class Run:
    """An action that this conductor runs. ``own``: the operation of the action. ``operation``: the same, or the
    superseded operation that the run compensates now. Raises UnknownOperation."""

    def __init__(self, action: Action, instance: Instance) -> None:
        self.action, self.instance = action, instance
        self.journal: Journal = journal(action)
        self.scheduler_queries: list[SchedulerQuery] = []  # requests to schedulers that are not yet notified
        self.own: Operation = _operation(action.operation or "", instance, self.journal.data)
        self.operation: Operation = self.own
        if self.journal.inherited:
            self._enter(self.journal.inherited[-1])

    def _enter(self, inherited: Inherited) -> None:
        self.operation = _operation(inherited.operation, self.instance, inherited.data)
        self.operation.taken_over = True

    def copy(self) -> Run:
        """Return a copy of this run with an action, a journal and data of its own. The instance is shared."""
        other = Run(msgspec.structs.replace(self.action, payload=self.payload()), self.instance)
        other.scheduler_queries = list(self.scheduler_queries)
        return other

    @property
    def inheriting(self) -> bool:
        """Return True while the run compensates a superseded operation."""
        return self.operation is not self.own

    def disinherit(self) -> None:
        """End the compensation of one superseded operation; continue with the next one, or with the own steps."""
        self.journal.inherited = self.journal.inherited[:-1]
        if self.journal.inherited:
            self._enter(self.journal.inherited[-1])
        else:
            self.operation = self.own
            self.action.undoing = False
            self.own.relocate()

    @property
    def never_began(self) -> bool:
        """Return True if the action is queued and has not run a step. (A waiting step can also return to the queue.)"""
        return self.action.queued and self.journal.waits_until is None

    def use_instance(self, instance: Instance) -> None:
        """Continue with a newly read instance."""
        self.instance = self.own.instance = self.operation.instance = instance

    def first(self) -> Step | None:
        """Return the first step of the current operation after :meth:`disinherit`."""
        if self.inheriting:
            name = self.journal.inherited[-1].step
            return self.operation.step_named(name) if name else None
        return self.operation.first()

    @property
    def step(self) -> Step | None:
        return self.operation.step_named(self.action.step) if self.action.step else None

    def furthest(self, step: Step) -> Step:
        """Return the last step that a host may have executed after ``step`` was sent. Hosts do not report each step."""
        return step if step.place == CONDUCTOR else self.operation.batch(step, self.action.undoing)[-1]

    @property
    def waits_for(self) -> str:
        """Return the thread pool class of the current step: "scheduler", one of OUTSIDE, or "database"."""
        step = self.step
        if step is not None and step.external:
            return step.external
        selects = step is not None and step.calls_scheduler and not self.action.undoing
        return "scheduler" if selects and not self.operation.data.selected else "database"

    @property
    def label(self) -> str:
        """Return the current step for operators: "build.place", "undo build.place", or "build" at the end."""
        at = f".{self.action.step}" if self.action.step else ""
        return f"{'undo ' if self.action.undoing else ''}{self.operation.name}{at}"

    @property
    def current_cleanup(self) -> Cleanup | None:
        """Return the cleanup of the current step, or None if the step calls no external service."""
        step = self.step
        return cleanup_of(self.operation, step) if step is not None and step.external and not self.never_began else None

    def payload(self, open_events: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the payload to store. ``open_events`` replaces those of the journal if not None."""
        if self.inheriting:
            self.journal.inherited[-1].data = msgspec.to_builtins(self.operation.data)
        self.journal.data = msgspec.to_builtins(self.own.data)
        content = self.journal if open_events is None else msgspec.structs.replace(
            self.journal, open_events=open_events)
        return msgspec.to_builtins(content)  # type: ignore[no-any-return]

    def ordered(self) -> Action:
        """Return the action for the message that sends steps to a host, reduced to what the host needs."""
        data = Journal(data=msgspec.to_builtins(self.operation.data), trace=self.journal.trace)
        return msgspec.structs.replace(self.action, operation=self.operation.name, events=[],
                                       payload=journal_without_secrets(msgspec.to_builtins(data)))

    def opened(self, step: Step) -> list[Event]:
        """Return the events, with the event of ``step`` open. A compensation has no event."""
        events, name = list(self.action.events), step.event
        if name is None or self.action.undoing or any(
                event.event == name and event.finish_time is None for event in events):
            return events
        return [*events, Event(event=name, start_time=clock.now(), host=self.operation.host_of(step) or None)]

    def closed(self, step: Step | None, failure: Failure | None, at_end: bool = False) -> list[Event]:
        """Return the events after ``step`` ended. An event stays open while the next step has the same event name."""
        self._add_missing_event(step, failure)
        follower = self.operation.after(step) if step is not None else None
        continues = follower is not None and step is not None and follower.event == step.event
        if failure is None and not at_end and not self.action.undoing and continues:
            return list(self.action.events)
        return ended(self.action.events, failure)

    def _add_missing_event(self, step: Step | None, failure: Failure | None) -> None:
        """Add the event of a step that has ended without an event, since no transaction is written when a conductor
        step starts. A failure is always shown: if its step has no event name, under the name of the previous event."""
        if step is None or self.action.undoing or (failure is None and step.place != CONDUCTOR):
            return
        events, name = self.action.events, step.event
        unfinished = [event.event for event in events if event.finish_time is None]
        if name is None and failure and not unfinished:
            if events:
                name = events[-1].event
            elif self.operation.name == "build":
                name = "conductor_schedule_and_build_instances"
            else:
                name = next((item.event for item in self.operation.steps if item.event), None)
        if name and name not in unfinished:
            start = max([event.finish_time for event in events if event.finish_time], default=self.action.start_time)
            self.action.events = [*events, Event(event=name, start_time=start)]


def cleanup_of(operation: Operation, step: Step) -> Cleanup:
    """Return the cleanup of what a step created, or may create, in external services. It contains no secret."""
    return Cleanup(operation=operation.name, step=step.name,
                   data=journal_without_secrets(msgspec.to_builtins(operation.data)),
                   block_devices=without_secrets(operation.instance).block_devices,
                   network_info=operation.instance.network_info)


def ended(events: list[Event], failure: Failure | None) -> list[Event]:
    """Return the events, with an end time in those that are open."""
    details = (failure.inside or failure.message) if failure else None
    return [event if event.finish_time is not None else msgspec.structs.replace(
        event, finish_time=clock.now(), result="Error" if failure else "Success",
        traceback=failure.details if failure else None, details=details)
        for event in events]


def _operation(name: str, instance: Instance, data: dict[str, Any]) -> Operation:
    if name not in REGISTRY:
        raise exception.UnknownOperation(name=name)
    return REGISTRY[name](instance, data)


def read_run(connection: sa.Connection, action: Action) -> Run | None:
    """Return the run of an action, or None if this release cannot read its operation, step or data."""
    try:
        run = Run(action, servers.get(connection, action.instance_uuid, deleted=True))
        run.operation.step_named(action.step or run.operation.steps[0].name)
        return run
    except (exception.NovaException, msgspec.ValidationError) as error:
        LOG.warning("[instance: %s] Cannot read operation %s, leaving it to a conductor of a newer release: %s",
                    action.instance_uuid, action.operation, error)
        return None


def current(action: Action | None, uuid: str, step: str, attempt: int) -> Action:
    """Return ``action`` (the row ``uuid``, or None if it is missing) if ``attempt`` is its current attempt. Raises
    StaleReport if not, or if it has ended; ServiceUnavailable if a database replica does not have the attempt yet."""
    if action is not None and action.outcome is None and action.attempt < attempt:
        raise exception.ServiceUnavailable("The database does not contain this attempt yet. Retry.")
    if action is None or action.outcome is not None or action.attempt != attempt:
        raise exception.StaleReport(action=uuid, step=step, attempt=attempt)
    return action


def owner_of(host: str, binary: str = services.COMPUTE) -> str:
    """Return the owner name of the leases of a service on a host, by default of its nova-compute."""
    return f"{binary.removeprefix('nova-')}@{host}"


def host_of(owner: str | None) -> str:
    """Return the host if the owner of a lease is a nova-compute, else ""."""
    prefix, separator, host = (owner or "").partition("@")
    return host if separator and prefix == "compute" else ""


def inherited(run: Run) -> list[Inherited]:
    """Return the operations that a successor of this unfinished action must compensate, the newest operation first."""
    before = list(run.journal.inherited)
    if run.inheriting:
        before[-1].step = run.action.step or ""
        own = None  # no step of the action itself has run
    else:
        own = _first_compensation(run)
    mine = Inherited(operation=run.own.name, data=msgspec.to_builtins(run.own.data), step=own.name if own else "")
    if own is None and type(run.own).superseded is Operation.superseded:
        return before
    return [mine, *before]


def _first_compensation(run: Run) -> Step | None:
    """Return the step to compensate first, or None. The current step counts if it runs on a host or is external."""
    step = run.step
    if step is None:
        return None
    if run.never_began:
        return step if run.own.service_awaits_end else None
    if not run.action.undoing:
        step = run.furthest(step)
    if run.action.undoing or (step.undo and (step.place != CONDUCTOR or step.external)):
        return step
    return run.operation.before(step)
