"""Notifications of an operation, derived from the step before a transaction and the step after it. The journal contains
the notified events that have started and not ended. It is written in the same transaction as the rows of the outbox, so
no notification is sent twice or omitted, whichever conductor continues the operation."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from nova import context
from nova.conductor.feeds.outbox import Outbox
from nova.conductor.saga.run import Run
from nova.conf import CONF
from nova.db.sql import clock
from nova.exception import ClaimLost, HostDown
from nova.notifications import operation_events, requests, versioned
from nova.notifications.messages import NotificationBuilder, ServerEvent, publisher
from nova.notifications.operation_events import PhasedEvent, SingleEvent
from nova.notifications.requests import SchedulerQuery
from nova.objects.accounts.notification import Notification
from nova.objects.accounts.usage import audit_period
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.operations.framework.base import CONDUCTOR, Operation, Step

_COMPUTE = "nova-compute"


@dataclasses.dataclass
class TransitionNotifications:
    """The notifications of one transaction. ``open_events``: events that are open after it, with their publishers.
    ``makers`` return the notifications that are not events of the server."""

    open_events: dict[str, str]
    server_events: list[ServerEvent] = dataclasses.field(default_factory=list)
    makers: list[Callable[[NotificationBuilder], list[Notification]]] = dataclasses.field(default_factory=list)

    def write(self, outbox: Outbox, connection: sa.Connection, ctx: context.RequestContext) -> None:
        """Write the notifications to the outbox. The server must be written before: they contain its new state."""
        if self.makers or self.server_events:
            builder = NotificationBuilder(outbox.settings, ctx)
            outbox.write(connection, [*(message for make in self.makers for message in make(builder)),
                                      *(message for event in self.server_events for message in builder.server(event))])


def _scheduler_request(query: SchedulerQuery, instance: Instance, builder: NotificationBuilder) -> list[Notification]:
    """Return the notifications of a scheduler request. There is no "end" if no host was found."""
    messages = []
    for phase in ("start", "end") if query.succeeded else ("start",):
        name = f"scheduler.select_destinations.{phase}"
        messages += builder.resource(
            name, instance.uuid, requests.request(query.spec, instance), name,
            {"request_spec": requests.old_request(query.spec, instance)}, publisher("nova-scheduler", CONF.host))
    return messages


def of_transition(outbox: Outbox, run: Run, before: Step | None, to: Step | None,
                  failure: Failure | None = None) -> TransitionNotifications:
    """Return the notifications of an operation that goes from one step to another. ``before``: the step that has ended
    or failed; None for a compensation. ``to``: the next step, or None at the end of the operation."""
    queries, run.scheduler_queries[:] = list(run.scheduler_queries), []
    if not outbox.on or run.inheriting:
        return TransitionNotifications(run.journal.open_events)
    notifications = _Transition(run, before, to, failure).notifications()
    notifications.makers[:0] = [functools.partial(_scheduler_request, query, run.instance) for query in queries]
    return notifications


def of_superseded(outbox: Outbox, run: Run, failure: Failure) -> TransitionNotifications:
    """Return error notifications of the open events, because another operation took the server."""
    if not outbox.on or run.inheriting:
        return TransitionNotifications({})
    return _Transition(run, None, None, failure).notifications()


def of_acceptance(outbox: Outbox, operation: Operation, instance: Instance) -> TransitionNotifications:
    if not outbox.on:
        return TransitionNotifications({})
    return TransitionNotifications({}, [
        _single_event(event, instance)
        for event in operation_events.SINGLE_EVENTS.get(operation.name, ()) if not event.after])


class _Transition:
    """A transition of an operation between two steps, for which notifications are sent."""

    def __init__(self, run: Run, before: Step | None, to: Step | None, failure: Failure | None) -> None:
        self.run, self.before, self.to, self.failure = run, before, to, failure
        self.failing = failure is not None or run.action.undoing
        self.data: Any = run.own.data
        events = [event for event in operation_events.PHASED_EVENTS.get(run.own.name, ())
                  if not event.when or getattr(self.data, event.when)]
        self.forwards = [event for event in events if not event.undo]
        self.backwards = [event for event in events if event.undo]
        self._order = {step.name: index for index, step in enumerate(run.own.steps)}
        self._result = TransitionNotifications(dict(run.journal.open_events))

    def notifications(self) -> TransitionNotifications:
        undoing = self.run.action.undoing and self.to is not None
        self._add_no_host()
        self._add_host_failure()
        self._start(self._started_on_conductor())
        for event in reversed(self.forwards):
            if event.event in self._result.open_events and (self.failing or not self._covers(event, self.to)):
                self._end(event, "error" if self.failing else "end")
        for event in self.backwards:
            if event.event in self._result.open_events and not (undoing and self._covers(event, self.to)):
                self._end(event, "end")
        if not self.failing and self.before is not None:
            self._result.server_events += [
                _single_event(event, self.run.instance)
                for event in operation_events.SINGLE_EVENTS.get(self.run.own.name, ())
                if event.after == self.before.name and (not event.when or getattr(self.data, event.when))]
        if self.to is not None and self.to.place != CONDUCTOR:
            to = self.to
            self._start([event for event in self.backwards if event.last == to.name] if undoing else
                        [event for event in self.forwards if self._covers(event, to)], on_host=True)
        return self._result

    def _add_host_failure(self) -> None:
        """Add the notification of a step that failed on its host."""
        failure, step, uuid = self.failure, self.before, self.run.instance.uuid
        if failure is None or step is None or step.place == CONDUCTOR or failure.kind == HostDown.__name__:
            return
        legacy = {"exception": failure.message, "args": {"instance_uuid": uuid, "step": step.name}}
        by = publisher(_COMPUTE, self.run.own.host_of(step))
        self._result.makers.append(lambda builder: builder.resource(
            "compute.exception", uuid, versioned.failure(failure), step.name, legacy, by))

    def _add_no_host(self) -> None:
        """Add the notification of a failed search for a host, unless the operation continues with another host."""
        failure, step, run = self.failure, self.before, self.run
        method = operation_events.NO_HOST_TASKS.get(run.own.name)
        if (failure is None or failure.kind == ClaimLost.__name__ or step is None or not step.calls_scheduler
                or not method or not run.action.undoing):
            return
        state = states.ERROR if run.own.name in operation_events.FATAL_WITHOUT_HOST else run.instance.vm_state
        content = (self.data.spec, run.instance, state, run.journal.failure or failure)
        self._result.makers.append(lambda builder: builder.resource(
            f"compute_task.{method}.error", run.instance.uuid, requests.task(*content), f"compute_task.{method}",
            requests.old_task(method, *content), publisher("nova-conductor", CONF.host), failed=True))

    def _started_on_conductor(self) -> list[PhasedEvent]:
        """Return the events that the previous step started, if it ran on the conductor. The start of a conductor step
        writes no transaction, so the "start" notification is sent when the step has ended."""
        before = self.before
        if before is None or before.place != CONDUCTOR:
            return []
        return [event for event in self.forwards if self._covers(event, before) and (event.fails or not self.failing)]

    def _covers(self, event: PhasedEvent, step: Step | None) -> bool:
        if step is None:
            return False
        last = self._order[event.last] if event.last else len(self._order)
        return self._order[event.first] <= self._order[step.name] <= last

    def _start(self, events: Sequence[PhasedEvent], on_host: bool = False) -> None:
        """Add "start" notifications. ``on_host``: the events are published for the host that gets the next steps."""
        for event in events:
            if event.event not in self._result.open_events:
                local = event.local and not on_host
                self._result.open_events[event.event] = (
                    publisher(event.local, CONF.host) if local
                    else publisher(event.binary, getattr(self.data, event.at)))
                self._add(event, "start", None)

    def _end(self, event: PhasedEvent, phase: str) -> None:
        if phase == "end" or event.fails:
            self._add(event, phase, (self.failure or self.run.journal.failure) if phase == "error" else None)
        del self._result.open_events[event.event]

    def _add(self, event: PhasedEvent, phase: str, failure: Failure | None) -> None:
        instance = self.run.instance
        more = event.fields(self.data, instance) if event.fields else {}
        self._result.server_events.append(
            ServerEvent(event.event, phase, self._result.open_events[event.event], instance, failure, more))


def _single_event(event: SingleEvent, instance: Instance) -> ServerEvent:
    if event.binary != _COMPUTE:
        return ServerEvent(event.event, "", publisher(event.binary, CONF.host), instance)
    now = clock.now()
    _begin, begun = audit_period(CONF.instance_usage_audit_period, now)
    return ServerEvent(event.event, "", publisher(_COMPUTE, instance.host), instance, more={
        "audit_period": versioned.audit_period(begun, now)})
