"""The base of all operations: what an operation is, and the contract of each of its hooks.

An operation is an ordered list of idempotent steps. A step runs on a conductor or on a compute host and may name a
compensation that undoes it (the saga pattern). A subclass is the complete story of one operation::

    class Build(Operation):
        name = "build"

        @step(CONDUCTOR, undo="unplace")
        def place(self, ctl: Control) -> None: ...

        @step("host", task_state=states.SPAWNING)
        def start(self, host: HostContext) -> None: ...

``@step`` collects the steps in the order in which they are written. The first argument of ``@step`` is the place. A
step at :data:`CONDUCTOR` receives a :class:`~nova.operations.framework.contexts.Control`. Any other place is the name
of a field of the operation's data that holds a host name; the step runs there and receives a
:class:`~nova.operations.framework.contexts.HostContext`. Consecutive steps on one host travel in one message.

The life of an operation (the docstring of each hook states its contract). Classes list their methods in this order, and
the compensations, which have no decorator, after the steps:

1. Acceptance, in the process that serves the request: ``begin``, ``prepare`` (before the transaction), ``accept`` (in
   the transaction that also checks :class:`~nova.operations.framework.rules.Rules` and writes the action).
2. Steps. A conductor step runs without a transaction: its writes are collected in ``ctl`` and written in one
   transaction together with the next step. No lock is held while the step runs. If another process took over the
   action meanwhile, the transaction raises StaleReport and nothing is written. A step or compensation can therefore
   run more than once and must be idempotent. A step may raise any NovaException (the operation fails and its
   compensations run backwards), :class:`Wait` (the action is parked), or ServiceUnavailable (the step is retried).
3. The end: ``succeeded`` after the last step, ``failed`` after all compensations, or ``superseded`` when another
   operation took over. An operation that supersedes another one runs the compensations of that one first.
"""

import dataclasses
import datetime
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

import msgspec

from nova import context, exception
from nova.objects.base import Object
from nova.objects.networks.network import VIF
from nova.objects.servers.action import Action, Failure
from nova.objects.servers.instance import BlockDevice, Instance
from nova.operations.framework.contexts import Acceptance, Control, HostContext, PrecheckContext
from nova.operations.framework.rules import Rules
from nova.telemetry import tracing

CONDUCTOR = "conductor"

# Reaction to a host that stays unreachable during a step. "fail": the operation fails and may retry on another host.
# "skip": the step counts as done. "wait": the step waits until the host returns or its operation is superseded.
WhenDown = Literal["fail", "skip", "wait"]

# The service that an external step calls. Each service has its own thread pool, so a service that hangs does not block
# steps that call other services.
External = Literal["", "volumes", "shares", "network", "images", "host"]
VOLUMES: Final = "volumes"
SHARES: Final = "shares"
NETWORK: Final = "network"
IMAGES: Final = "images"
HOST: Final = "host"
OUTSIDE = (VOLUMES, SHARES, NETWORK, IMAGES, HOST)

# Default limit in seconds for a step on a host. After that time the step fails as hung.
DEADLINE = 3600.0

# Errors of the request itself. They would recur on every host, so the operation tries no other host.
_FINAL = (exception.Invalid, exception.NotFound, exception.Forbidden, exception.NoValidHost,
          exception.MaxRetriesExceeded, exception.VirtualInterfaceCreateFailed)

