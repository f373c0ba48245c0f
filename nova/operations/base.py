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

An operation begins with its acceptance: ``prepare`` (before the transaction; may ask outside services) and
``accept`` (in it). An operation that is superseded has its compensations run by the one that supersedes it.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Literal, NoReturn, TypeVar

import msgspec

from nova import context, exception
from nova.objects import states
from nova.objects.action import Action, Failure
from nova.objects.base import Object
from nova.objects.instance import BlockDevice, Instance
from nova.objects.network import VIF
from nova.operations.contexts import Acceptance, Control, Desk, Host
from nova.telemetry import tracing

CONDUCTOR = "conductor"

# What becomes of a host step when the host stops answering for good: the operation fails (and may go on elsewhere), or
# the step counts as done, or it waits until the host is back (or another operation takes the server over).
WhenDown = Literal["fail", "skip", "wait"]

# Whom an external step waits for. Each has threads of its own: one that hangs holds up none of the others.
External = Literal["", "volumes", "shares", "network", "images", "host"]
VOLUMES: Final = "volumes"
SHARES: Final = "shares"
NETWORK: Final = "network"
IMAGES: Final = "images"
HOST: Final = "host"
OUTSIDE = (VOLUMES, SHARES, NETWORK, IMAGES, HOST)

# Seconds that a host step may take before it counts as hung, unless it says otherwise.
DEADLINE = 3600.0

F = TypeVar("F", bound=Callable[..., None])


@dataclasses.dataclass(frozen=True)
class Step:
    """One step. ``event`` is its name in os-instance-actions; neighbours of one name are one event.

    ``external``: a conductor step with effects outside the database, at this service; its compensation runs even if
    it failed half-way. ``owed``: one that removes something outside which nobody needs any more; when the service is
    away for too long the operation goes on, and the step is done when it is back. ``when``: the name of a field of
    the data; the step is left out while that is false. ``asks_scheduler``: it waits for an answer, in threads of its
    own. ``evict``: when the host is given up before the step was compensated (or, with ``when_down`` skip, done), the
    guest may not stay there: the host removes it when it returns. ``deadline``: seconds on a host. ``sets``: the
    columns of the instance that a host may change by its report of the step, or of its compensation; ``results`` and
    ``undo_results``: the fields of the data. A report's others are left out: what a host says is not believed beyond
    that.
    """

    name: str
    place: str
    undo: str | None = None
    event: str | None = None
    task_state: str | None = None
    when_down: WhenDown = "fail"
    external: External = ""
    owed: bool = False
    when: str | None = None
    asks_scheduler: bool = False
    evict: bool = False
    deadline: float = DEADLINE
    sets: tuple[str, ...] = ("power_state", "device_addresses")
    results: tuple[str, ...] = ()
    undo_results: tuple[str, ...] = ()


