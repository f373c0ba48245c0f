"""Walking an action through its steps: every advance is one transaction under the action's attempt.

It writes the step's results, the instance and the next step together. What comes after the commit (messages) may get
lost: it never makes a step that was committed a failed one, since its lease ends and somebody goes on.
"""

from __future__ import annotations

import datetime
import functools
import logging
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.resources import volume_keys
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.debts import Debts, owed_by, owed_for
from nova.conductor.saga.run import Run, owner_of
from nova.conductor.saga.telling import Notice, passed
from nova.conf import CONF
from nova.db import actions, dedicated_resources, evictions, external_events, security_filters, servers, services
from nova.db.sql import clock
from nova.objects import states
from nova.objects.action import Action, Failure
from nova.objects.instance import with_ways, without_secrets
from nova.objects.network import RuleSet
from nova.objects.order import StepOrder
from nova.objects.volume import journal_without_secrets
from nova.operations.base import CONDUCTOR, Step, Wait, context_of
from nova.operations.failures import failure_of
from nova.telemetry import metrics, tracing

LOG = logging.getLogger(__name__)

# How often a step is begun (a host is asked for it, or a conductor needs a service that does not answer) before it
# counts as failed.
MAX_TRIES = 20
_PAUSE = 3.0


class Walk:
    """The steps of all actions. ``submit(ctx, run)`` lets a run go on in the background."""

    def __init__(self, core: Core, submit: Callable[[context.RequestContext, Run], None], debts: Debts) -> None:
        self.core = core
        self._submit = submit
        self._debts = debts

    def advance(self, ctx: context.RequestContext, run: Run) -> None:
        """Take the next step; whatever stands in the way is tried again after a pause."""
        ctx.update_store()
        owed = owed_by(run)
        try:
            with tracing.span(f"conductor {run.label}", ctx, instance=run.instance.uuid, attempt=run.action.attempt):
                self._advance(ctx, run)
        except exception.StaleReport:
            LOG.info("[instance: %s] Operation %s was superseded; nothing to do", run.instance.uuid, run.action.action)
            self._debts.came_late(run, owed)
        except Exception as error:
            if not self.let_go(ctx, run, error):
                self._debts.came_late(run, owed)

    def _advance(self, ctx: context.RequestContext, run: Run) -> None:
        step = run.step
        if step is None and run.inheriting:
            self._undone(ctx, run, None, self._control(ctx, run))
        elif step is None:
            self._finish(ctx, run, self._control(ctx, run), None)
        elif step.place != CONDUCTOR:
            self._dispatch_again(ctx, run, step)
        elif run.journal.tries > MAX_TRIES:
            self._give_up(ctx, run, exception.ServiceUnavailable(
                f"Step {step.name} was begun {MAX_TRIES} times and did not come to its end."))
        else:
            self._run_here(ctx, run, step)

    def _control(self, ctx: context.RequestContext, run: Run) -> ConductorControl:
        ctl = ConductorControl(self.core, ctx, run.instance, asked=run.asked)
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
                self.succeeded(ctx, run, step, ctl)
        except Wait as wait:
            self._park(run, wait)
        except (exception.StaleReport, exception.ServiceUnavailable):
            raise  # somebody else goes on; or the broker, a scheduler, a neighbour or the database is away
        except Exception as error:
            if not isinstance(error, exception.NovaException):
                LOG.exception("[instance: %s] Step %s failed", run.instance.uuid, step.name)
            if isinstance(error, exception.ClaimLost):
                metrics.CLAIMS.inc("lost")
                LOG.info("[instance: %s] Its claim at node %s is lost", run.instance.uuid, error.kwargs.get("node"))
                self.core.usage.touch({str(error.kwargs["node"])})  # schedulers count the server as placed there
            elif not step.external:
                run.operation.data = msgspec.convert(before, run.operation.data_type)
            self._renew_instance(run)
            if step.owed and not run.action.undoing and isinstance(error, exception.HostDown):
                self._owe(ctx, run, step)
            else:
                self.failed(ctx, run, step, failure_of(error), self._control(ctx, run))

    def _renew_instance(self, run: Run) -> None:
        """The instance without the wishes of a step that failed."""
        run.renew(self.core.db.read(lambda connection: servers.get(connection, run.instance.uuid, deleted=True)))

    def _park(self, run: Run, wait: Wait) -> None:
        """Let the action wait without a thread, unless what it waits for has come meanwhile."""
        until = run.journal.waits_until
        if until is None or clock.now() >= until:
            until = clock.after(wait.seconds)
        run.journal.waits_until = until
        payload = run.payload()

        def write(connection: sa.Connection) -> Run | None:
            actions.update(connection, run.action, owner=None, lease_until=until, payload=payload,
                           waits_for=f",{','.join(wait.events)},")
            # Whoever brings an event looks for us under the lock of the action's row, so one of us sees the other.
            if wait.events and external_events.came(connection, run.instance.uuid, wait.events):
                actions.update(connection, run.action, lease_until=clock.now())
            return self._let_go_ahead(connection, run, wait) if wait.ahead else None

        ahead = self.core.db.write(write)
        LOG.info("[instance: %s] %s %s", run.instance.uuid, run.label, wait)
        if ahead is not None:
            self._submit(context_of(ahead.action), ahead)

    def _let_go_ahead(self, connection: sa.Connection, run: Run, wait: Wait) -> Run | None:
        """The operation that what the action waits for is waiting for has the instance first; the action stands in the
        queue meanwhile, and goes on by its lease or when that one ends."""
        servers.lock(connection, run.instance.uuid)
        first = actions.next_queued(connection, run.instance.uuid, self.core.name, lease(), wait.ahead)
        if first is None:
            return None
        actions.update(connection, run.action, queued=True)
        return self._hand_on(connection, first)

    def _hand_on(self, connection: sa.Connection, follower: Action) -> Run:
        """The instance is that one's, which waited for it."""
        servers.update(connection, follower.instance_uuid, {"action_uuid": follower.uuid})
        next_run = Run(follower, servers.get(connection, follower.instance_uuid, deleted=True))
        if next_run.operation.relocate():
            actions.update(connection, follower, payload=next_run.payload())
        return next_run

    # --- the end of a step -----------------------------------------------------------------------------
    def succeeded(self, ctx: context.RequestContext, run: Run, step: Step, ctl: ConductorControl) -> None:
        """``step`` is done: go on with the next one."""
        if run.action.undoing:
            self._undone(ctx, run, step, ctl)
            return
        follower = run.operation.after(step)
        if follower is None:
            self._finish(ctx, run, ctl, None, done=step)
        else:
            self._go_to(ctx, run, follower, ctl, done=step)

    def failed(self, ctx: context.RequestContext, run: Run, step: Step, failure: Failure,
               ctl: ConductorControl, came_to: Step | None = None) -> None:
        """``step`` failed: begin to run backwards, from ``came_to`` if its host may have come further than that.

        A compensation that fails does not stop the others; ``came_to`` is then the last one that is given up with it.
        """
        if run.action.undoing:
            LOG.error("[instance: %s] Compensation of %s failed: %s; the others go on", run.instance.uuid, step.name,
                      failure.message)
            run.operation.not_undone(step)
            if step.external:
                run.journal.owes.append(owed_for(run, step))
            self._evict(run, step, ctl)
            self._undone(ctx, run, came_to or step, ctl)
            return
        LOG.warning("[instance: %s] Operation %s failed at %s%s: %s", run.instance.uuid, run.action.action, step.name,
                    f" on {failure.host}" if failure.host else "", failure.inside or failure.message)
        step = came_to or step
        tracing.failed(failure.inside or failure.message)
        # The first cause is what the user needs: "no more hosts" after it explains nothing.
        if run.journal.failure is None or failure.kind not in ("NoValidHost", "MaxRetriesExceeded", "ClaimLost"):
            run.journal.failure = failure
        run.journal.latest = failure
        run.action.undoing = True
        if failure.kind == "HostDown":
            # Nothing can be undone there: the host is told by an eviction when it returns, and tells what it has done.
            if run.operation.host_of(step) == run.instance.host:  # elsewhere its guest is as it was
                ctl.set(power_state=states.NOSTATE)
            self._evict(run, step, ctl)
            self._undone(ctx, run, run.operation.batch(step, undo=True)[-1], ctl, failure)
        elif step.undo and (step.place != CONDUCTOR or step.external or failure.kind == "ClaimLost"):
            self._go_to(ctx, run, step, ctl, done=step, failure=failure)
        else:
            # A conductor step that failed wrote nothing: nothing to undo of it.
            self._undone(ctx, run, step, ctl, failure)

    def _undone(self, ctx: context.RequestContext, run: Run, step: Step | None, ctl: ConductorControl,
                failure: Failure | None = None) -> None:
        """``step`` is compensated: go on forwards again if the operation may, else further back."""
        operation, cause = run.operation, run.journal.failure or Failure(message="Unknown failure.")
        if (step is not None and operation.retry_from == step.name and not run.inheriting
                and operation.may_retry(run.journal.latest or cause)):
            run.action.undoing = False
            run.journal.owes = [owed for owed in run.journal.owes if owed.operation != operation.name]  # it finds that
            metrics.RETRIES.inc(operation.name)
            ctl.set(task_state=operation.task_state)
            self._go_to(ctx, run, step, ctl, done=step, failure=failure)
            return
        previous = operation.before(step) if step is not None else None
        if previous is not None:
            self._go_to(ctx, run, previous, ctl, done=step, failure=failure)
        elif run.inheriting:
            operation.superseded(ctl)
            run.disinherit()
            self._go_to(ctx, run, run.first(), ctl, done=None)
        else:
            self._finish(ctx, run, ctl, cause, done=step if failure else None)

    def give_up_host(self, ctx: context.RequestContext, run: Run, step: Step, host: str) -> None:
        """The host does not answer any more, and what it was asked for is decided without it."""
        if step.when_down == "wait" and not run.inheriting:
            self._wait_for(run, host)
            return
        ctl = self._control(ctx, run)
        ctl.effects.append(functools.partial(services.still_down, host=host))
        # How far the host came is not known: all that it was asked for counts.
        last = run.furthest(step)
        if run.action.undoing or step.when_down == "skip":
            self._evict(run, step if run.action.undoing else last, ctl)
            self.succeeded(ctx, run, last, ctl)
        else:
            run.action.events = run.opened(step)
            self.failed(ctx, run, step, failure_of(exception.HostDown(host=host), host), ctl, last)

    def _wait_for(self, run: Run, host: str) -> None:
        """The host takes its order up when it is back: nobody but it knows how far it came."""
        run.action.owner = owner_of(host)
        self.core.db.write(lambda connection: actions.update(
            connection, run.action, owner=run.action.owner, lease_until=lease()))
        LOG.info("[instance: %s] %s waits until host %s is back", run.instance.uuid, run.label, host)

    def _evict(self, run: Run, step: Step, ctl: ConductorControl) -> None:
        """Order the host of ``step`` to remove what the operation made there up to that step."""
        operation, uuid = run.operation, run.instance.uuid
        host = operation.host_of(step)
        came_to = [each for each in operation.steps[:operation.steps.index(step) + 1] if operation.applies(each)]
        if host and not operation.stays(host) and any(each.evict and each.place == step.place for each in came_to):
            keep = operation.keeps_disks(host)
            ctl.effects.append(lambda connection: evictions.add(connection, uuid, host, keep))

    # --- writing -------------------------------------------------------------------------------------
    def _go_to(self, ctx: context.RequestContext, run: Run, step: Step | None, ctl: ConductorControl,
               done: Step | None, failure: Failure | None = None) -> None:
        """Store the results of ``done``, and ``step`` as the current step, in one transaction. Then run it."""
        host = run.operation.host_of(step) if step else ""
        if step and host and not run.action.undoing and step.task_state:
            ctl.set(task_state=step.task_state)
        run.journal.tries, run.journal.waits_until = (1 if host else 0), None
        closed = run.closed(done, failure) if done else list(run.action.events)
        notice = passed(self.core.outbox, run, done, step, failure)

        def write(connection: sa.Connection) -> StepOrder | None:
            run.action.events = run.opened(step, closed) if step and not run.action.undoing else closed
            self._write(connection, run, step, host, notice)
            ctl.apply(connection)
            notice.write(self.core.outbox, connection, ctx)
            return self.order(connection, run, step, run.action.attempt + 1, host) if step and host else None

        before = run.action.attempt
        order = self.core.db.write(write)
        run.action.attempt, run.action.step = before + 1, step.name if step else None
        run.journal.told = notice.told
        self._committed(ctl)
        if order is None:
            self._submit(ctx, run)
        else:
            self.send(ctx, host, order)

    def _dispatch_again(self, ctx: context.RequestContext, run: Run, step: Step) -> None:
        """Send a host step: at the start of an operation, or once more when a report never came."""
        host = run.operation.host_of(step)

        def away(connection: sa.Connection) -> bool:
            # Silence may end; the word of an operator counts at once.
            if step.when_down == "skip":
                return not services.host_up(connection, host)
            return services.forced_down(connection, host)

        tries = run.journal.tries
        if tries >= MAX_TRIES and not self.core.db.read(away):
            LOG.warning("[instance: %s] Host %s was asked %d times to run %s and never reported", run.instance.uuid,
                        host, MAX_TRIES, step.name)
            error = exception.HostDown(host=host)
            self.failed(ctx, run, step, failure_of(error, host), self._control(ctx, run), run.furthest(step))
            return

        notice = passed(self.core.outbox, run, None, step)

        def write(connection: sa.Connection) -> StepOrder | None:
            if away(connection):
                return None
            run.journal.tries = tries + 1
            if not run.action.undoing:
                run.action.events = run.opened(step)
            self._write(connection, run, step, host, notice)
            notice.write(self.core.outbox, connection, ctx)
            return self.order(connection, run, step, run.action.attempt + 1, host)

        before = run.action.attempt
        order = self.core.db.write(write)
        if order is None:
            self.give_up_host(ctx, run, step, host)
            return
        run.action.attempt = before + 1
        run.journal.told = notice.told
        self.send(ctx, host, order)

    def _write(self, connection: sa.Connection, run: Run, step: Step | None, host: str, notice: Notice) -> None:
        actions.update(
            connection, run.action, step=step.name if step else None, attempt=run.action.attempt + 1,
            undoing=run.action.undoing, owner=owner_of(host) if host else self.core.name, lease_until=lease(),
            payload=run.payload(notice.told), events=run.action.events, waits_for=None)

    def order(self, connection: sa.Connection, run: Run, step: Step, attempt: int, host: str) -> StepOrder:
        """Return the order to ``host`` to run ``step``."""
        uuid, plugs = run.instance.uuid, bool(run.instance.network_info)
        rules = security_filters.rules_for(connection, host, [uuid])[uuid] if plugs else RuleSet()
        instance, consumer = run.instance, run.operation.claim_of(step)
        if consumer:
            has = dedicated_resources.of_claim(connection, consumer)
            instance = msgspec.structs.replace(instance, numa_topology=has.numa_topology, pci_devices=has.pci_devices)
        devices = run.operation.devices_at(step)
        if devices:
            instance = msgspec.structs.replace(instance, block_devices=with_ways(instance.block_devices, devices))
        if instance.encrypted_pass:
            instance = msgspec.structs.replace(instance, admin_pass=self._password(run))
        keys = volume_keys.opened(self.core.vault, run.instance) if run.operation.needs_keys(
            step, run.action.undoing) else []
        return StepOrder(action=run.ordered(), step=step.name, attempt=attempt, undo=run.action.undoing,
                         instance=without_secrets(instance), rules=rules, volume_keys=keys, issued_at=clock.now(),
                         lease=CONF.conductor.lease)

    def _password(self, run: Run) -> str | None:
        """Return the password for the guest; that it can be decrypted was checked when a host was chosen."""
        return None if run.action.undoing else self.core.vault.known(run.instance.encrypted_pass)

    def send(self, ctx: context.RequestContext, host: str, order: StepOrder) -> None:
        """Give a host its order; if that gets lost, the lease ends and it is given again."""
        try:
            self.core.compute_at(host).run(ctx, order)
        except exception.ServiceUnavailable as error:
            LOG.warning("[instance: %s] Step %s was not sent to %s (%s); it is sent again when its lease ends",
                        order.instance.uuid, order.step, host, error)
        except Exception:
            LOG.exception("[instance: %s] Step %s was not sent to %s; it is sent again when its lease ends",
                          order.instance.uuid, order.step, host)

    def _committed(self, ctl: ConductorControl) -> None:
        """Send messages after a commit: they may be lost, and do not change what was written."""
        try:
            ctl.after_commit()
        except Exception:
            LOG.exception("[instance: %s] What was written was not told to everybody", ctl.instance.uuid)

    def _finish(self, ctx: context.RequestContext, run: Run, ctl: ConductorControl, failure: Failure | None,
                done: Step | None = None) -> None:
        """End the action and let go of the instance, in the states that the operation decides.

        ``done``: the step that ended, or failed, just now.
        """
        if failure is None:
            run.operation.succeeded(ctl)
        else:
            run.operation.failed(ctl, failure)
        ctl.forget_secrets()
        now = clock.now()
        events = run.closed(run.step, failure, at_end=True)
        notice = passed(self.core.outbox, run, done, None, failure)

        def write(connection: sa.Connection) -> Run | None:
            actions.update(
                connection, run.action, step=None, outcome="error" if failure else "success", finish_time=now,
                lease_until=lease() if run.journal.owes else None, undoing=False, events=events,
                payload={**journal_without_secrets(run.payload(notice.told)), "tries": 0},
                message="Error" if failure else None)
            ctl.apply(connection, action_uuid=None)
            notice.write(self.core.outbox, connection, ctx)
            # Looked for when the instance is ours: who was accepted before that waits, and who comes later need not.
            follower = self._next(connection, run)
            return self._hand_on(connection, follower) if follower is not None else None

        follower = self.core.db.write(write)
        metrics.finished(run.operation.name, "error" if failure else "success", run.action.start_time)
        self._committed(ctl)
        if failure:
            LOG.warning("[instance: %s] Operation %s ended in %s: %s", run.instance.uuid, run.action.action,
                        run.instance.vm_state, failure.message)
        else:
            LOG.info("[instance: %s] Operation %s is done: %s", run.instance.uuid, run.action.action,
                     run.instance.vm_state)
        if follower is not None:
            self._submit(context_of(follower.action), follower)

    def _next(self, connection: sa.Connection, run: Run) -> Action | None:
        """The operation that waits behind this one takes the instance over."""
        if not run.own.may_be_followed:
            return None
        return actions.next_queued(connection, run.instance.uuid, self.core.name, lease())

    # --- when nothing goes on ----------------------------------------------------------------------------
    def let_go(self, ctx: context.RequestContext, run: Run, error: Exception) -> bool:
        """Release an action after a temporary error: a conductor that finds it after a pause tries again.

        The action must have no owner meanwhile: an owner's leases are renewed while it lives. Returns False if somebody
        else has it already.
        """
        if isinstance(error, exception.ServiceUnavailable):
            LOG.warning("[instance: %s] %s waits: %s", run.instance.uuid, run.label, error)
        else:
            LOG.error("[instance: %s] %s could not go on", run.instance.uuid, run.label, exc_info=error)
        run.journal.tries += 1
        try:
            if run.journal.tries > MAX_TRIES:
                self._give_up(ctx, run, error)
            else:
                until, payload = clock.after(min(_PAUSE, CONF.conductor.lease)), run.payload()
                self.core.db.write(lambda connection: actions.update(
                    connection, run.action, owner=None, lease_until=until, payload=payload))
        except exception.StaleReport:
            LOG.info("[instance: %s] %s goes on without us", run.instance.uuid, run.label)
            return False
        except Exception:
            LOG.exception("[instance: %s] The database does not take that %s waits; its lease will end",
                          run.instance.uuid, run.label)
        return True

    def _give_up(self, ctx: context.RequestContext, run: Run, error: Exception) -> None:
        """The step counts as failed: what was done is compensated, and a compensation that cannot be done is left."""
        self._renew_instance(run)
        run.journal.tries = 0
        if run.inheriting:
            self._give_up_inherited(ctx, run, error)
        elif (step := run.step) is not None and step.owed and isinstance(error, exception.ServiceUnavailable):
            self._owe(ctx, run, step)
        elif step is not None:
            came_to = step if run.action.undoing else run.furthest(step)
            self.failed(ctx, run, step, failure_of(error), self._control(ctx, run), came_to)
        else:
            self._finish(ctx, run, self._control(ctx, run), failure_of(error))

    def _owe(self, ctx: context.RequestContext, run: Run, step: Step) -> None:
        """Go on without the step, which is done when whoever it waits for is back."""
        run.journal.owes.append(owed_for(run, step))
        self.succeeded(ctx, run, step, self._control(ctx, run))

    def _give_up_inherited(self, ctx: context.RequestContext, run: Run, error: Exception) -> None:
        """Give up the compensation of a superseded operation, so that it does not block its successor for ever."""
        inherited, step = run.operation, run.step
        try:
            if step is not None:
                self.failed(ctx, run, step, failure_of(error), self._control(ctx, run))
            else:
                self._undone(ctx, run, None, self._control(ctx, run))
        except (exception.StaleReport, exception.ServiceUnavailable):
            raise
        except Exception:
            LOG.exception("[instance: %s] What operation %s held is not let go of", run.instance.uuid, inherited.name)
            self._renew_instance(run)
            if run.operation is inherited:
                run.disinherit()
            self._go_to(ctx, run, run.first(), self._control(ctx, run), done=None)


def lease() -> datetime.datetime:
    """The end of a lease that begins now."""
    return clock.after(CONF.conductor.lease)
