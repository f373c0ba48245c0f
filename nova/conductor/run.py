"""One action in the hands of a conductor: its journal, its operation and its events."""

from __future__ import annotations

from typing import Any

import msgspec

from nova.db import services
from nova.objects.action import Action, Event, Failure
from nova.objects.base import utcnow
from nova.objects.instance import Instance
from nova.operations import REGISTRY
from nova.operations.base import CONDUCTOR, Journal, Operation, Step, journal


class Run:
    """One action in the hands of this conductor."""

    def __init__(self, action: Action, instance: Instance) -> None:
        self.action = action
        self.instance = instance
        self.journal: Journal = journal(action)
        self.operation: Operation = REGISTRY[action.operation or ""](instance, self.journal.data)

    @property
    def step(self) -> Step | None:
        return self.operation.step_named(self.action.step) if self.action.step else None

    @property
    def label(self) -> str:
        """What it is at, for people: "build.place", "undo build.place", or "build" at the end."""
        at = f".{self.action.step}" if self.action.step else ""
        return f"{'undo ' if self.action.undoing else ''}{self.operation.name}{at}"

    def payload(self) -> dict[str, Any]:
        self.journal.data = msgspec.to_builtins(self.operation.data)
        return msgspec.to_builtins(self.journal)  # type: ignore[no-any-return]

    def opened(self, step: Step, events: list[Event] | None = None) -> list[Event]:
        """The events with the step's one open."""
        events = list(self.action.events if events is None else events)
        name = step.event
        if name is None or any(event.event == name and event.finish_time is None for event in events):
            return events
        return [*events, Event(event=name, start_time=utcnow(), host=self.operation.host_of(step) or None)]

    def closed(self, step: Step | None, failure: Failure | None, at_end: bool = False) -> list[Event]:
        """The events after ``step`` ended: an event stays open while the next step shares its name."""
        if failure is not None and step is not None and step.place == CONDUCTOR and not self.action.events:
            name = step.event or "conductor_schedule_and_build_instances"
            start = self.action.start_time
            return [Event(event=name, start_time=start, finish_time=utcnow(), result="Error",
                          traceback=failure.details, details=failure.message)]
        if failure is None and not at_end and not self.action.undoing:
            return list(self.action.events)
        closed = []
        for event in self.action.events:
            if event.finish_time is None:
                event = msgspec.structs.replace(
                    event, finish_time=utcnow(), result="Error" if failure else "Success",
                    traceback=failure.details if failure else None, details=failure.message if failure else None)
            closed.append(event)
        return closed


def owner_of(host: str, binary: str = services.COMPUTE) -> str:
    """The name under which a service of a host (by default its compute) holds leases."""
    return f"{binary.removeprefix('nova-')}@{host}"
