"""The saga engine: journals actions and walks them through their steps.

Every advance is one transaction that is fenced by the action's attempt. Whatever is lost after a commit (this
process, a message, a host) is found again by its lease. The parts: accepting (:mod:`nova.conductor.acceptance`),
walking (:mod:`nova.conductor.saga.walk`), finding what got lost (:mod:`nova.conductor.saga.recovery`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl, converted
from nova.conductor.saga.debts import Debts
from nova.conductor.saga.leases import InFlightLeases
from nova.conductor.saga.recovery import Recovery
from nova.conductor.saga.reports import check_power_state, failure_of, narrowed
from nova.conductor.saga.run import Run, current, owner_of
from nova.conductor.saga.walk import Walk, lease
from nova.conf import CONF
from nova.db import actions, servers
from nova.db.sql import clock
from nova.notifications.messages import publisher
from nova.notifications.requests import SchedulerQuery
from nova.objects.action import Action
from nova.objects.base import new_uuid
from nova.objects.instance import Instance
from nova.objects.order import StepOrder, StepReport
from nova.operations.base import OUTSIDE, Journal, Operation, Step, context_of
from nova.service.fair_pool import FairThreadPool
from nova.telemetry import tracing, worker_stats

LOG = logging.getLogger(__name__)

# Servers of one request that are placed in one look at the fleet: others take their turns in between.
_TOGETHER = 50
# Steps that wait for a scheduler at the same time: more than a frozen one keeps from the others
# (rabbit_qos_prefetch_count).
SCHEDULER_THREADS = 6
# What asks services outside, and belongs to no step.
_BACKGROUND = "background"
# The kinds of threads: each is for what waits for somebody else.
KINDS = ("database", "scheduler", *OUTSIDE, _BACKGROUND)


class Engine:
    """The engine of operations, one in each conductor process."""

    def __init__(self, core: Core, pool: FairThreadPool | None = None) -> None:
        self.core = core
        self._leases = InFlightLeases()
        # What waits for somebody else has threads of its own: a dead scheduler holds up nothing else.
        self._pool = pool or FairThreadPool({**dict.fromkeys(KINDS, CONF.conductor.outside_threads),
                                    "database": CONF.conductor.threads, "scheduler": SCHEDULER_THREADS}, name="steps")
        debts = Debts(core, self.in_background)
        self.walk = Walk(core, self.submit, debts)
        self.recovery = Recovery(core, self.walk, self._submit_taken, debts)

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
            step=first.name if first else None, attempt=1, owner=self.core.name, lease_until=lease(),
            request_id=ctx.request_id, user_id=ctx.user_id, project_id=ctx.project_id, start_time=clock.now(),
            updated_at=clock.now())

    def submit(self, ctx: context.RequestContext, run: Run) -> None:
        """Advance a run in the background."""
        self._later(self.walk.advance, ctx, run)

    def _submit_taken(self, ctx: context.RequestContext, run: Run, host_lost: bool) -> None:
        self._later(self._host_lost if host_lost else self.walk.advance, ctx, run)

    def in_background(self, project_id: str, task: Callable[[], None]) -> None:
        """Run what asks other services, what nobody waits for, and what may get lost."""
        with contextlib.suppress(RuntimeError):  # this conductor ends
            self._pool.submit(_BACKGROUND, project_id, task)

    def _later(self, function: Callable[[context.RequestContext, Any], None], ctx: context.RequestContext,
               work: Run | list[Run]) -> None:
        """Run ``function(ctx, work)`` in the background; until it ends the actions' leases are renewed."""
        runs = work if isinstance(work, list) else [work]
        uuids = [run.action.uuid for run in runs]

        def task() -> None:
            worker_stats.METER.wait(-1)
            try:
                with worker_stats.METER.work():
                    function(ctx, work)
            finally:
                self._leases.drop(uuids)

        self._leases.take(uuids)
        try:
            worker_stats.METER.wait(1)
            self._pool.submit(runs[0].waits_for, runs[0].instance.project_id, task)
        except RuntimeError:
            # This conductor ends: what it holds is handed over when all that runs has ended.
            worker_stats.METER.wait(-1)
            self._leases.drop(uuids)
            LOG.debug("Left to another conductor")

    def renew(self) -> None:
        """Renew the leases of what is in our hands, and of nothing else.

        An action that is ours by its row alone (the answer to a commit got lost, the database was away too long)
        has nobody who advances it: its lease must end.
        """
        for uuids in self._leases.pages():
            self.core.db.write(functools.partial(actions.renew, owner=self.core.name, uuids=uuids, until=lease()))

    def start_builds(self, ctx: context.RequestContext, runs: list[Run]) -> None:
        """Place the servers of one request together, some at a time, so that they are chosen in one look."""
        for start in range(0, len(runs), _TOGETHER):
            some = runs[start:start + _TOGETHER]
            if len(some) == 1 or some[0].waits_for != "scheduler":
                for run in some:
                    self.submit(ctx, run)
            else:
                self._later(self._place_together, ctx, some)

    def _place_together(self, ctx: context.RequestContext, runs: list[Run]) -> None:
        ctx.update_store()
        spec = msgspec.structs.replace(runs[0].operation.data.spec,
                                       instance_uuids=[run.instance.uuid for run in runs])
        try:
            ConductorControl(self.core, ctx, runs[0].instance).group_hosts(spec)
            with tracing.span("conductor place together", ctx, servers=len(runs)):
                chosen = self.core.scheduler.select(ctx, spec)
            runs[0].asked.append(SchedulerQuery(spec, succeeded=True))
            planned = Counter(candidates[0].host for candidates in chosen)
            for run, candidates in zip(runs, chosen, strict=True):
                data = run.operation.data
                data.candidates, data.selected = candidates, True
                if spec.group is not None:  # claims check the policy against what was planned for all of them
                    hosts = Counter(spec.group.hosts) + planned - Counter([candidates[0].host])
                    data.spec.group = msgspec.structs.replace(spec.group, hosts=dict(hosts))
        except Exception as error:
            # Each asks for itself then, and fails with its own fault.
            LOG.info("%d servers could not be placed together: %s", len(runs), error)
        for run in runs:
            self.submit(ctx, run)

    def _host_lost(self, ctx: context.RequestContext, run: Run) -> None:
        ctx.update_store()
        step = run.step
        assert step is not None
        try:
            self.walk.give_up_host(ctx, run, step, run.operation.host_of(step))
        except exception.StaleReport:
            LOG.info("[instance: %s] Operation %s goes on without us", run.instance.uuid, run.action.action)
        except Exception as error:
            self.walk.let_go(ctx, run, error)

    # --- reports from hosts ------------------------------------------------------------------------
    def step_done(self, ctx: context.RequestContext, report: StepReport) -> None:
        """The end of an order. Raises StaleReport when the attempt is not the current one."""
        run, step = self._load(ctx, report)
        check_power_state(report.changes)
        ctx = _asked_by(ctx, run)
        ctl = ConductorControl(self.core, ctx, run.instance,
                               saved_by=publisher("nova-compute", run.operation.host_of(step)))
        ctl.set(**converted(report.changes))
        run.operation.data = msgspec.convert({**msgspec.to_builtins(run.operation.data), **report.results},
                                             run.operation.data_type)
        if report.failure is not None:
            failure = failure_of(report)
            failure.host = run.operation.host_of(step)
            # An earlier try of the same order may have come further than this one.
            again = run.journal.tries > 1 and not run.action.undoing
            self.walk.failed(ctx, run, step, failure, ctl, run.furthest(step) if again else step)
        else:
            self.walk.succeeded(ctx, run, step, ctl)

    def progress(self, ctx: context.RequestContext, report: StepReport) -> None:
        """The next step of an order began, or the running one tells how far it is."""
        run, step = self._load(ctx, report)
        ctl = ConductorControl(self.core, _asked_by(ctx, run), run.instance,
                               saved_by=publisher("nova-compute", run.operation.host_of(step)))
        ctl.set(**converted(report.changes))
        if report.results:
            run.operation.noted(ctl, report.results)
        if step.task_state and not run.action.undoing:
            ctl.set(task_state=step.task_state)

        def write(connection: sa.Connection) -> None:
            actions.update(connection, run.action, step=step.name, events=run.opened(step), lease_until=lease())
            ctl.apply(connection)

        self.core.db.write(write)

    def _load(self, ctx: context.RequestContext, report: StepReport) -> tuple[Run, Step]:
        """The run and the step that a host tells of; the report has what it may say of that, and nothing else.

        Raises StaleReport when it is not this host's to report.
        """
        def load(connection: sa.Connection) -> Run:
            action = current(actions.get(connection, report.action_uuid), report.action_uuid, report.step,
                             report.attempt)
            host = ctx.calling_host or report.host
            if host and action.owner != owner_of(host):
                LOG.warning("[instance: %s] Host %s reports %s, which is not its: refused", action.instance_uuid, host,
                            action.action)
                raise exception.StaleReport(action=action.uuid, step=report.step, attempt=report.attempt)
            return Run(action, servers.get(connection, action.instance_uuid, deleted=True))

        run = self.core.db.read(load)
        return run, narrowed(run, report)

    def begin(self, ctx: context.RequestContext, action_uuid: str, attempt: int, host: str) -> None:
        """A host confirms an order before it goes on with it. Raises StaleReport."""
        self.recovery.begin(action_uuid, attempt, host)

    def resume(self, ctx: context.RequestContext, host: str) -> list[StepOrder]:
        """New attempts of everything that a restarted host was doing."""
        return self.recovery.resume(host)

    def recover(self, ctx: context.RequestContext, reach_hosts: bool = True, judge_hosts: bool = True) -> int:
        """Take over actions whose lease ended; returns how many (see :meth:`Recovery.recover`)."""
        return self.recovery.recover(reach_hosts, judge_hosts)

    def wake(self, ctx: context.RequestContext, instance_uuid: str, events: Mapping[str, str]) -> bool:
        """Note external events (key -> status), and let the action go on that waits for any of them.

        Returns whether one did. One transaction.
        """
        return self.recovery.wake(instance_uuid, events)


def _asked_by(ctx: context.RequestContext, run: Run) -> context.RequestContext:
    """The context to go on with: what a host says of the user is not taken from it."""
    return context_of(run.action) if ctx.calling_host else ctx
