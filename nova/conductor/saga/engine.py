"""The saga engine, which stores actions in a journal and executes their steps.

Each advance is one transaction, fenced by the attempt of the action. If the process, a message or the host is lost
after a commit, the lease of the action ends and a conductor continues. Parts: acceptance
(:mod:`nova.conductor.acceptance`), execution (:mod:`nova.conductor.saga.step_executor`), and takeover after ended
leases (:mod:`nova.conductor.saga.recovery`)."""

import contextlib
import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl, converted
from nova.conductor.saga.decision import Done, Event, Failed
from nova.conductor.saga.deferred_cleanup import DeferredCleanup
from nova.conductor.saga.recovery import Recovery
from nova.conductor.saga.reports import check_power_state, failure_of, narrowed
from nova.conductor.saga.run import Run, current, owner_of
from nova.conductor.saga.step_executor import StepExecutor, lease
from nova.conf import CONF
from nova.db.servers import actions
from nova.db.sql import clock
from nova.notifications.messages import publisher
from nova.notifications.requests import SchedulerQuery
from nova.objects.base import new_uuid
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepReport
from nova.operations.framework.base import OUTSIDE, Journal, Operation, Step, context_of
from nova.service.fair_pool import FairThreadPool
from nova.telemetry import tracing, worker_stats

LOG = logging.getLogger(__name__)

# Maximum number of servers in one scheduler request. A boot request of more servers is split into several scheduler
# requests, so that the requests of other clients do not wait for all of them.
_SERVERS_PER_REQUEST = 50
# Number of threads that call schedulers. A frozen scheduler receives rabbit_qos_prefetch_count requests and does not
# answer them; the number is higher, so that some threads still reach the other schedulers.
SCHEDULER_THREADS = 6
_SCHEDULER_SECONDS = 3.0  # a conductor that stops waits so long for replies of schedulers, then abandons the steps
_BACKGROUND = "background"  # thread pool class of calls to external services that belong to no step
KINDS = ("database", "scheduler", *OUTSIDE, _BACKGROUND)  # thread pool classes, by the service that the threads call
_RENEWED_AT_ONCE = 500  # number of leases renewed by one statement


