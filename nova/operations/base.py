"""What an operation is: ordered, idempotent steps bound to places, with compensations.

A subclass tells one operation's whole story::

    class Build(Operation):
        name = "build"
        steps = ...           # collected from @step, in the order they are written

        @step(CONDUCTOR, undo="unplace")
        def place(self, ctl: Control) -> None: ...

        @step("host", task_state=states.SPAWNING)
        def start(self, host: Host) -> None: ...

A step whose place is :data:`CONDUCTOR` gets a :class:`~nova.operations.contexts.Control`; any other place is the
name of a field of the operation's data that holds a host, and the step gets a
:class:`~nova.operations.contexts.Host` there. Consecutive steps on one host travel in one message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from nova import context, exception, tracing
from nova.objects.action import Action, Failure
from nova.objects.base import Object
from nova.objects.instance import Instance
from nova.operations.contexts import Control

CONDUCTOR = "conductor"

# What becomes of a host step when the host stops answering for good: the operation fails (and may
# go on elsewhere), or the step counts as done (the host puts itself right when it returns).
WhenDown = Literal["fail", "skip"]

F = TypeVar("F", bound=Callable[..., None])


@dataclasses.dataclass(frozen=True)
class Step:
    """One step. ``event`` is its name in os-instance-actions; neighbours of one name are one event."""

    name: str
    place: str
    undo: str | None = None
    event: str | None = None
    task_state: str | None = None
    when_down: WhenDown = "fail"


def step(place: str, *, undo: str | None = None, event: str | None = None, task_state: str | None = None,
         when_down: WhenDown = "fail") -> Callable[[F], F]:
    """Mark a method as a step; see the module's text."""

    def mark(function: F) -> F:
        function.__step__ = Step(  # type: ignore[attr-defined]
            name=function.__name__, place=place, undo=undo, event=event, task_state=task_state, when_down=when_down)
        return function

    return mark


@dataclasses.dataclass(frozen=True)
class Rules:
    """When an operation may start. None: any state."""

    label: str
    vm_states: frozenset[str] | None = None
    task_states: frozenset[str | None] | None = frozenset({None})
    lock: bool = True
    host: Literal["", "needed", "up"] = ""
    launched: bool = True
    # Deleting goes on whatever else is going on; its predecessor's reports are refused from then on.
    preempts: bool = False


class NoData(Object, kw_only=True):
    """The data of operations that need none but the host."""

    host: str = ""


class Journal(Object, kw_only=True):
    """What the payload column of an action holds: the operation's data, and what went wrong so far.

    ``failure`` is the first cause, which becomes the fault; ``latest`` decides about going on.
    """

    data: dict[str, Any] = {}
    failure: Failure | None = None
    latest: Failure | None = None
    dispatches: int = 0
    # The span in which it was accepted (W3C traceparent), where that was traced.
    trace: str = ""


