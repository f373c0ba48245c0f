"""The decisions of the saga engine: which transition follows an event. :func:`decide` is pure: it performs no I/O,
reads no clock and no option, and changes neither the run nor the event. The step executor applies the transition in one
transaction."""

import dataclasses
from typing import Any, Literal

from nova import exception
from nova.conductor.saga.run import Run, cleanup_of
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.operations.framework.base import CONDUCTOR, Cleanup, Operation, Step, failure_of
from nova.operations.framework.contexts import Control

# Kinds of failures that are only consequences of an earlier failure of the operation. Users get the earlier failure.
_CONSEQUENCES = ("NoValidHost", "MaxRetriesExceeded", "ClaimLost")


@dataclasses.dataclass(frozen=True)
class Done:
    """The step, or its compensation, has ended."""

    step: Step


@dataclasses.dataclass(frozen=True)
class Failed:
    """The step, or its compensation, has failed. ``furthest``: the last of the steps sent to the host that it may have
    executed. ``unavailable``: the host or service that the step called is unavailable."""

    step: Step
    failure: Failure
    furthest: Step
    unavailable: bool = False


@dataclasses.dataclass(frozen=True)
class HostLost:
    """The host on which the step, or its compensation, should run is down."""

    step: Step


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of all steps. ``failure``: the error that repeatedly prevented the end of the operation, or None."""

    failure: Failure | None = None


Event = Done | Failed | HostLost | Ended


@dataclasses.dataclass(frozen=True)
class Eviction:
    """A host that removes the guest when it returns. ``keep_disks``: another host uses the guest's disks."""

    host: str
    keep_disks: bool


@dataclasses.dataclass(frozen=True)
class Transition:
    """The change of an action that follows an event.

    ``step``: the next step, or its compensation if ``undoing``. None: the action ends with ``outcome``, or, without
    one, the compensations of a superseded operation end and its successor continues. ``done``: the step that has ended,
    with ``failure`` if it failed (at the end: the failure of the action). ``first``, ``latest``: the first and the
    newest failure for the journal; None: the journal does not change. ``data``: the data that hooks changed, or None.
    ``deferred``: cleanups to run after the action has ended. ``retries``: the operation continues forwards after
    compensations. ``guest_lost``: the power state of the guest is unknown. ``waits``: the action waits for the return
    of the step's host, and nothing else changes."""

    step: Step | None
    undoing: bool
    outcome: Literal["", "success", "error"] = ""
    done: Step | None = None
    failure: Failure | None = None
    first: Failure | None = None
    latest: Failure | None = None
    data: Any = None
    deferred: tuple[Cleanup, ...] = ()
    eviction: Eviction | None = None
    retries: bool = False
    guest_lost: bool = False
    waits: bool = False


def decide(run: Run, event: Event) -> Transition:
    if isinstance(event, Done):
        return _done(run, event.step)
    if isinstance(event, Failed):
        return _failed(run, event)
    if isinstance(event, HostLost):
        return _host_lost(run, event.step)
    if run.inheriting:
        return _compensated(run, run.operation, None)
    if event.failure is not None:
        return Transition(None, run.action.undoing, outcome="error", failure=event.failure)
    return Transition(None, run.action.undoing, outcome="success")


def _done(run: Run, step: Step) -> Transition:
    if run.action.undoing:
        return _compensated(run, run.operation.copy(), step)
    follower = run.operation.after(step)
    return Transition(follower, undoing=False, outcome="" if follower else "success", done=step)


def _failed(run: Run, event: Failed) -> Transition:
    if event.unavailable and event.step.deferrable and not run.action.undoing:
        return dataclasses.replace(_done(run, event.step), deferred=(cleanup_of(run.operation, event.step),))
    return _compensation_failed(run, event) if run.action.undoing else _step_failed(run, event.furthest, event.failure)


def _compensation_failed(run: Run, event: Failed) -> Transition:
    """Continue with the compensations of earlier messages; give up those in the message of the failed one."""
    operation, step = run.operation.copy(), event.step
    operation.compensation_failed(step)
    # The cleanup and the eviction need the data before _compensated() changes them for a retry.
    deferred, eviction = (cleanup_of(operation, step),) if step.external else (), _eviction(operation, step)
    return dataclasses.replace(_compensated(run, operation, event.furthest), eviction=eviction, deferred=deferred)