F = TypeVar("F", bound=Callable[..., None])


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of an operation and its properties.

    ``name``: name in the journal, by default that of the ``method``. It must never change.
    ``event``: name in os-instance-actions; consecutive steps with the same name are one event.
    ``external``: the service that a conductor step changes outside the database. The compensation of such a step runs
    even if the step itself failed.
    ``deferrable``: the step only removes something at an external service. If the service stays unavailable, the
    operation continues and the step runs later.
    ``when``: name of a field of the data; the step is skipped while that field is false.
    ``calls_scheduler``: the step calls a scheduler and runs in a thread pool of its own.
    ``evict``: if the host becomes unreachable before the step is compensated (or, with ``when_down="skip"``, done), the
    host removes the guest when it returns.
    ``deadline``: limit in seconds for the step on a host.
    ``sets``: the instance columns that the host may change in its report of the step or of the compensation.
    ``results``, ``undo_results``: the data fields that the host may change. All other fields of a report are ignored.
    """

    name: str
    method: str
    place: str
    undo: str | None = None
    event: str | None = None
    task_state: str | None = None
    when_down: WhenDown = "fail"
    external: External = ""
    deferrable: bool = False
    when: str | None = None
    calls_scheduler: bool = False
    evict: bool = False
    deadline: float = DEADLINE
    sets: tuple[str, ...] = ("power_state", "device_addresses")
    results: tuple[str, ...] = ()
    undo_results: tuple[str, ...] = ()


def step(place: str, *, undo: str | None = None, event: str | None = None, task_state: str | None = None,
         when_down: WhenDown = "fail", external: External = "", deferrable: bool = False, when: str | None = None,
         calls_scheduler: bool = False, evict: bool = False, deadline: float = DEADLINE,
         sets: tuple[str, ...] = Step.sets, results: tuple[str, ...] = (),
         undo_results: tuple[str, ...] = (), journaled_as: str = "") -> Callable[[F], F]:
    """Mark a method as a step. See :class:`Step` for the arguments."""

    def mark(function: F) -> F:
        function.__step__ = Step(  # type: ignore[attr-defined]
            name=journaled_as or function.__name__, method=function.__name__, place=place, undo=undo, event=event,
            task_state=task_state, when_down=when_down, external=external, deferrable=deferrable, when=when,
            calls_scheduler=calls_scheduler, evict=evict, deadline=deadline, sets=sets, results=results,
            undo_results=undo_results)
        return function

    return mark


def connects_volumes(function: F) -> F:
    """Mark a host step or compensation that connects volumes. The host receives the keys of encrypted volumes."""
    function.__connects_volumes__ = True  # type: ignore[attr-defined]
    return function


class Wait(Exception):
    """Raised by a conductor step that must wait. The action is parked and no thread is held.

    The step runs again when one of ``events`` (keys made by :func:`event_key`) arrives for the instance. An event that
    arrived before the step waited counts, too. After ``seconds`` at the latest the step runs again with
    ``ctl.waited_out`` set; a step that raises Wait again starts a new period.

    ``ahead``: names of operations of the same instance that may run first, because the awaited event depends on them.
    ``ahead`` cannot be combined with ``events``.
    """

    def __init__(self, *events: str, seconds: float, ahead: Sequence[str] = ()) -> None:
        super().__init__(f"waits up to {seconds:g} s{' for ' if events else ''}{', '.join(events)}")
        self.events, self.seconds, self.ahead = events, seconds, ahead


def event_key(name: str, tag: str | None) -> str:
    """Return the key by which a step waits for an external event."""
    return f"{name}:{tag or ''}"


class NoData(Object, kw_only=True):
    """Data of operations that need no more than the host."""

    host: str = ""


class NoRequest(Object, kw_only=True):
    """Request of operations without arguments, and answer of operations without an answer."""


class Inherited(Object, kw_only=True):
    """A superseded operation whose successor must run the compensations, backwards from ``step`` ("": none)."""

    operation: str
    data: dict[str, Any] = {}
    step: str = ""


class Cleanup(Object, kw_only=True):
    """The deferred cleanup of an external step, with the volumes and interfaces of the server when the step ran."""

    operation: str
    step: str
    data: dict[str, Any] = {}
    block_devices: list[BlockDevice] = []
    network_info: list[VIF] = []


class Journal(Object, kw_only=True):
    """The content of the payload column of an action.

    ``data``: the data of the operation. ``failure``: the first failure, which becomes the fault of the server.
    ``latest``: the newest failure, by which the operation decides whether to retry. ``tries``: the number of times that
    the current step was dispatched, or of cleanup attempts after the action has ended. ``waits_until``: the end of the
    time that the current step may wait. ``inherited``: superseded operations to compensate before the first step, the
    newest first. ``cleanups``: external steps whose compensation is deferred. ``interrupted``: the external step
    that ran when the action was superseded. ``open_events``: notified events that have started and not ended, with the
    publisher of each. ``trace``: the span in which the action was accepted (W3C traceparent), or "".
    """

    data: dict[str, Any] = {}
    failure: Failure | None = None
    latest: Failure | None = None
    tries: int = 0
    waits_until: datetime.datetime | None = None
    inherited: list[Inherited] = []
    interrupted: Cleanup | None = msgspec.field(default=None, name="owed")
    cleanups: list[Cleanup] = msgspec.field(default_factory=list, name="owes")
    open_events: dict[str, str] = msgspec.field(default_factory=dict, name="told")
    trace: str = ""


class Operation:
    """Base class of all operations. An object is one run: the instance and the data of that run."""

    name: ClassVar[str]
    action: ClassVar[str]
    rules: ClassVar[Rules]
    data_type: ClassVar[type[Object]] = NoData
    # Types of the request, and of the answer that acceptance returns to the caller.
    request_type: ClassVar[type[Object]] = NoRequest
    answer_type: ClassVar[type[Object]] = NoRequest
    # The task_state that acceptance sets.
    task_state: ClassVar[str | None] = None
    steps: ClassVar[tuple[Step, ...]] = ()
    # Thread pool class on a host: build, power, move, snapshot, swap or urgent. Classes do not wait for each other.
    kind: ClassVar[str] = "power"
    # True if a step shuts the guest down. Images may allow up to an hour for that (os_shutdown_timeout).
    shuts_down: ClassVar[bool] = False
    # False if the end of this operation does not start the next queued operation.
    may_be_followed: ClassVar[bool] = True
    # True if the operation stops, moves or replaces the guest, so that its console sessions are closed.
    ends_consoles: ClassVar[bool] = False
    # After this step is done, no step up to and including it is compensated.
    point_of_no_return: ClassVar[str | None] = None
    # The step from which the operation continues after compensations if may_retry() returns True.
    retry_from: ClassVar[str | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = [value.__step__ for value in vars(cls).values() if hasattr(value, "__step__")]
        if own:
            cls.steps = tuple(own)

    def __init__(self, instance: Instance, data: dict[str, Any]) -> None:
        self.instance = instance
        self.data: Any = msgspec.convert(data, self.data_type)
        self.taken_over = False  # True while another operation that superseded this one runs the compensations

    def copy(self) -> Self:
        """Return a copy of this run whose data can be changed independently; the instance is shared."""
        other = type(self)(self.instance, msgspec.to_builtins(self.data))
        other.taken_over = self.taken_over
        return other

    # --- acceptance ------------------------------------------------------------------------------
    @classmethod
    def begin(cls, instance: Instance, request: Any) -> dict[str, Any]:
        """Return the data of a new run: the host, and the request fields that the data has, too. Runs before
        ``prepare`` and again in each attempt of the accepting transaction. Reads its arguments only."""
        values = msgspec.to_builtins(request)
        fields = {field.encode_name for field in msgspec.structs.fields(cls.data_type)}
        return {"host": instance.host or "", **{name: value for name, value in values.items() if name in fields}}

    def prepare(self, precheck: PrecheckContext, request: Any) -> None:
        """Check the request with external services, with the rights of the caller. Runs once on a conductor before the
        accepting transaction: no lock and no transaction is held, and ``self.instance`` may be out of date. Must not
        change anything outside ``self.data``, because the request can still be refused. ``accept`` starts with the data
        as ``prepare`` left it. Exceptions refuse the request and are returned to the caller."""

    def accept(self, ctl: Acceptance, request: Any) -> Object | None:
        """Check and reserve what the operation needs, and return the answer for the caller.

        Runs in the accepting transaction with the instance row locked, after the checks of ``rules``. The database may
        retry the transaction; each attempt gets a new object. Must not call a scheduler or an external service.
        ``ctl`` may read and lock further rows; changes are written when the transaction commits. Exceptions refuse the
        request, roll the transaction back and are returned to the caller.
        """
        return None

    def relocate(self) -> bool:
        """Adapt the data to the host on which the instance is now, and return True if the data changed. Runs before the
        first step of an operation that was queued or that superseded another one: the instance may have moved since
        acceptance. Runs inside the transaction that hands the instance over, so it only reads ``self.instance`` and
        changes ``self.data``. Must not raise."""
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
        """Return the next step, or None after the last step."""
        index = self.steps.index(current) + 1
        return self._first(self.steps[index:])

    def first(self) -> Step | None:
        return self._first(self.steps)

    def before(self, current: Step) -> Step | None:
        """Return the step to compensate next, or None if no compensation is left."""
        index = self.steps.index(current)
        first = 1 + self.steps.index(self.step_named(self.point_of_no_return)) if self.point_of_no_return else 0
        return self._first([item for item in reversed(self.steps[first if first <= index else 0:index]) if item.undo])

    def applies(self, to: Step) -> bool:
        """Return True if this run includes the step."""
        if to.when and not getattr(self.data, to.when):
            return False
        return to.place == CONDUCTOR or bool(self.host_of(to))

    def _first(self, candidates: Iterable[Step]) -> Step | None:
        return next((candidate for candidate in candidates if self.applies(candidate)), None)

    def host_of(self, of: Step) -> str:
        """Return the host on which a step runs. An empty host means that the step is skipped."""
        return "" if of.place == CONDUCTOR else str(getattr(self.data, of.place) or "")

    def claim_of(self, of: Step) -> str:
        """Return the consumer whose claim holds the guest's dedicated resources where this step runs. Empty: the claim
        of the instance itself. Runs in the transaction that writes the order for the host; reads ``self.data`` and
        ``self.instance`` only."""
        return ""

    def devices_at(self, of: Step) -> list[BlockDevice]:
        """Return the volumes whose connection on the host of this step differs from the instance's row. Runs in the
        transaction that writes the order for the host; reads ``self.data`` only."""
        return []

    def batch(self, start: Step, undo: bool) -> list[Step]:
        """Return ``start`` and the following steps (preceding steps if ``undo``) that run on the same host."""
        steps = [start]
        while True:
            follower = self.before(steps[-1]) if undo else self.after(steps[-1])
            if follower is None or follower.place != start.place:
                return steps
            steps.append(follower)

    def needs_keys(self, start: Step, undo: bool) -> bool:
        """Return True if one of these steps, or of their compensations, connects volumes on the host."""
        methods = [item.undo if undo else item.method for item in self.batch(start, undo)]
        return any(hasattr(getattr(self, method), "__connects_volumes__") for method in methods if method)

    def ordered_with(self, current: Step, undo: bool) -> list[Step]:
        """Return ``current`` and the steps sent to the host in the same message: the host may report any of them."""
        able = [item for item in self.steps if item is current or (self.applies(item) and (item.undo or not undo))]
        first = last = able.index(current)
        while first and able[first - 1].place == current.place:
            first -= 1
        while last + 1 < len(able) and able[last + 1].place == current.place:
            last += 1
        return able[first:last + 1]

    def run(self, of: Step, where: Any, undo: bool) -> None:
        """Run a step, or its compensation, with the context ``where``."""
        method = of.undo if undo else of.method
        if method:
            getattr(self, method)(where)

    def interrupted(self, host: HostContext, what: str) -> None:
        """Handle a request to interrupt the step that runs on this host (``what``: "force-complete"). Runs on the
        compute host in a thread of its own, concurrently with the step, without a lock. A NovaException is logged and
        the step continues. The request "cancel" does not call this hook; it sets ``host.cancelled``."""

    def clean_up(self, of: Step, ctl: Control) -> None:
        """Undo the external step ``of``, which may have taken effect after the operation had ended.

        Runs on a conductor without a lock and without a transaction; another operation may hold the instance.
        ``ctl.instance`` is the current row (for a deleted instance with the volumes and interfaces that it had when
        the step ran), and changes made through ``ctl`` are discarded. Must not change resources that the instance
        received since then. ServiceUnavailable and HostDown cause a retry. The default implementation runs the
        compensation, or the step itself if the step is deferrable.
        """
        self.run(of, ctl, undo=not of.deferrable)

    def compensation_failed(self, of: Step) -> None:
        """Record that the compensation of a step is given up; the other compensations still run. May change
        ``self.data``, which is written together with the next step. Runs without a lock and without a transaction."""

    def stays(self, host: str) -> bool:
        """Return True if the guest belongs to ``host`` from now on, so that ``host`` must not remove the guest. Called
        when ``host`` is unreachable. Reads ``self.data`` and ``self.instance`` only."""
        return False

    def keeps_disks(self, host: str) -> bool:
        """Return True if another host uses the disks of a guest that is evicted from ``host`` (shared storage). Called
        when ``host`` is unreachable. Reads ``self.data`` and ``self.instance`` only."""
        return False

    # --- decisions, on the conductor -----------------------------------------------------------
    @property
    def service_awaits_end(self) -> bool:
        """Return True if an external service waits for the end of the operation. The first step of such an operation is
        compensated even if the operation is superseded while it is queued."""
        return False

    def noted(self, ctl: Control, values: dict[str, Any]) -> None:
        """Store progress that the running host step reported with ``host.progress()``. Writes through ``ctl``, in the
        transaction that renews the lease of the action. A report can be lost."""

    def may_retry(self, failure: Failure) -> bool:
        """Return True to continue forwards from ``retry_from``. Called when all steps after ``retry_from`` and that
        step itself are compensated. ``failure`` is the newest failure. May change ``self.data``."""
        return False

    def succeeded(self, ctl: Control) -> None:
        """Set the final state of the instance after the last step. Runs before the transaction that ends the action;
        writes through ``ctl`` are part of that transaction. Must not call an external service and must not raise."""
        if not self.rules.beside:
            ctl.set(task_state=None)

    def failed(self, ctl: Control, failure: Failure) -> None:
        """Set the final state of the instance and record ``failure`` after all compensations. The same contract as for
        ``succeeded``. By default the instance keeps its vm_state and gets a fault."""
        if not self.rules.beside:
            ctl.set(task_state=None)
        ctl.fault(failure)

    def superseded(self, ctl: Control) -> None:
        """Release what acceptance reserved, after all compensations, because another operation took over. The writes
        through ``ctl`` are part of the transaction that starts the superseding operation. Must not call an external
        service and must not raise."""


class Releasing(Operation):
    """Base of operations that release the same resources after a failure as when another operation supersedes them."""

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)


def journal(action: Action) -> Journal:
    return msgspec.convert(action.payload, Journal)


def context_of(action: Action) -> context.RequestContext:
    """Return the context of the request that started the action, for a run that continues without the request."""
    ctx = context.RequestContext(request_id=action.request_id, user_id=action.user_id, project_id=action.project_id,
                                 overwrite=False)
    ctx.trace = tracing.restored(action.payload.get("trace"))
    return ctx


def failure_of(error: BaseException, host: str | None = None) -> Failure:
    """Return the failure for an error: with its message if it is a NovaException, else only with its class."""
    meant = isinstance(error, exception.NovaException)
    inside = error.inside if isinstance(error, exception.NovaException) and error.inside != error.message else ""
    trace = "".join(traceback.format_exception(error))
    return Failure(code=error.code if isinstance(error, exception.NovaException) else 500,
                   message=str(error) if meant else f"Unexpected error: {type(error).__name__}", inside=inside,
                   kind=type(error).__name__, details=f"{inside}\n{trace}" if inside else trace, host=host,
                   retry=not isinstance(error, _FINAL))
