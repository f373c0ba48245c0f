"""An action that a conductor runs: its journal, its operation and its events."""

from __future__ import annotations

from typing import Any

import msgspec

from nova import exception
from nova.db import services
from nova.db.sql import clock
from nova.notifications.requests import SchedulerQuery
from nova.objects.action import Action, Event, Failure
from nova.objects.instance import Instance
from nova.objects.volume import journal_without_secrets
from nova.operations import REGISTRY
from nova.operations.base import CONDUCTOR, Inherited, Journal, Operation, Step, journal


class Run:
    """An action that this conductor runs.

    While it compensates for a superseded operation, ``operation`` is that one. Raises UnknownOperation for an action
    that this release does not know.
    """

    def __init__(self, action: Action, instance: Instance) -> None:
        self.action = action
        self.instance = instance
        self.journal: Journal = journal(action)
        # What schedulers were asked, and nobody was told yet.
        self.asked: list[SchedulerQuery] = []
        self.own: Operation = _operation(action.operation or "", instance, self.journal.data)
        self.operation: Operation = self.own
        if self.journal.inherited:
            self._enter(self.journal.inherited[-1])

    def _enter(self, inherited: Inherited) -> None:
        self.operation = _operation(inherited.operation, self.instance, inherited.data)
        self.operation.taken_over = True

    @property
    def inheriting(self) -> bool:
        """Return True if it still compensates for a superseded operation."""
        return self.operation is not self.own

    def disinherit(self) -> None:
        """Continue after the compensation of a superseded operation: with the one before it, or the first own step."""
        self.journal.inherited = self.journal.inherited[:-1]
        if self.journal.inherited:
            self._enter(self.journal.inherited[-1])
        else:
            self.operation = self.own
            self.action.undoing = False
            self.own.relocate()

    @property
    def never_began(self) -> bool:
        """Return True if it is queued and has not begun: it did not let another one go ahead."""
        return self.action.queued and self.journal.waits_until is None

    def renew(self, instance: Instance) -> None:
        """Go on with the instance as it is now."""
        self.instance = self.own.instance = self.operation.instance = instance

    def first(self) -> Step | None:
        """Return the step after :meth:`disinherit`: of the next compensation, or the first own one."""
        if self.inheriting:
            name = self.journal.inherited[-1].step
            return self.operation.step_named(name) if name else None
        return self.operation.first()

    @property
    def step(self) -> Step | None:
        return self.operation.step_named(self.action.step) if self.action.step else None

    def furthest(self, step: Step) -> Step:
        """Return the last step that may have run after ``step`` was sent: a host does not report each one."""
        return step if step.place == CONDUCTOR else self.operation.batch(step, self.action.undoing)[-1]

    @property
    def waits_for(self) -> str:
        """Return what its current step waits for: "scheduler", one of OUTSIDE, or "database" alone."""
        step = self.step
        if step is not None and step.external:
            return step.external
        chooses = step is not None and step.calls_scheduler and not self.action.undoing
        return "scheduler" if chooses and not self.operation.data.selected else "database"

    @property
    def label(self) -> str:
        """Return the current step for operators: "build.place", "undo build.place", or "build" at the end."""
        at = f".{self.action.step}" if self.action.step else ""
        return f"{'undo ' if self.action.undoing else ''}{self.operation.name}{at}"

    def payload(self, told: dict[str, str] | None = None) -> dict[str, Any]:
        """Return what the journal stores; ``told``: the notified events that are open then, if they change."""
        if self.inheriting:
            self.journal.inherited[-1].data = msgspec.to_builtins(self.operation.data)
        self.journal.data = msgspec.to_builtins(self.own.data)
        now = self.journal if told is None else msgspec.structs.replace(self.journal, told=told)
        return msgspec.to_builtins(now)  # type: ignore[no-any-return]

    def ordered(self) -> Action:
        """The action as a host gets it: what it runs, and nothing that it does not need."""
        data = Journal(data=msgspec.to_builtins(self.operation.data), trace=self.journal.trace)
        return msgspec.structs.replace(self.action, operation=self.operation.name, events=[],
                                       payload=journal_without_secrets(msgspec.to_builtins(data)))

    def opened(self, step: Step, events: list[Event] | None = None) -> list[Event]:
        """The events with the step's one open."""
        events = list(self.action.events if events is None else events)
        name = step.event
        if name is None or any(event.event == name and event.finish_time is None for event in events):
            return events
        return [*events, Event(event=name, start_time=clock.now(), host=self.operation.host_of(step) or None)]

    def closed(self, step: Step | None, failure: Failure | None, at_end: bool = False) -> list[Event]:
        """The events after ``step`` ended: an event stays open while the next step shares its name."""
        self._note_conductor(step, failure)
        follower = self.operation.after(step) if step is not None else None
        goes_on = follower is not None and step is not None and follower.event == step.event
        if failure is None and not at_end and not self.action.undoing and goes_on:
            return list(self.action.events)
        return ended(self.action.events, failure)

    def _note_conductor(self, step: Step | None, failure: Failure | None) -> None:
        """The event of a conductor step is opened when it has ended: nobody is told that one begins."""
        if step is None or step.place != CONDUCTOR or (self.action.undoing and failure is None):
            return
        events = self.action.events
        name = step.event or ("conductor_schedule_and_build_instances" if failure and not events else None)
        if name and not any(event.event == name and event.finish_time is None for event in events):
            start = max([event.finish_time for event in events if event.finish_time], default=self.action.start_time)
            self.action.events = [*events, Event(event=name, start_time=start)]


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


def current(action: Action | None, uuid: str, step: str, attempt: int) -> Action:
    """The action ``uuid`` as it was read, of which somebody holds this attempt.

    Raises StaleReport when another attempt is the current one, or the action has ended.
    """
    if action is not None and action.outcome is None and action.attempt < attempt:
        # A replica that is behind: whoever asks tries again, and must not take it for a refusal.
        raise exception.ServiceUnavailable("The database does not show this attempt yet.")
    if action is None or action.outcome is not None or action.attempt != attempt:
        raise exception.StaleReport(action=uuid, step=step, attempt=attempt)
    return action


def owner_of(host: str, binary: str = services.COMPUTE) -> str:
    """The name under which a service of a host (by default its compute) holds leases."""
    return f"{binary.removeprefix('nova-')}@{host}"


def host_of(owner: str | None) -> str:
    """The host whose compute is this owner of leases; "" if it is none."""
    prefix, found, host = (owner or "").partition("@")
    return host if found and prefix == "compute" else ""


def inherited(run: Run) -> list[Inherited]:
    """Return the operations that a successor of this unfinished action must compensate for, the last one first."""
    before = list(run.journal.inherited)
    if run.inheriting:
        before[-1].step = run.action.step or ""
        own = None  # it never came to its own steps
    else:
        own = _from(run)
    mine = Inherited(operation=run.own.name, data=msgspec.to_builtins(run.own.data), step=own.name if own else "")
    if own is None and type(run.own).superseded is Operation.superseded:
        return before
    return [mine, *before]


def _from(run: Run) -> Step | None:
    """The step whose compensation comes first. A step of a host may have begun, and so may an external one."""
    step = run.step
    if step is None:
        return None
    if run.never_began:
        return step if run.own.owes_an_end else None
    if not run.action.undoing:
        step = run.furthest(step)
    if run.action.undoing or (step.undo and (step.place != CONDUCTOR or step.external)):
        return step
    return run.operation.before(step)
