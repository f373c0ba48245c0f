"""Notifications of an operation, by its step before a transaction and the one after it.

The journal has the events that have begun and not ended, written with the rows of the outbox: no notification is sent
twice or left out, whichever conductor continues the operation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nova import context
from nova.conductor.feeds.outbox import Outbox
from nova.conductor.saga.run import Run
from nova.conf import CONF
from nova.db.sql import clock
from nova.exception import HostDown
from nova.notifications import requests, versioned
from nova.notifications.messages import NotificationBuilder, ServerEvent, publisher
from nova.notifications.operation_events import (
    FATAL_WITHOUT_HOST,
    NO_HOST_TASKS,
    PHASED_EVENTS,
    SINGLE_EVENTS,
    PhasedEvent,
    SingleEvent,
)
from nova.notifications.requests import SchedulerQuery
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.instance import Instance
from nova.objects.notification import Notification
from nova.objects.scheduling import RequestSpec
from nova.objects.usage import audit_period
from nova.operations.base import CONDUCTOR, Operation, Step

_COMPUTE = "nova-compute"


@dataclasses.dataclass
class Notice:
    """The notifications of one transaction. ``told``: the events that are open after it, each with its publisher."""

    told: dict[str, str]
    happened: list[ServerEvent] = dataclasses.field(default_factory=list)
    caught: Caught | None = None
    asked: list[Sought] = dataclasses.field(default_factory=list)
    unplaced: Unplaced | None = None

    def write(self, outbox: Outbox, connection: sa.Connection, ctx: context.RequestContext) -> None:
        """Write the notifications after the server was written: they contain its new state."""
        if self.happened or self.caught or self.asked or self.unplaced:
            teller = NotificationBuilder(outbox.settings, ctx)
            outbox.write(connection, [*(each for what in self.asked for each in what.messages(teller)),
                                      *(self.unplaced.messages(teller) if self.unplaced else ()),
                                      *(self.caught.messages(teller) if self.caught else ()),
                                      *(each for what in self.happened for each in teller.server(what))])


@dataclasses.dataclass(frozen=True)
class Caught:
    """A step that failed on its host."""

    step: str
    host: str
    instance_uuid: str
    failure: Failure

    def messages(self, teller: NotificationBuilder) -> list[Notification]:
        args = {"instance_uuid": self.instance_uuid, "step": self.step}
        return teller.resource("compute.exception", self.instance_uuid, versioned.failure(self.failure), self.step,
                               {"exception": self.failure.message, "args": args}, publisher(_COMPUTE, self.host))


@dataclasses.dataclass(frozen=True)
class Sought:
    """Schedulers were asked for hosts: a request that they found none for has no end."""

    asked: SchedulerQuery
    instance: Instance

    def messages(self, teller: NotificationBuilder) -> list[Notification]:
        spec, of = self.asked.spec, self.instance
        return [each for phase in ("start", *(["end"] if self.asked.succeeded else []))
                for name in (f"scheduler.select_destinations.{phase}",)
                for each in teller.resource(
                    name, of.uuid, requests.request(spec, of), name,
                    {"request_spec": requests.old_request(spec, of)}, publisher("nova-scheduler", CONF.host))]


@dataclasses.dataclass(frozen=True)
class Unplaced:
    """A server got no host, in an operation that ends with that."""

    method: str
    spec: RequestSpec
    instance: Instance
    state: str
    failure: Failure

    def messages(self, teller: NotificationBuilder) -> list[Notification]:
        given = (self.spec, self.instance, self.state, self.failure)
        return teller.resource(
            f"compute_task.{self.method}.error", self.instance.uuid, requests.task(*given),
            f"compute_task.{self.method}", requests.old_task(self.method, *given),
            publisher("nova-conductor", CONF.host), failed=True)


def passed(outbox: Outbox, run: Run, before: Step | None, to: Step | None, failure: Failure | None = None) -> Notice:
    """The operation goes from one step (that has ended or failed now, if any has) to another (None: it ends)."""
    told = run.journal.told
    asked, run.asked[:] = list(run.asked), []
    if not outbox.on or run.inheriting:
        return Notice(told)
    notice = _Passage(run, before, to, failure).notice()
    notice.asked = [Sought(each, run.instance) for each in asked]
    return notice


def superseded(outbox: Outbox, run: Run, failure: Failure) -> Notice:
    """Notify that open events which can fail have failed, because another operation took the server."""
    if not outbox.on or run.inheriting:
        return Notice({})
    return _Passage(run, None, None, failure).notice()


def accepted(outbox: Outbox, operation: Operation, instance: Instance) -> Notice:
    if not outbox.on:
        return Notice({})
    return Notice({}, [_moment(each, instance) for each in SINGLE_EVENTS.get(operation.name, ()) if not each.after])


class _Passage:
    """A transaction of an operation that sends notifications."""

    def __init__(self, run: Run, before: Step | None, to: Step | None, failure: Failure | None) -> None:
        self.run, self.before, self.to, self.failure = run, before, to, failure
        self.failing = failure is not None or run.action.undoing
        self.data: Any = run.own.data
        parts = [part for part in PHASED_EVENTS.get(run.own.name, ()) if not part.when or getattr(self.data, part.when)]
        self.forwards = [part for part in parts if not part.undo]
        self.backwards = [part for part in parts if part.undo]
        self._order = {step.name: index for index, step in enumerate(run.own.steps)}
        self._notice = Notice(dict(run.journal.told))

    def notice(self) -> Notice:
        undoing = self.run.action.undoing and self.to is not None
        self._notice.caught = self._caught()
        self._notice.unplaced = self._unplaced()
        self._begin(self._begun_here())
        for part in reversed(self.forwards):
            if part.event in self._notice.told and (self.failing or not self._covers(part, self.to)):
                self._end(part, "error" if self.failing else "end")
        for part in self.backwards:
            if part.event in self._notice.told and not (undoing and self._covers(part, self.to)):
                self._end(part, "end")
        if not self.failing and self.before is not None:
            self._tell_moments(self.before)
        if self.to is not None and self.to.place != CONDUCTOR:
            to = self.to
            self._begin([part for part in self.backwards if part.last == to.name] if undoing else
                        [part for part in self.forwards if self._covers(part, to)], ordered=True)
        return self._notice

    def _caught(self) -> Caught | None:
        failure, step = self.failure, self.before
        if failure is None or step is None or step.place == CONDUCTOR or failure.kind == HostDown.__name__:
            return None
        return Caught(step.name, self.run.own.host_of(step), self.run.instance.uuid, failure)

    def _unplaced(self) -> Unplaced | None:
        """A failed search is told unless the operation goes on with another host."""
        failure, step, run = self.failure, self.before, self.run
        method = NO_HOST_TASKS.get(run.own.name)
        if failure is None or step is None or not step.calls_scheduler or not method or not run.action.undoing:
            return None
        return Unplaced(method, self.data.spec, run.instance,
                        states.ERROR if run.own.name in FATAL_WITHOUT_HOST else run.instance.vm_state,
                        run.journal.failure or failure)

    def _begun_here(self) -> list[PhasedEvent]:
        """Parts that a step of the conductor has begun: that is told when it has ended, for nobody is told of its
        beginning."""
        before = self.before
        if before is None or before.place != CONDUCTOR or (self.run.action.undoing and self.failure is None):
            return []
        return [part for part in self.forwards if self._covers(part, before) and (part.fails or not self.failing)]

    def _covers(self, part: PhasedEvent, step: Step | None) -> bool:
        if step is None:
            return False
        last = self._order[part.last] if part.last else len(self._order)
        return self._order[part.first] <= self._order[step.name] <= last

    def _begin(self, parts: Sequence[PhasedEvent], ordered: bool = False) -> None:
        """``ordered``: a host was told to do it."""
        for part in parts:
            if part.event not in self._notice.told:
                local = part.local and not ordered
                by = publisher(part.local, CONF.host) if local else publisher(part.binary, getattr(self.data, part.at))
                self._notice.told[part.event] = by
                self._happened(part, "start", None)

    def _end(self, part: PhasedEvent, phase: str) -> None:
        if phase == "end" or part.fails:
            self._happened(part, phase, (self.failure or self.run.journal.failure) if phase == "error" else None)
        del self._notice.told[part.event]

    def _happened(self, part: PhasedEvent, phase: str, failure: Failure | None) -> None:
        instance = self.run.instance
        more = part.fields(self.data, instance) if part.fields else {}
        self._notice.happened.append(
            ServerEvent(part.event, phase, self._notice.told[part.event], instance, failure, more))

    def _tell_moments(self, before: Step) -> None:
        self._notice.happened += [
            _moment(each, self.run.instance) for each in SINGLE_EVENTS.get(self.run.own.name, ())
            if each.after == before.name and (not each.when or getattr(self.data, each.when))]


def _moment(of: SingleEvent, instance: Instance) -> ServerEvent:
    if of.binary != _COMPUTE:
        return ServerEvent(of.event, "", publisher(of.binary, CONF.host), instance)
    now = clock.now()
    _begin, begun = audit_period(CONF.instance_usage_audit_period, now)
    return ServerEvent(of.event, "", publisher(_COMPUTE, instance.host), instance, more={
        "audit_period": versioned.audit_period(begun, now)})