def step(place: str, *, undo: str | None = None, event: str | None = None, task_state: str | None = None,
         when_down: WhenDown = "fail", external: External = "", owed: bool = False, when: str | None = None,
         asks_scheduler: bool = False, evict: bool = False, deadline: float = DEADLINE,
         sets: tuple[str, ...] = Step.sets, results: tuple[str, ...] = (),
         undo_results: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Mark a method as a step; see the module's text and :class:`Step`."""

    def mark(function: F) -> F:
        function.__step__ = Step(  # type: ignore[attr-defined]
            name=function.__name__, place=place, undo=undo, event=event, task_state=task_state, when_down=when_down,
            external=external, owed=owed, when=when, asks_scheduler=asks_scheduler, evict=evict, deadline=deadline,
            sets=sets, results=results, undo_results=undo_results)
        return function

    return mark


def connects_volumes(function: F) -> F:
    """Mark a step on a host, or the compensation of one, that connects volumes: its order has the keys of those that
    are encrypted."""
    function.__connects_volumes__ = True  # type: ignore[attr-defined]
    return function


class Wait(Exception):
    """Raised by a conductor step that has to wait: the action is parked, no thread is held.

    The step runs again when one of ``events`` (as :func:`event_key` names them) comes for the instance, also if it
    came first, and at the latest ``seconds`` after it began to wait; then ``ctl.waited_out`` is true. One that waits
    again then waits anew.

    Operations of the instance in ``ahead`` (by their names) do not wait behind this one meanwhile: what it waits for,
    waits for them. Not together with events.
    """

    def __init__(self, *events: str, seconds: float, ahead: Sequence[str] = ()) -> None:
        super().__init__(f"waits for {', '.join(events) or 'a time'} for {seconds:g} s")
        self.events, self.seconds, self.ahead = events, seconds, ahead


def event_key(name: str, tag: str | None) -> str:
    """How a step names the external event that it waits for."""
    return f"{name}:{tag or ''}"


@dataclasses.dataclass(frozen=True)
class Rules:
    """When an operation may start. None: any state."""

    label: str
    vm_states: frozenset[str] | None = None
    task_states: frozenset[str | None] | None = frozenset({None})
    lock: bool = True
    host: Literal["", "needed", "up"] = ""
    launched: bool = True
    # It goes on whatever else is going on: it supersedes that and compensates for it.
    preempts: bool = False
    # The task states of what it may not supersede: a delete was promised to a user, and cannot be compensated for.
    yields_to: frozenset[str] = frozenset({states.DELETING})
    # It leaves task_state alone, and waits behind the operation that holds the instance.
    beside: bool = False
    # A server that has shares is refused.
    without_shares: bool = False
    # The service version that the server's host must have: before it, its nova-compute does not know the steps there.
    release: int = 0


class NoData(Object, kw_only=True):
    """The data of operations that need none but the host."""

    host: str = ""


class NoRequest(Object, kw_only=True):
    """The request of operations that are asked for by their name alone; also the answer of those that have none."""


class Inherited(Object, kw_only=True):
    """What an operation still has to compensate of one that it superseded: backwards from ``step`` ("": nothing)."""

    operation: str
    data: dict[str, Any] = {}
    step: str = ""


class Owed(Object, kw_only=True):
    """What an external step has left outside, or may make there after its operation was superseded, and what its server
    had then."""

    operation: str
    step: str
    data: dict[str, Any] = {}
    block_devices: list[BlockDevice] = []
    network_info: list[VIF] = []


class Journal(Object, kw_only=True):
    """What the payload column of an action holds: the operation's data, and what went wrong so far.

    ``failure`` is the first cause, which becomes the fault; ``latest`` decides about going on. ``tries`` counts how
    often the current step was dispatched, or begun in vain, since the action came to it. ``waits_until``: the end of
    the time that the current step may wait. ``inherited``: compensated before the first step, the last one first.
    ``owes``: the external steps whose compensations were given up. ``owed``, and they, of an action that has ended;
    ``tries`` then counts how often it was tried to take that back.
    """

    data: dict[str, Any] = {}
    failure: Failure | None = None
    latest: Failure | None = None
    tries: int = 0
    waits_until: datetime.datetime | None = None
    inherited: list[Inherited] = []
    owed: Owed | None = None
    owes: list[Owed] = []
    # The events that were told to have begun, and not yet to have ended, with who tells of them.
    told: dict[str, str] = {}
    # The span in which it was accepted (W3C traceparent), where that was traced.
    trace: str = ""


class Operation:
    """Base of all operations: walking through the steps. Holds one run's data and instance."""

    name: ClassVar[str]
    action: ClassVar[str]
    rules: ClassVar[Rules]
    data_type: ClassVar[type[Object]] = NoData
    # What it is asked for with, and what its acceptance returns to the caller.
    request_type: ClassVar[type[Object]] = NoRequest
    answer_type: ClassVar[type[Object]] = NoRequest
    # The task_state that accepting the operation sets.
    task_state: ClassVar[str | None] = None
    steps: ClassVar[tuple[Step, ...]] = ()
    # The class of work on a host, which does not wait for others: build, power, move, snapshot, swap or urgent.
    kind: ClassVar[str] = "power"
    # Whether it waits for the guest to shut down: images may ask for an hour of that (os_shutdown_timeout).
    shuts_down: ClassVar[bool] = False
    # Whether another operation can be accepted behind this one while it is under way.
    may_be_followed: ClassVar[bool] = True
    # Whether it stops the guest, moves it or makes it another one: what led to its consoles before ends.
    ends_consoles: ClassVar[bool] = False
    # What was done up to and with this step, once that is done, is not taken back.
    point_of_no_return: ClassVar[str | None] = None
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
        # Another operation superseded this one, and compensates for it.
        self.taken_over = False

    # --- acceptance ------------------------------------------------------------------------------
    @classmethod
    def begin(cls, instance: Instance, request: Any) -> dict[str, Any]:
        """The data of a run that was just asked for: the host, and what the request has of the data's fields."""
        asked = msgspec.to_builtins(request)
        known = {field.name for field in msgspec.structs.fields(cls.data_type)}
        return {"host": instance.host or "", **{name: value for name, value in asked.items() if name in known}}

    def prepare(self, desk: Desk, request: Any) -> None:
        """Before the accepting transaction: what outside services have to say, with the caller's own rights.

        It may run for a request that is refused afterwards, so it changes nothing outside. Raises what the caller
        shall read.
        """

    def accept(self, ctl: Acceptance, request: Any) -> Object | None:
        """In the accepting transaction: checks and writes that belong to the promise; returns the answer.

        May run several times (the transaction is tried again), each time on a fresh copy of the data.
        """
        return None

    def relocate(self) -> bool:
        """Before the first step: the server may have left the host that it had when this was accepted.

        What this waited behind, or had to compensate for, can end on another host. Returns whether data changed.
        """
        host = self.instance.host or ""
        if not getattr(self.data, "host", "") or self.data.host == host:
            return False
        self.data.host = host
        return True

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
        kept = 1 + self.steps.index(self.step_named(self.point_of_no_return)) if self.point_of_no_return else 0
        return self._first([item for item in reversed(self.steps[kept if kept <= index else 0:index]) if item.undo])

    def applies(self, to: Step) -> bool:
        """Whether this run has the step."""
        if to.when and not getattr(self.data, to.when):
            return False
        return to.place == CONDUCTOR or bool(self.host_of(to))

    def _first(self, candidates: Iterable[Step]) -> Step | None:
        return next((candidate for candidate in candidates if self.applies(candidate)), None)

    def host_of(self, of: Step) -> str:
        """The host a step runs on; "" when there is none (the step is left out)."""
        return "" if of.place == CONDUCTOR else str(getattr(self.data, of.place) or "")

    def claim_of(self, of: Step) -> str:
        """The consumer whose cells and devices the guest has where this step runs; "": those of its instance's row."""
        return ""

    def devices_at(self, of: Step) -> list[BlockDevice]:
        """The volumes that are reached in another way where this step runs than the row of the instance says."""
        return []

    def batch(self, start: Step, undo: bool) -> list[Step]:
        """``start`` and the steps after it (before it, when undoing) that belong to the same host."""
        found = [start]
        while True:
            follower = self.before(found[-1]) if undo else self.after(found[-1])
            if follower is None or follower.place != start.place:
                return found
            found.append(follower)

    def needs_keys(self, start: Step, undo: bool) -> bool:
        """Whether who runs these steps of a host, or their compensations, connects volumes there."""
        methods = [each.undo if undo else each.name for each in self.batch(start, undo)]
        return any(hasattr(getattr(self, method), "__connects_volumes__") for method in methods if method)

    def ordered_with(self, current: Step, undo: bool) -> list[Step]:
        """The steps of which a report may tell while ``current`` is a host's: those that are ordered with it."""
        able = [each for each in self.steps if each is current or (self.applies(each) and (each.undo or not undo))]
        first = last = able.index(current)
        while first and able[first - 1].place == current.place:
            first -= 1
        while last + 1 < len(able) and able[last + 1].place == current.place:
            last += 1
        return able[first:last + 1]

    def run(self, of: Step, where: Any, undo: bool) -> None:
        """Run a step, or its compensation, in the context ``where``."""
        method = of.undo if undo else of.name
        if method:
            getattr(self, method)(where)

    def interrupted(self, host: Host, what: str) -> None:
        """On the host, in a thread of its own: somebody says ``what`` to the step that runs there.

        What it is told besides, ``host.cancelled`` knows already.
        """

    def take_back(self, of: Step, ctl: Control) -> None:
        """The external step ``of`` may have been done after the operation had ended, and was compensated: undo it.

        Nobody holds the server, ``ctl.instance`` is as it is now (a deleted one has what it had then), and nothing is
        written. What the server was given since stays. A step that is ``owed`` is done.
        """
        self.run(of, ctl, undo=not of.owed)

    def not_undone(self, of: Step) -> None:
        """The compensation of a step failed; it is not tried again, and the others go on."""

    def stays(self, host: str) -> bool:
        """Whether the guest belongs to ``host`` by now, whatever becomes of the operation."""
        return False

    def keeps_disks(self, host: str) -> bool:
        """Whether the disks of a guest that is evicted from ``host`` are in use elsewhere."""
        return False

    # --- decisions, on the conductor -----------------------------------------------------------
    @property
    def owes_an_end(self) -> bool:
        """Whether somebody outside waits for its end: its first step is compensated for though it never had its turn.
        """
        return False

    def noted(self, ctl: Control, values: dict[str, Any]) -> None:
        """The running step tells how far it is (``host.progress``)."""

    def may_retry(self, failure: Failure) -> bool:
        """Whether to go on from ``retry_from`` once everything behind it was undone."""
        return False

    def succeeded(self, ctl: Control) -> None:
        """The last step is done (its changes are in): set the final states."""
        if not self.rules.beside:
            ctl.set(task_state=None)

    def failed(self, ctl: Control, failure: Failure) -> None:
        """Everything was undone: the server keeps its state, and a fault says why."""
        if not self.rules.beside:
            ctl.set(task_state=None)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        """Another operation took the instance over, and everything was undone: let go of what acceptance took."""


def check(rules: Rules, instance: Instance, is_admin: bool, host_up: Callable[[], bool]) -> None:
    """Whether an operation with these rules may start now, in the order the API promises.

    Raises ForbiddenWithShares, InstanceIsLocked, InstanceNotReady, InstanceInvalidState, InstanceStateUnknown,
    ComputeServiceUnavailable.
    """
    if rules.without_shares and instance.shares:
        raise exception.ForbiddenWithShares(method=rules.label, instance_uuid=instance.uuid)
    if rules.lock and instance.locked and not is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    if rules.host == "needed" and not instance.host:
        raise exception.InstanceNotReady(instance_id=instance.uuid)
    _check_state(rules, instance, "vm_state", instance.vm_state, rules.vm_states)
    _check_state(rules, instance, "task_state", instance.task_state, rules.task_states)
    if instance.task_state in rules.yields_to:
        _refuse(rules, instance, "task_state", instance.task_state)
    if rules.launched and instance.launched_at is None:
        raise exception.InstanceStateUnknown(instance_uuid=instance.uuid, method=rules.label)
    if rules.host == "up" and not (instance.host and host_up()):
        raise exception.ComputeServiceUnavailable()


def _check_state(rules: Rules, instance: Instance, attr: str, state: str | None,
                 allowed: frozenset[Any] | None) -> None:
    if allowed is None or state in allowed:
        return
    if state is None:
        raise exception.InstanceStateUnknown(instance_uuid=instance.uuid, method=rules.label)
    _refuse(rules, instance, attr, state)


def _refuse(rules: Rules, instance: Instance, attr: str, state: str) -> NoReturn:
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
