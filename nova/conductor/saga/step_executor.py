"""Execution of the steps of an action: events are decided, and each transition is one transaction.

The transaction is fenced by the attempt of the action. It writes the results of a step, the instance and the next step
together. Messages follow the commit and may get lost: the lease of the action then ends and a conductor continues, so a
lost message never fails a step."""

import datetime
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.resources import volume_keys
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.decision import Done, Ended, Event, Failed, HostLost, Transition, decide, enter
from nova.conductor.saga.deferred_cleanup import DeferredCleanup
from nova.conductor.saga.run import Run, owner_of, read_run
from nova.conductor.saga.transition_notifications import TransitionNotifications, of_transition
from nova.conf import CONF
from nova.db.hosts import dedicated_resources, services
from nova.db.networks import security_filters
from nova.db.servers import actions, external_events, servers
from nova.db.sql import clock
from nova.objects.networks.network import RuleSet
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import with_ways, without_secrets
from nova.objects.servers.order import StepOrder
from nova.objects.volumes.volume import journal_without_secrets
from nova.operations.framework.base import CONDUCTOR, Step, Wait, context_of, failure_of
from nova.telemetry import metrics, tracing

LOG = logging.getLogger(__name__)

# Number of times that a step is dispatched to a host, or started on a conductor, before it counts as failed.
MAX_TRIES = 20
_PAUSE = 3.0  # seconds until a conductor retries a step after a temporary error, or [conductor]lease if that is shorter