class Operation:
    """Base of all operations: walking through the steps. Holds one run's data and instance."""

    name: ClassVar[str]
    action: ClassVar[str]
    rules: ClassVar[Rules]
    data_type: ClassVar[type[Object]] = NoData
    # The task_state that accepting the operation sets.
    task_state: ClassVar[str | None] = None
    steps: ClassVar[tuple[Step, ...]] = ()
    # The step to go on with after compensations, while may_retry() says so.
    retry_from: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = [value.__step__ for value in vars(cls).values() if hasattr(value, "__step__")]
        if own:
            cls.steps = tuple(own)

    def __init__(self, instance: Instance, data: dict[str, Any]) -> None:
        self.instance = instance
        self.data: Any = msgspec.convert(data, self.data_type)

    # --- where the steps run -------------------------------------------------------------------
    @classmethod
    def step_named(cls, name: str) -> Step:
        for candidate in cls.steps:
            if candidate.name == name:
                return candidate
        raise exception.InvalidInput(reason=f"operation {cls.name} has no step {name}")

    def after(self, current: Step) -> Step | None:
        """The step that follows; None at the end."""
        index = self.steps.index(current) + 1
        return self._first(self.steps[index:])

    def first(self) -> Step | None:
        return self._first(self.steps)

    def before(self, current: Step) -> Step | None:
        """The step to compensate next when running backwards; None at the beginning."""
        index = self.steps.index(current)
        return self._first([item for item in reversed(self.steps[:index]) if item.undo])

    def _first(self, candidates: Any) -> Step | None:
        for candidate in candidates:
            if candidate.place == CONDUCTOR or self.host_of(candidate):
                return candidate  # type: ignore[no-any-return]
        return None

    def host_of(self, of: Step) -> str:
        """The host a step runs on; "" when there is none (the step is left out)."""
        return "" if of.place == CONDUCTOR else str(getattr(self.data, of.place) or "")

    def batch(self, start: Step, undo: bool) -> list[Step]:
        """``start`` and the steps after it (before it, when undoing) that belong to the same host."""
        found = [start]
        while True:
            follower = self.before(found[-1]) if undo else self.after(found[-1])
            if follower is None or follower.place != start.place:
                return found
            found.append(follower)

    def run(self, of: Step, where: Any, undo: bool) -> None:
        """Run a step, or its compensation, in the context ``where``."""
        method = of.undo if undo else of.name
        if method:
            getattr(self, method)(where)

    # --- decisions, on the conductor -----------------------------------------------------------
    @classmethod
    def new_data(cls, instance: Instance, request: dict[str, Any]) -> dict[str, Any]:
        """The data of a run that was just asked for."""
        return {"host": instance.host or "", **request}

    def may_retry(self, failure: Failure) -> bool:
        """Whether to go on from ``retry_from`` once everything behind it was undone."""
        return False

    def succeeded(self, ctl: Control) -> None:
        """The last step is done (its changes are in): set the final states."""
        ctl.set(task_state=None)

    def failed(self, ctl: Control, failure: Failure) -> None:
        """Everything was undone: the server keeps its state, and a fault says why."""
        ctl.set(task_state=None)
        ctl.fault(failure)


def check(rules: Rules, instance: Instance, is_admin: bool, host_up: Callable[[], bool]) -> None:
    """Whether an operation with these rules may start now, in the order the API promises.

    Raises InstanceIsLocked, InstanceNotReady, InstanceInvalidState, InstanceStateUnknown,
    ServiceUnavailable.
    """
    if rules.lock and instance.locked and not is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    if rules.host == "needed" and not instance.host:
        raise exception.InstanceNotReady(instance_id=instance.uuid)
    _check_state(rules, instance, "vm_state", instance.vm_state, rules.vm_states)
    _check_state(rules, instance, "task_state", instance.task_state, rules.task_states)
    if rules.launched and instance.launched_at is None:
        raise exception.InstanceStateUnknown(instance_uuid=instance.uuid, method=rules.label)
    if rules.host == "up" and not (instance.host and host_up()):
        raise exception.ServiceUnavailable()


def _check_state(rules: Rules, instance: Instance, attr: str, state: str | None,
                 allowed: frozenset[Any] | None) -> None:
    if allowed is None or state in allowed:
        return
    if state is None:
        raise exception.InstanceStateUnknown(instance_uuid=instance.uuid, method=rules.label)
    raise exception.InstanceInvalidState(
        method=rules.label, instance_uuid=instance.uuid, attr=attr, state=state)


def journal(action: Action) -> Journal:
    return msgspec.convert(action.payload, Journal)


def context_of(action: Action) -> context.RequestContext:
    """The context of whoever asked for the action, for a run that goes on without the request."""
    ctx = context.RequestContext(request_id=action.request_id, user_id=action.user_id, project_id=action.project_id,
                                 overwrite=False)
    ctx.trace = tracing.restored(action.payload.get("trace"))
    return ctx