def _step_failed(run: Run, step: Step, failure: Failure) -> Transition:
    """Compensate the operation, beginning with ``step`` if the step can have had an effect."""
    operation, first = run.operation.copy(), run.journal.failure
    if first is None or failure.kind not in _CONSEQUENCES:
        first = failure
    if failure.kind == "HostDown" and step.place != CONDUCTOR:
        # The host is down and cannot compensate. When it returns, it receives the eviction and removes the guest.
        eviction, on_host = _eviction(operation, step), operation.batch(step, undo=True)
        transition = dataclasses.replace(
            _compensated(run, operation, on_host[-1], first, failure), eviction=eviction,
            guest_lost=operation.host_of(step) == run.instance.host)  # a guest on another host is unaffected
    elif step.undo and (step.place != CONDUCTOR or step.external or failure.kind == "ClaimLost"):
        transition = Transition(step, undoing=True, done=step, failure=failure)
    else:
        # A failed conductor step wrote nothing that needs compensation.
        transition = _compensated(run, operation, step, first, failure)
    return dataclasses.replace(transition, first=first, latest=failure)


def _host_lost(run: Run, step: Step) -> Transition:
    """Wait for the host, skip the step, or let the step fail. The host may have executed all steps of its message."""
    if step.when_down == "wait" and not run.inheriting:
        return Transition(step, run.action.undoing, waits=True)
    furthest = run.furthest(step)
    if run.action.undoing or step.when_down == "skip":
        eviction = _eviction(run.operation, step if run.action.undoing else furthest)
        return dataclasses.replace(_done(run, furthest), eviction=eviction)
    host = run.operation.host_of(step)
    return _step_failed(run, furthest, failure_of(exception.HostDown(host=host), host))


def _compensated(run: Run, operation: Operation, step: Step | None, first: Failure | None = None,
                 failure: Failure | None = None) -> Transition:
    """Retry the operation if it allows a retry after the compensation of ``step``, else compensate the previous step.
    ``failure``: the failure of ``step`` if the step itself needs no compensation."""
    cause = first or run.journal.failure or Failure(message="Unknown failure.")
    if (step is not None and operation.retry_from == step.name and not run.inheriting
            and operation.may_retry(failure or run.journal.latest or cause)):
        return Transition(step, undoing=False, done=step, failure=failure, data=operation.data, retries=True)
    previous = operation.before(step) if step is not None else None
    if previous is not None:
        return Transition(previous, undoing=True, done=step, failure=failure, data=operation.data)
    if run.inheriting:
        return Transition(None, undoing=True, data=operation.data)
    return Transition(None, undoing=True, outcome="error", done=step if failure else None, failure=cause,
                      data=operation.data)


def enter(run: Run, transition: Transition, ctl: Control) -> Step | None:
    """Apply the transition to the run in memory, call the hooks of the operation, and return the next step. The
    changes of the instance are collected in ``ctl``. ``run.action.step`` still names the current step: the executor
    changes it when the transition is committed."""
    operation, journal = run.operation, run.journal
    if transition.data is not None:
        operation.data = transition.data
    journal.failure, journal.latest = transition.first or journal.failure, transition.latest or journal.latest
    journal.cleanups = [*journal.cleanups, *transition.deferred]
    run.action.undoing = transition.undoing
    if transition.guest_lost:
        ctl.set(power_state=states.NOSTATE)
    if transition.eviction is not None:
        ctl.evict(transition.eviction.host, transition.eviction.keep_disks)
    if transition.retries:
        ctl.set(task_state=operation.task_state)
    if transition.step is not None:
        if not transition.undoing:  # The cleanup of an earlier try of the step would remove what the step creates now.
            journal.cleanups = [cleanup for cleanup in journal.cleanups
                                if (cleanup.operation, cleanup.step) != (operation.name, transition.step.name)]
        return transition.step
    if transition.outcome == "success":
        operation.succeeded(ctl)
    elif transition.outcome == "error":
        assert transition.failure is not None
        operation.failed(ctl, transition.failure)
    else:
        operation.superseded(ctl)
        run.disinherit()
        return run.first()
    return None


def _eviction(operation: Operation, step: Step) -> Eviction | None:
    """Return the eviction of the guest from the host of ``step``, if the steps up to ``step`` created a guest there."""
    host = operation.host_of(step)
    executed = [item for item in operation.steps[:operation.steps.index(step) + 1] if operation.applies(item)]
    if host and not operation.stays(host) and any(item.evict and item.place == step.place for item in executed):
        return Eviction(host, operation.keeps_disks(host))
    return None