class StepExecutor:
    """The executor of the steps of all actions. ``submit(ctx, run)`` continues a run in the background."""

    def __init__(self, core: Core, submit: Callable[[context.RequestContext, Run], None],
                 cleanup: DeferredCleanup) -> None:
        self.core, self._submit, self._cleanup = core, submit, cleanup

    def advance(self, ctx: context.RequestContext, run: Run) -> None:
        """Execute the next step. After a temporary error the step is retried after a pause."""
        ctx.update_store()
        cleanup = run.current_cleanup
        try:
            with tracing.span(f"conductor {run.label}", ctx, instance=run.instance.uuid, attempt=run.action.attempt):
                self._advance(ctx, run)
        except exception.StaleReport:
            LOG.info("[instance: %s] Operation %s was superseded or continues on another conductor", run.instance.uuid,
                     run.action.action)
            self._cleanup.call_returned_late(run, cleanup)
        except Exception as error:
            if not self.release_after_error(ctx, run, error):
                self._cleanup.call_returned_late(run, cleanup)

    def _advance(self, ctx: context.RequestContext, run: Run) -> None:
        step = run.step
        if step is None:
            self.handle(ctx, run, Ended())
        elif step.place != CONDUCTOR:
            self._dispatch_again(ctx, run, step)
        elif run.journal.tries > MAX_TRIES:
            self._give_up(ctx, run, exception.ServiceUnavailable(
                f"Step {step.name} was started {MAX_TRIES} times and never ended."))
        else:
            self._run_here(ctx, run, step)

    def _control(self, ctx: context.RequestContext, run: Run) -> ConductorControl:
        ctl = ConductorControl(self.core, ctx, run.instance, scheduler_queries=run.scheduler_queries)
        until = run.journal.waits_until
        ctl.waited_out = until is not None and clock.now() >= until
        return ctl

    # --- conductor steps -----------------------------------------------------------------------------
    def _run_here(self, ctx: context.RequestContext, run: Run, step: Step) -> None:
        before = msgspec.to_builtins(run.operation.data)
        ctl = self._control(ctx, run)
        try:
            with metrics.step(run.operation.name, step.name, run.action.undoing):
                run.operation.run(step, ctl, run.action.undoing)
                self.handle(ctx, run, Done(step), ctl)
        except Wait as wait:
            self._park(run, wait)
        except exception.StaleReport:
            raise  # end the run: another process has taken over the action
        except Exception as error:
            if not step.external and not isinstance(error, exception.ClaimLost):
                run.operation.data = msgspec.convert(before, run.operation.data_type)
            if isinstance(error, exception.ServiceUnavailable):
                raise  # an external service, the broker or the database is unavailable: the step is retried
            if not isinstance(error, exception.NovaException):
                if run.action.undoing and not step.external:
                    raise  # the step is retried, because nothing else repeats its compensation
                LOG.exception("[instance: %s] Unexpected error, step %s fails", run.instance.uuid, step.name)
            if isinstance(error, exception.ClaimLost):
                metrics.CLAIMS.inc("lost")
                LOG.info("[instance: %s] Claim on node %s failed: resources were allocated to another server meanwhile",
                         run.instance.uuid, error.kwargs.get("node"))
                self.core.usage.touch({str(error.kwargs["node"])})  # schedulers must not count this server on the node
            self._reload_instance(run)
            self.handle(ctx, run, Failed(step, failure_of(error), step, isinstance(error, exception.HostDown)))

    def _reload_instance(self, run: Run) -> None:
        """Discard the changes that a failed step made to the instance in memory."""
        run.use_instance(self.core.db.read(lambda connection: servers.get(connection, run.instance.uuid, deleted=True)))

    def _park(self, run: Run, wait: Wait) -> None:
        """Store that the action waits, and free its thread. An event that has already arrived resumes the action."""
        until = run.journal.waits_until
        if until is None or clock.now() >= until:
            until = clock.after(wait.seconds)
        run.journal.waits_until = until
        payload = run.payload()

        def write(connection: sa.Connection) -> Run | None:
            actions.update(connection, run.action, owner=None, lease_until=until, payload=payload,
                           waits_for=f",{','.join(wait.events)},")
            # The receiver of an event searches for waiting actions under the lock of this row, so no event is missed.
            if wait.events and external_events.came(connection, run.instance.uuid, wait.events):
                actions.update(connection, run.action, lease_until=clock.now())
            if not wait.ahead:
                return None
            # If the awaited event depends on a queued operation, that operation starts. The waiting action returns to
            # the queue, and continues when that operation ends or when the action's own lease expires.
            servers.lock(connection, run.instance.uuid)
            first = self._start_queued(connection, run.instance.uuid, wait.ahead)
            if first is not None:
                actions.update(connection, run.action, queued=True)
            return first

        other = self.core.db.write(write)
        LOG.info("[instance: %s] %s %s", run.instance.uuid, run.label, wait)
        if other is not None:
            self._submit(context_of(other.action), other)

    def _start_queued(self, connection: sa.Connection, instance_uuid: str,
                      operations: Sequence[str] = ()) -> Run | None:
        """Make the oldest queued action (among these ``operations``) the holder of the instance and return its run. An
        action that this release cannot read stays in the queue, for a conductor of the release that accepted it."""
        action = actions.next_queued(connection, instance_uuid, operations)
        while action is not None:
            run = read_run(connection, action)
            if run is None:
                actions.update(connection, action, lease_until=clock.now())
                action = actions.next_queued(connection, instance_uuid, operations, action.id)
                continue
            changes: dict[str, Any] = {"queued": False, "owner": self.core.name, "lease_until": lease()}
            if run.operation.relocate():
                changes["payload"] = run.payload()
            actions.update(connection, action, **changes)
            run.action = msgspec.structs.replace(action, **changes)
            servers.update(connection, instance_uuid, {"action_uuid": action.uuid})
            run.instance.action_uuid = action.uuid
            return run
        return None

    # --- events and transitions --------------------------------------------------------------------------
    def handle(self, ctx: context.RequestContext, run: Run, event: Event, ctl: ConductorControl | None = None) -> None:
        """Apply the transition that follows an event. ``ctl``: the changes that the step made."""
        transition = decide(run, event)
        if isinstance(event, Failed):
            if run.action.undoing or transition.latest is not None:
                _log_failure(run, event.step, event.failure)
            else:
                LOG.warning("[instance: %s] Step %s of operation %s is deferred until its service responds: %s",
                            run.instance.uuid, event.step.name, run.action.action, event.failure.message)
        self._apply(ctx, run, transition, ctl or self._control(ctx, run))

    def give_up_host(self, ctx: context.RequestContext, run: Run, step: Step, host: str) -> None:
        """Handle a step whose host is down: wait for the host, skip the step, or let it fail."""
        transition = decide(run, HostLost(step))
        if transition.waits:
            # Only the host knows the progress of its steps, which it resumes when it returns.
            run.action.owner = owner_of(host)
            self.core.db.write(lambda connection: actions.update(
                connection, run.action, owner=run.action.owner, lease_until=lease()))
            LOG.info("[instance: %s] %s waits until host %s returns", run.instance.uuid, run.label, host)
            return
        ctl = self._control(ctx, run)
        ctl.effects.append(functools.partial(services.still_down, host=host))
        if transition.latest is not None:
            run.action.events = run.opened(step)
            _log_failure(run, step, transition.latest)
        self._apply(ctx, run, transition, ctl)

    def _apply(self, ctx: context.RequestContext, run: Run, transition: Transition, ctl: ConductorControl) -> None:
        """Store a transition in one transaction; then execute the next step, or start the next operation. ``run`` does
        not change, because the transaction may be rolled back."""
        done, failure, following = transition.done, transition.failure, run.copy()
        if transition.outcome:
            following.action.events = following.closed(following.step, failure, at_end=True)
        elif done:
            following.action.events = following.closed(done, failure)
        step = enter(following, transition, ctl)
        host = following.operation.host_of(step) if step else ""
        if transition.outcome:
            ctl.forget_secrets()
        elif step and host and not following.action.undoing and step.task_state:
            ctl.set(task_state=step.task_state)
        following.journal.tries, following.journal.waits_until = (1 if host else 0), None
        notifications = of_transition(self.core.outbox, following, None if run.action.undoing else done, step, failure)

        def write(connection: sa.Connection) -> StepOrder | Run | None:
            if transition.outcome:
                self._write_end(connection, following, transition, notifications)
                ctl.apply(connection, action_uuid=None)
            else:
                self._write(connection, following, step, host, notifications)
                ctl.apply(connection)
            notifications.write(self.core.outbox, connection, ctx)
            if step and host:
                return self.order(connection, following, step, run.action.attempt + 1, host)
            return self._next_queued(connection, following) if transition.outcome else None

        next_order = self.core.db.write(write)
        if transition.retries:
            metrics.RETRIES.inc(run.operation.name)
        if transition.outcome:
            _count_and_log_end(following, failure)
        else:
            following.action.attempt, following.action.step = run.action.attempt + 1, step.name if step else None
            following.journal.open_events = notifications.open_events
        self._committed(ctl)
        if isinstance(next_order, StepOrder):
            self.send(ctx, host, next_order)
        elif next_order is not None:
            self._submit(context_of(next_order.action), next_order)
        elif not transition.outcome:
            self._submit(ctx, following)

    # --- writing -------------------------------------------------------------------------------------
    def _dispatch_again(self, ctx: context.RequestContext, run: Run, step: Step) -> None:
        """Send a host step at the start of an operation, or again because no report arrived."""
        host = run.operation.host_of(step)

        def is_down(connection: sa.Connection) -> bool:
            # A host without heartbeats may return, but a host that an operator forced down counts as down immediately.
            if step.when_down == "skip":
                return not services.host_up(connection, host)
            return services.forced_down(connection, host)

        if run.journal.tries >= MAX_TRIES and not self.core.db.read(is_down):
            LOG.warning("[instance: %s] Step %s was sent to host %s %d times without a report; the operation fails",
                        run.instance.uuid, step.name, host, MAX_TRIES)
            self.handle(ctx, run, Failed(step, failure_of(exception.HostDown(host=host), host), run.furthest(step)))
            return

        following = run.copy()
        following.journal.tries += 1
        notifications = of_transition(self.core.outbox, following, None, step)

        def write(connection: sa.Connection) -> StepOrder | None:
            if is_down(connection):
                return None
            self._write(connection, following, step, host, notifications)
            notifications.write(self.core.outbox, connection, ctx)
            return self.order(connection, following, step, run.action.attempt + 1, host)

        order = self.core.db.write(write)
        if order is None:
            self.give_up_host(ctx, run, step, host)
        else:
            self.send(ctx, host, order)

    def _write(self, connection: sa.Connection, run: Run, step: Step | None, host: str,
               notifications: TransitionNotifications) -> None:
        if step:
            run.action.events = run.opened(step)
        actions.update(
            connection, run.action, step=step.name if step else None, attempt=run.action.attempt + 1,
            undoing=run.action.undoing, owner=owner_of(host) if host else self.core.name, lease_until=lease(),
            payload=run.payload(notifications.open_events), events=run.action.events, waits_for=None)

    def order(self, connection: sa.Connection, run: Run, step: Step, attempt: int, host: str) -> StepOrder:
        uuid, plugs = run.instance.uuid, bool(run.instance.network_info)
        rules = security_filters.rules_for(connection, [uuid])[uuid] if plugs else RuleSet()
        instance, consumer = run.instance, run.operation.claim_of(step)
        if consumer:
            claimed = dedicated_resources.of_claim(connection, consumer)
            instance = msgspec.structs.replace(instance, numa_topology=claimed.numa_topology,
                                               pci_devices=claimed.pci_devices)
        devices = run.operation.devices_at(step)
        if devices:
            instance = msgspec.structs.replace(instance, block_devices=with_ways(instance.block_devices, devices))
        if instance.encrypted_pass:  # the selection of the host checked that it can be decrypted
            password = None if run.action.undoing else self.core.cipher.try_decrypt(instance.encrypted_pass)
            instance = msgspec.structs.replace(instance, admin_pass=password)
        needs_keys = run.operation.needs_keys(step, run.action.undoing)
        keys = volume_keys.opened(self.core.cipher, run.instance) if needs_keys else []
        instance = msgspec.structs.replace(instance, tpm_secret=self.core.cipher.try_decrypt(
            instance.encrypted_tpm_secret) if needs_keys else None)
        return StepOrder(action=run.ordered(), step=step.name, attempt=attempt, undo=run.action.undoing,
                         instance=without_secrets(instance), rules=rules, volume_keys=keys, issued_at=clock.now(),
                         lease=CONF.conductor.lease)

    def send(self, ctx: context.RequestContext, host: str, order: StepOrder) -> None:
        """Send steps to a host. If the message is lost, the lease of the action ends and the steps are sent again."""
        try:
            self.core.compute_at(host).run(ctx, order)
        except exception.ServiceUnavailable as error:
            LOG.warning("[instance: %s] Cannot send step %s to host %s, retrying when the lease of the operation ends: "
                        "%s", order.instance.uuid, order.step, host, error)
        except Exception:
            LOG.exception("[instance: %s] Cannot send step %s to host %s, retrying when the lease of the operation "
                          "ends", order.instance.uuid, order.step, host)

    def _committed(self, ctl: ConductorControl) -> None:
        """Send the messages that follow a commit. A failure is only logged: periodic tasks repeat the messages."""
        try:
            ctl.after_commit()
        except Exception:
            LOG.exception("[instance: %s] Cannot send the messages that follow a committed change; periodic tasks send "
                          "them again", ctl.instance.uuid)

    @staticmethod
    def _write_end(connection: sa.Connection, run: Run, transition: Transition,
                   notifications: TransitionNotifications) -> None:
        actions.update(connection, run.action, step=None, outcome=transition.outcome, finish_time=clock.now(),
                       lease_until=lease() if run.journal.cleanups else None, undoing=False, events=run.action.events,
                       payload=journal_without_secrets(run.payload(notifications.open_events)),
                       message="Error" if transition.failure else None)

    def _next_queued(self, connection: sa.Connection, run: Run) -> Run | None:
        """Hand the instance over to the next queued operation, if there is one, and return its run."""
        if not run.own.may_be_followed:
            return None
        # The instance is locked: operations accepted earlier are in the queue, later ones will find the instance free.
        return self._start_queued(connection, run.instance.uuid)

    # --- errors --------------------------------------------------------------------------------------------
    def release_after_error(self, ctx: context.RequestContext, run: Run, error: Exception) -> bool:
        """Release an action after a temporary error, so that any conductor retries it after a pause. Meanwhile the
        action has no owner, because an owner renews its leases. Returns False if another process took it over."""
        if isinstance(error, exception.ServiceUnavailable):
            LOG.warning("[instance: %s] %s failed temporarily, retrying: %s", run.instance.uuid, run.label, error)
        else:
            LOG.error("[instance: %s] %s failed unexpectedly, retrying", run.instance.uuid, run.label, exc_info=error)
        run.journal.tries += 1
        try:
            if run.journal.tries > MAX_TRIES:
                self._give_up(ctx, run, error)
            else:
                until, payload = clock.after(min(_PAUSE, CONF.conductor.lease)), run.payload()
                self.core.db.write(lambda connection: actions.update(
                    connection, run.action, owner=None, lease_until=until, payload=payload))
        except exception.StaleReport:
            LOG.info("[instance: %s] %s continues on another conductor", run.instance.uuid, run.label)
            return False
        except Exception:
            LOG.exception("[instance: %s] Cannot store the retry of %s; a conductor retries when the lease of the "
                          "operation ends", run.instance.uuid, run.label)
        return True

    def _give_up(self, ctx: context.RequestContext, run: Run, error: Exception) -> None:
        """Treat the current step as failed: compensate the operation, or skip a compensation that cannot be done."""
        self._reload_instance(run)
        run.journal.tries = 0
        step, failure = run.step, failure_of(error)
        event: Event = Ended(failure) if step is None else Failed(
            step, failure, step if run.action.undoing else run.furthest(step),
            unavailable=isinstance(error, exception.ServiceUnavailable))
        try:
            self.handle(ctx, run, event)
        except (exception.StaleReport, exception.ServiceUnavailable):
            raise
        except Exception:
            if not run.inheriting:
                raise
            # The compensation of a superseded operation must not block its successor for ever.
            LOG.exception("[instance: %s] Cannot release the resources of the superseded operation %s, its successor "
                          "continues; check the server for leftovers", run.instance.uuid, run.operation.name)
            self._reload_instance(run)
            run.disinherit()
            step = run.first()
            if step is None:
                self.handle(ctx, run, Ended())
            else:
                self._apply(ctx, run, Transition(step, run.action.undoing), self._control(ctx, run))


def _log_failure(run: Run, step: Step, failure: Failure) -> None:
    if run.action.undoing:
        LOG.error("[instance: %s] Compensation of step %s failed, continuing with the other compensations: %s",
                  run.instance.uuid, step.name, failure.message)
    else:
        LOG.warning("[instance: %s] Operation %s failed at %s%s: %s", run.instance.uuid, run.action.action,
                    step.name, f" on {failure.host}" if failure.host else "", failure.inside or failure.message)
        tracing.failed(failure.inside or failure.message)


def _count_and_log_end(run: Run, failure: Failure | None) -> None:
    metrics.finished(run.operation.name, "error" if failure else "success", run.action.start_time)
    if failure:
        LOG.warning("[instance: %s] Operation %s failed, vm_state is %s: %s", run.instance.uuid, run.action.action,
                    run.instance.vm_state, failure.message)
    else:
        LOG.info("[instance: %s] Operation %s succeeded, vm_state is %s", run.instance.uuid, run.action.action,
                 run.instance.vm_state)


def lease() -> datetime.datetime:
    return clock.after(CONF.conductor.lease)
