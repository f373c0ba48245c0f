"""The saga engine: journals actions and walks them through their steps.

Every advance is one transaction that is fenced by the action's attempt: it writes the step's
results, the instance and the next step together. Whatever is lost after a commit (this process,
a message, a host) is found again by its lease.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception, load, metrics, tracing
from nova.conductor.control import ConductorControl, converted
from nova.conductor.core import Core
from nova.conductor.held import Held
from nova.conductor.run import Run, owner_of
from nova.conf import CONF
from nova.db import actions, clock, instances, security_groups, services
from nova.objects import states
from nova.objects.action import Action, Failure
from nova.objects.base import new_uuid, utcnow
from nova.objects.instance import Instance, StepOrder, StepReport
from nova.operations.base import CONDUCTOR, Journal, Operation, Step, context_of
from nova.operations.failures import failure_of

LOG = logging.getLogger(__name__)

# How often a step is sent to a host that is up and yet never reports, before it counts as failed.
_MAX_DISPATCHES = 10

# How often a conductor step is tried again because a service it needs did not answer.
_MAX_ATTEMPTS = 20
_PAUSE = 3


class Engine:
    """One per conductor process."""

    def __init__(self, core: Core, pool: concurrent.futures.Executor | None = None) -> None:
        self.core = core
        self._held = Held()
        self._pool = pool or concurrent.futures.ThreadPoolExecutor(CONF.conductor.threads,
                                                                   thread_name_prefix="steps")

    def stop(self) -> None:
        """Let the running conductor steps finish; queued ones are for another conductor."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    # --- accepting ---------------------------------------------------------------------------------
    def new_action(self, ctx: context.RequestContext, operation: type[Operation], instance: Instance,
                   data: dict[str, Any]) -> Action:
        """The journal row of a run, at its first step, held by this conductor."""
        first = operation(instance, data).first()
        return Action(
            uuid=new_uuid(), instance_uuid=instance.uuid, action=operation.action, operation=operation.name,
            payload=msgspec.to_builtins(Journal(data=data, trace=tracing.traceparent())),
            step=first.name if first else None, attempt=1, owner=self.core.name, lease_until=self._lease(),
            request_id=ctx.request_id, user_id=ctx.user_id, project_id=ctx.project_id, start_time=utcnow(),
            updated_at=utcnow())

    def submit(self, ctx: context.RequestContext, run: Run) -> None:
        """Advance a run in the background."""
        self._later(self._advance_safely, ctx, run)

    def _later(self, function: Callable[..., None], ctx: context.RequestContext, work: Run | list[Run]) -> None:
        """Run ``function(ctx, work)`` in the background; until it ends the actions are in our hands."""
        uuids = [run.action.uuid for run in (work if isinstance(work, list) else [work])]

        def run() -> None:
            load.METER.wait(-1)
            try:
                with load.METER.work():
                    function(ctx, work)
            finally:
                self._held.drop(uuids)

        self._held.take(uuids)
        try:
            load.METER.wait(1)
            self._pool.submit(run)
        except RuntimeError:
            # This conductor ends: what it holds is handed over when all that runs has ended.
            self._held.drop(uuids)
            LOG.debug("Left to another conductor")

    def renew(self) -> None:
        """Renew the leases of what is in our hands, and of nothing else.

        An action that is ours by its row alone (the answer to a commit got lost, the database was away too long)
        has nobody who advances it: its lease must end.
        """
        for uuids in self._held.pages():
            self.core.db.write(functools.partial(actions.renew, owner=self.core.name, uuids=uuids,
                                                 until=self._lease()))

    def start_builds(self, ctx: context.RequestContext, runs: list[Run]) -> None:
        """Place the servers of one request together, so that they are chosen in one look at the fleet."""
        if len(runs) == 1:
            self.submit(ctx, runs[0])
        else:
            self._later(self._place_together, ctx, runs)

    def _place_together(self, ctx: context.RequestContext, runs: list[Run]) -> None:
        ctx.update_store()
        spec = msgspec.structs.replace(runs[0].operation.data.spec,
                                       instance_uuids=[run.instance.uuid for run in runs])
        try:
            ConductorControl(self.core, ctx, runs[0].instance).group_hosts(spec)
            with tracing.span("conductor place together", ctx, servers=len(runs)):
                chosen = self.core.scheduler.select(ctx, spec)
            for run, candidates in zip(runs, chosen, strict=True):
                run.operation.data.candidates, run.operation.data.selected = candidates, True
        except Exception as error:
            # Each asks for itself then, and fails with its own fault.
            LOG.info("%d servers could not be placed together: %s", len(runs), error)
        for run in runs:
            self.submit(ctx, run)

    # --- reports from hosts ------------------------------------------------------------------------
    def step_done(self, ctx: context.RequestContext, report: StepReport) -> None:
        """The end of an order. Raises StaleReport when the attempt is not the current one."""
        run = self._load(report)
        ctl = ConductorControl(self.core, ctx, run.instance)
        ctl.set(**converted(report.changes))
        run.operation.data = msgspec.convert({**msgspec.to_builtins(run.operation.data), **report.results},
                                             run.operation.data_type)
        step = run.operation.step_named(report.step)
        if report.failure is not None:
            failure = msgspec.convert(report.failure, Failure)
            self._step_failed(ctx, run, step, failure, ctl)
        else:
            self._step_succeeded(ctx, run, step, ctl)

    def progress(self, ctx: context.RequestContext, report: StepReport) -> None:
        """The next step of an order began."""
        run = self._load(report)
        step = run.operation.step_named(report.step)

        def write(connection: sa.Connection) -> None:
            actions.update(connection, run.action, step=step.name, events=run.opened(step),
                           lease_until=self._lease())
            if step.task_state and not run.action.undoing:
                instances.update(connection, run.instance.uuid, {"task_state": step.task_state})

        self.core.db.write(write)

    def _load(self, report: StepReport) -> Run:
        def load(connection: sa.Connection) -> Run:
            action = actions.get(connection, report.action_uuid)
            if action is None or action.outcome is not None or action.attempt != report.attempt:
                raise exception.StaleReport(action=report.action_uuid, step=report.step, attempt=report.attempt)
            return Run(action, instances.get(connection, action.instance_uuid, deleted=True))

        return self.core.db.read(load)

    def resume(self, ctx: context.RequestContext, host: str) -> list[StepOrder]:
        """New attempts of everything that a restarted host was doing."""
        def take(connection: sa.Connection) -> list[StepOrder]:
            orders = []
            for action in actions.owned(connection, owner_of(host)):
                run = Run(action, instances.get(connection, action.instance_uuid, deleted=True))
                if run.step is None:
                    continue
                try:
                    actions.update(connection, action, attempt=action.attempt + 1, lease_until=self._lease())
                except exception.StaleReport:
                    continue  # it goes on without the host
                action.attempt += 1
                orders.append(self._order(connection, run, run.step, action.attempt))
            return orders

        orders = self.core.db.write(take)
        for order in orders:
            metrics.TAKEOVERS.inc(order.action.operation or "", "restart")
        if orders:
            LOG.info("Host %s resumes %d operations", host, len(orders))
        return orders

    # --- recovery ----------------------------------------------------------------------------------
    def recover(self, ctx: context.RequestContext, limit: int = 100, reach_hosts: bool = True,
                judge_hosts: bool = True) -> int:
        """Take over actions whose lease ended; answers how many.

        Without ``reach_hosts`` those in the hands of hosts are left alone; without ``judge_hosts`` a silent
        host is asked once more rather than given up.
        """
        expired = self.core.db.read(lambda connection: actions.expired(connection, clock.now(), limit, reach_hosts))
        for action in expired:
            try:
                self._take_over(action, judge_hosts)
            except exception.StaleReport:
                continue  # somebody else was faster
            except Exception:
                LOG.exception("Action %s could not be taken over", action.uuid)
        return len(expired)

    def _take_over(self, action: Action, judge_hosts: bool) -> None:
        def take(connection: sa.Connection) -> tuple[Run, bool]:
            run = Run(action, instances.get(connection, action.instance_uuid, deleted=True))
            actions.update(connection, action, attempt=action.attempt + 1, owner=self.core.name,
                           lease_until=self._lease())
            action.attempt += 1
            action.owner = self.core.name
            step = run.step
            host = run.operation.host_of(step) if step else ""
            up = services.host_up(connection, host) if judge_hosts else not services.forced_down(connection, host)
            return run, not host or up

        run, host_up = self.core.db.write(take)
        metrics.TAKEOVERS.inc(run.operation.name, "lease")
        caller = context_of(run.action)
        LOG.info("[instance: %s] Took over %s at step %s (attempt %d)", run.instance.uuid, action.action,
                 action.step, action.attempt)
        if not host_up:
            self._later(self._host_lost, caller, run)
        else:
            self.submit(caller, run)

    def _host_lost(self, ctx: context.RequestContext, run: Run) -> None:
        ctx.update_store()
        step = run.step
        assert step is not None
        host = run.operation.host_of(step)
        ctl = ConductorControl(self.core, ctx, run.instance)
        ctl.effects.append(functools.partial(services.still_down, host=host))
        # How far the host came is not known: all that it was asked for counts.
        last = run.operation.batch(step, run.action.undoing)[-1]
        try:
            if run.action.undoing or step.when_down == "skip":
                self._step_succeeded(ctx, run, last, ctl)
            else:
                run.action.events = run.opened(step)
                self._step_failed(ctx, run, last, failure_of(exception.HostDown(host=host), host), ctl)
        except exception.StaleReport:
            LOG.info("Action %s went on without us", run.action.uuid)
        except Exception as error:
            self._let_go(ctx, run, error)

    # --- walking -------------------------------------------------------------------------------------
    def _advance_safely(self, ctx: context.RequestContext, run: Run) -> None:
        ctx.update_store()
        try:
            with tracing.span(f"conductor {run.label}", ctx, instance=run.instance.uuid, attempt=run.action.attempt):
                self._advance(ctx, run)
        except exception.StaleReport:
            LOG.info("[instance: %s] %s was superseded", run.instance.uuid, run.action.action)
        except Exception as error:
            self._let_go(ctx, run, error)

    def _let_go(self, ctx: context.RequestContext, run: Run, error: Exception) -> None:
        """What stands in the way may pass: whoever finds the action after a pause tries again.

        The action must have no owner meanwhile: an owner's leases are renewed while it lives.
        """
        if isinstance(error, exception.ServiceUnavailable):
            LOG.warning("[instance: %s] %s waits: %s", run.instance.uuid, run.action.action, error)
        else:
            LOG.error("[instance: %s] %s could not be advanced", run.instance.uuid, run.action.action, exc_info=error)
        try:
            if run.action.attempt >= _MAX_ATTEMPTS:
                self._give_up(run, failure_of(error))
            else:
                until = clock.after(min(_PAUSE, CONF.conductor.lease))
                self.core.db.write(lambda connection: actions.update(
                    connection, run.action, owner=None, lease_until=until))
        except exception.StaleReport:
            LOG.info("[instance: %s] %s went on without us", run.instance.uuid, run.action.action)
        except Exception:
            LOG.exception("[instance: %s] The database does not take that %s waits", run.instance.uuid,
                          run.action.action)

    def _give_up(self, run: Run, failure: Failure) -> None:
        """End an action that nothing can advance; an audit tells what it may have left."""
        ctl = ConductorControl(self.core, context.admin(), self.core.db.read(
            lambda connection: instances.get(connection, run.instance.uuid, deleted=True)))
        ctl.set(task_state=None, vm_state=states.ERROR)
        ctl.fault(failure)

        def write(connection: sa.Connection) -> None:
            actions.update(connection, run.action, step=None, outcome="error", finish_time=utcnow(), message="Error",
                           lease_until=None, events=run.closed(run.step, failure, at_end=True))
            ctl.apply(connection, action_uuid=None)

        self.core.db.write(write)
        metrics.finished(run.operation.name, "error", run.action.start_time)

    def _advance(self, ctx: context.RequestContext, run: Run) -> None:
        """Run conductor steps until a host has to go on, or all is done."""
        step = run.step
        if step is None:
            self._finish(ctx, run, ConductorControl(self.core, ctx, run.instance), None)
            return
        if step.place != CONDUCTOR:
            self._dispatch_again(ctx, run, step)
            return
        before = msgspec.to_builtins(run.operation.data)
        ctl = ConductorControl(self.core, ctx, run.instance)
        try:
            with metrics.step(run.operation.name, step.name, run.action.undoing):
                run.operation.run(step, ctl, run.action.undoing)
                self._step_succeeded(ctx, run, step, ctl)
        except exception.StaleReport:
            raise
        except exception.ServiceUnavailable as error:
            # The broker, a scheduler or the database is away: try again after a pause.
            if run.action.attempt < _MAX_ATTEMPTS:
                raise
            self._step_failed(ctx, run, step, failure_of(error), self._fresh_control(ctx, run))
        except Exception as error:
            if not isinstance(error, exception.NovaException):
                LOG.exception("[instance: %s] Step %s failed", run.instance.uuid, step.name)
            if isinstance(error, exception.ClaimLost):
                metrics.CLAIMS.inc("lost")
            else:
                run.operation.data = msgspec.convert(before, run.operation.data_type)
            self._step_failed(ctx, run, step, failure_of(error), self._fresh_control(ctx, run))

    def _fresh_control(self, ctx: context.RequestContext, run: Run) -> ConductorControl:
        """A control without the wishes of a step that failed."""
        fresh = self.core.db.read(lambda connection: instances.get(connection, run.instance.uuid, deleted=True))
        run.instance = run.operation.instance = fresh
        return ConductorControl(self.core, ctx, fresh)

    def _step_succeeded(self, ctx: context.RequestContext, run: Run, step: Step, ctl: ConductorControl) -> None:
        if run.action.undoing:
            self._undone(ctx, run, step, ctl)
            return
        follower = run.operation.after(step)
        if follower is None:
            self._finish(ctx, run, ctl, None)
        else:
            self._go_to(ctx, run, follower, ctl, done=step)

    def _step_failed(self, ctx: context.RequestContext, run: Run, step: Step, failure: Failure,
                     ctl: ConductorControl) -> None:
        """Begin to run backwards; a compensation that fails does not stop the others."""
        if run.action.undoing:
            LOG.error("[instance: %s] Compensation of %s failed: %s", run.instance.uuid, step.name, failure.message)
            self._undone(ctx, run, step, ctl)
            return
        LOG.warning("[instance: %s] %s failed at %s%s: %s", run.instance.uuid, run.action.action, step.name,
                    f" on {failure.host}" if failure.host else "", failure.message)
        tracing.failed(failure.message)
        # The first cause is what the user needs: "no more hosts" after it explains nothing.
        if run.journal.failure is None or failure.kind not in ("NoValidHost", "MaxRetriesExceeded", "ClaimLost"):
            run.journal.failure = failure
        run.journal.latest = failure
        run.action.undoing = True
        if failure.kind == "HostDown":
            # Nothing can be undone there; the host clears up by itself when it returns, and tells what it has done.
            ctl.set(power_state=states.NOSTATE)
            self._undone(ctx, run, run.operation.batch(step, undo=True)[-1], ctl, failure)
        elif step.undo and not (step.place == CONDUCTOR and failure.kind != "ClaimLost"):
            self._go_to(ctx, run, step, ctl, done=step, failure=failure)
        else:
            # A conductor step that failed wrote nothing: nothing to undo of it.
            self._undone(ctx, run, step, ctl, failure)

    def _undone(self, ctx: context.RequestContext, run: Run, step: Step, ctl: ConductorControl,
                failure: Failure | None = None) -> None:
        """``step`` is compensated: go on forwards again if the operation may, else further back."""
        operation, cause = run.operation, run.journal.failure or Failure(message="Unknown failure.")
        if operation.retry_from == step.name and operation.may_retry(run.journal.latest or cause):
            run.action.undoing = False
            metrics.RETRIES.inc(operation.name)
            ctl.set(task_state=operation.task_state)
            self._go_to(ctx, run, step, ctl, done=step, failure=failure)
            return
        previous = operation.before(step)
        if previous is None:
            self._finish(ctx, run, ctl, cause)
        else:
            self._go_to(ctx, run, previous, ctl, done=step, failure=failure)

    # --- writing -------------------------------------------------------------------------------------
    def _go_to(self, ctx: context.RequestContext, run: Run, step: Step, ctl: ConductorControl, done: Step,
               failure: Failure | None = None) -> None:
        """One transaction: what ``done`` left behind, and ``step`` as the current one. Then run it."""
        host = run.operation.host_of(step)
        if host and not run.action.undoing and step.task_state:
            ctl.set(task_state=step.task_state)
        run.journal.dispatches = 1 if host else 0
        closed = run.closed(done, failure)

        def write(connection: sa.Connection) -> StepOrder | None:
            run.action.events = run.opened(step, closed) if not run.action.undoing else closed
            self._write(connection, run, step, host)
            ctl.apply(connection)
            return self._order(connection, run, step, run.action.attempt + 1) if host else None

        before = run.action.attempt
        order = self.core.db.write(write)
        run.action.attempt, run.action.step = before + 1, step.name
        ctl.published()
        if order is None:
            self.submit(ctx, run)
        else:
            self._send(ctx, host, order)

    def _dispatch_again(self, ctx: context.RequestContext, run: Run, step: Step) -> None:
        """Send a host step: at the start of an operation, or once more when a report never came."""
        host = run.operation.host_of(step)
        ctl = ConductorControl(self.core, ctx, run.instance)

        def away(connection: sa.Connection) -> bool:
            # Silence may end; the word of an operator counts at once.
            if step.when_down == "skip":
                return not services.host_up(connection, host)
            return services.forced_down(connection, host)

        if self.core.db.read(away):
            self._host_lost(ctx, run)
            return
        run.journal.dispatches += 1
        if run.journal.dispatches > _MAX_DISPATCHES:
            error = exception.HostDown(f"Host {host} was asked {_MAX_DISPATCHES} times to run {step.name} "
                                       "and never reported.")
            last = run.operation.batch(step, run.action.undoing)[-1]
            if run.action.undoing:
                self._undone(ctx, run, last, ctl)
            else:
                self._step_failed(ctx, run, last, failure_of(error, host), ctl)
            return

        def write(connection: sa.Connection) -> StepOrder:
            run.action.events = run.opened(step)
            self._write(connection, run, step, host)
            return self._order(connection, run, step, run.action.attempt + 1)

        before = run.action.attempt
        order = self.core.db.write(write)
        run.action.attempt = before + 1
        self._send(ctx, host, order)

    def _write(self, connection: sa.Connection, run: Run, step: Step, host: str) -> None:
        actions.update(
            connection, run.action, step=step.name, attempt=run.action.attempt + 1, undoing=run.action.undoing,
            owner=owner_of(host) if host else self.core.name, lease_until=self._lease(), payload=run.payload(),
            events=run.action.events)

    def _order(self, connection: sa.Connection, run: Run, step: Step, attempt: int) -> StepOrder:
        action = msgspec.structs.replace(run.action, payload=run.payload(), events=[])
        plugs = bool(run.instance.network_info) and not run.action.undoing
        rules = security_groups.rules_of_instance(connection, run.instance.uuid) if plugs else []
        return StepOrder(action=action, step=step.name, attempt=attempt, undo=run.action.undoing,
                         instance=run.instance, rules=rules)

    def _send(self, ctx: context.RequestContext, host: str, order: StepOrder) -> None:
        try:
            self.core.compute_at(host).run(ctx, order)
        except exception.ServiceUnavailable as error:
            LOG.warning("Step %s was not sent to %s (%s); its lease will end", order.step, host, error)

    def _finish(self, ctx: context.RequestContext, run: Run, ctl: ConductorControl, failure: Failure | None) -> None:
        """End the action and let go of the instance, in the states that the operation decides."""
        if failure is None:
            run.operation.succeeded(ctl)
        else:
            run.operation.failed(ctl, failure)
        now = utcnow()
        events = run.closed(run.step, failure, at_end=True)

        def write(connection: sa.Connection) -> None:
            actions.update(
                connection, run.action, step=None, outcome="error" if failure else "success", finish_time=now,
                lease_until=None, undoing=False, events=events, payload=run.payload(),
                message="Error" if failure else None)
            ctl.apply(connection, action_uuid=None)

        self.core.db.write(write)
        metrics.finished(run.operation.name, "error" if failure else "success", run.action.start_time)
        ctl.published()
        if failure:
            LOG.warning("[instance: %s] %s ended in %s: %s", run.instance.uuid, run.action.action,
                        run.instance.vm_state, failure.message)
        else:
            LOG.info("[instance: %s] %s done: %s", run.instance.uuid, run.action.action, run.instance.vm_state)

    def _lease(self) -> datetime.datetime:
        return clock.after(CONF.conductor.lease)