class InFlightLeases:
    """The leases of the actions that a conductor is executing or has queued: a multiset of uuids. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def take(self, uuids: Iterable[str]) -> None:
        with self._lock:
            self._counts.update(uuids)

    def drop(self, uuids: Iterable[str]) -> None:
        with self._lock:
            for uuid in uuids:
                self._counts[uuid] -= 1
                if not self._counts[uuid]:
                    del self._counts[uuid]

    def pages(self) -> Iterator[list[str]]:
        with self._lock:
            uuids = list(self._counts)
        for start in range(0, len(uuids), _RENEWED_AT_ONCE):
            yield uuids[start:start + _RENEWED_AT_ONCE]


class Engine:
    """The engine of operations, one in each conductor process."""

    def __init__(self, core: Core, pool: FairThreadPool | None = None) -> None:
        self.core = core
        self._leases = InFlightLeases()
        self._background_keys: set[str] = set()
        # One class of threads per called service, so that a hanging service does not block calls to other services.
        self._pool = pool or FairThreadPool({**dict.fromkeys(KINDS, CONF.conductor.outside_threads),
                                    "database": CONF.conductor.threads, "scheduler": SCHEDULER_THREADS}, name="steps")
        cleanup = DeferredCleanup(core, self.in_background)
        self.executor = StepExecutor(core, self.submit, cleanup)
        self.recovery = Recovery(core, self.executor, self._submit_taken, cleanup)

    def stop(self) -> None:
        """Wait for the running conductor steps. Other conductors continue with the queued steps, and with steps whose
        scheduler does not answer, because such steps have changed nothing."""
        self._pool.shutdown(cancel_futures=True, longest={"scheduler": _SCHEDULER_SECONDS})

    # --- accepting ---------------------------------------------------------------------------------
    def new_action(self, ctx: context.RequestContext, operation: type[Operation], instance: Instance,
                   data: dict[str, Any]) -> Action:
        """Return a new action at its first step, owned by this conductor."""
        first = operation(instance, data).first()
        return Action(uuid=new_uuid(), instance_uuid=instance.uuid, action=operation.action, operation=operation.name,
                      payload=msgspec.to_builtins(Journal(data=data, trace=tracing.traceparent())),
                      step=first.name if first else None, attempt=1, owner=self.core.name, lease_until=lease(),
                      request_id=ctx.request_id, user_id=ctx.user_id, project_id=ctx.project_id, start_time=clock.now(),
                      updated_at=clock.now())

    def submit(self, ctx: context.RequestContext, run: Run) -> None:
        """Advance the run of an operation in a background thread."""
        self._run_later(self.executor.advance, ctx, run)

    def _submit_taken(self, ctx: context.RequestContext, run: Run, host_lost: bool) -> None:
        self._run_later(self._host_lost if host_lost else self.executor.advance, ctx, run)

    def in_background(self, project_id: str, key: str, task: Callable[[], None]) -> None:
        """Run a task that calls external services, unless a task with the same ``key`` waits for a thread: while a
        service hangs, its tasks must not pile up. The task may get lost when the conductor ends."""
        if key in self._background_keys:
            return

        def begin() -> None:
            self._background_keys.discard(key)
            try:
                task()
            except Exception:
                LOG.exception("Background task %s failed unexpectedly", key)

        self._background_keys.add(key)
        with contextlib.suppress(RuntimeError):  # the thread pool is shut down, so the task is dropped
            self._pool.submit(_BACKGROUND, project_id, begin)

    def _run_later(self, function: Callable[[context.RequestContext, Any], None], ctx: context.RequestContext,
                   work: Run | list[Run]) -> None:
        """Run ``function(ctx, work)`` in the background, and renew the leases of the actions until it ends."""
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
            # The pool is shut down. The conductor hands its actions over when the running steps have ended.
            worker_stats.METER.wait(-1)
            self._leases.drop(uuids)
            LOG.debug("This conductor shuts down: another conductor continues %d operations", len(runs))

    def renew(self) -> None:
        """Renew the leases of the actions that this process is executing or has queued. If the reply to a commit got
        lost, this conductor owns an action without executing it: such a lease must end."""
        for uuids in self._leases.pages():
            self.core.db.write(functools.partial(actions.renew, owner=self.core.name, uuids=uuids, until=lease()))

    def start_builds(self, ctx: context.RequestContext, runs: list[Run]) -> None:
        """Start the builds of one request, with one scheduler request for up to _SERVERS_PER_REQUEST servers."""
        for start in range(0, len(runs), _SERVERS_PER_REQUEST):
            page = runs[start:start + _SERVERS_PER_REQUEST]
            if len(page) == 1 or page[0].waits_for != "scheduler":
                for run in page:
                    self.submit(ctx, run)
            else:
                self._run_later(self._place_together, ctx, page)

    def _place_together(self, ctx: context.RequestContext, runs: list[Run]) -> None:
        ctx.update_store()
        spec = msgspec.structs.replace(runs[0].operation.data.spec, instance_uuids=[run.instance.uuid for run in runs])
        try:
            ConductorControl(self.core, ctx, runs[0].instance).group_hosts(spec)
            with tracing.span("conductor place together", ctx, servers=len(runs)):
                chosen = self.core.scheduler.select(ctx, spec)
            runs[0].scheduler_queries.append(SchedulerQuery(spec, succeeded=True))
            planned = Counter(candidates[0].host for candidates in chosen)
            for run, candidates in zip(runs, chosen, strict=True):
                data = run.operation.data
                data.candidates, data.selected = candidates, True
                if spec.group is not None:  # claims check the policy against the hosts planned for all servers
                    hosts = Counter(spec.group.hosts) + planned - Counter([candidates[0].host])
                    data.spec.group = msgspec.structs.replace(spec.group, hosts=dict(hosts))
        except Exception as error:
            # The build of each server then sends its own scheduler request, and fails with its own fault.
            LOG.info("Cannot place %d servers with one scheduler request, placing them one by one: %s", len(runs),
                     error)
        for run in runs:
            self.submit(ctx, run)

    def _host_lost(self, ctx: context.RequestContext, run: Run) -> None:
        ctx.update_store()
        step = run.step
        assert step is not None
        try:
            self.executor.give_up_host(ctx, run, step, run.operation.host_of(step))
        except exception.StaleReport:
            LOG.info("[instance: %s] Operation %s continues on another conductor", run.instance.uuid, run.action.action)
        except Exception as error:
            self.executor.release_after_error(ctx, run, error)

    # --- reports from hosts ------------------------------------------------------------------------
    def step_done(self, ctx: context.RequestContext, report: StepReport) -> None:
        """Handle the final report on steps sent to a host. Raises StaleReport if its attempt is not the current one."""
        run, step = self._load(ctx, report)
        check_power_state(report.changes)
        ctx = _trusted_context(ctx, run)
        ctl = ConductorControl(self.core, ctx, run.instance,
                               saved_by=publisher("nova-compute", run.operation.host_of(step)))
        ctl.set(**converted(report.changes))
        run.operation.data = msgspec.convert({**msgspec.to_builtins(run.operation.data), **report.results},
                                             run.operation.data_type)
        if report.failure is not None:
            failure = failure_of(report)
            failure.host = run.operation.host_of(step)
            # An earlier dispatch of the same steps may have executed more steps than this one.
            repeated = run.journal.tries > 1 and not run.action.undoing
            event: Event = Failed(step, failure, run.furthest(step) if repeated else step)
        else:
            event = Done(step)
        self.executor.handle(ctx, run, event, ctl)

    def progress(self, ctx: context.RequestContext, report: StepReport) -> None:
        """Handle an interim report: the host has started the next sent step, or reports the progress of a step."""
        run, step = self._load(ctx, report)
        ctl = ConductorControl(self.core, _trusted_context(ctx, run), run.instance,
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
        """Return the run and the reported step, and remove from the report what the host may not change. Raises
        StaleReport if the attempt is not current or belongs to another host."""
        def load(connection: sa.Connection) -> Run:
            stored = actions.get_with_instance(connection, report.action_uuid)
            action = current(stored[0] if stored else None, report.action_uuid, report.step, report.attempt)
            host = ctx.calling_host or report.host
            if host and action.owner != owner_of(host):
                LOG.warning("[instance: %s] Rejected a report of host %s on operation %s, which is owned by %s",
                            action.instance_uuid, host, action.action, action.owner)
                raise exception.StaleReport(action=action.uuid, step=report.step, attempt=report.attempt)
            assert stored is not None
            return Run(*stored)

        run = self.core.db.lookup(load)
        return run, narrowed(run, report)


def _trusted_context(ctx: context.RequestContext, run: Run) -> context.RequestContext:
    """Return the context in which to continue. The user in the context of a host's call is not trusted."""
    return context_of(run.action) if ctx.calling_host else ctx
