"""Runner of operation steps on this host: one operation per instance at a time.

An order runs only while it is current. Duplicates are detected by the rank of the order. An order is confirmed with a
conductor before its next effect if it is late, has a lower rank than an order that ran before, was issued before this
process started, or has a lease that was not renewed. The report of the end of an order is repeated until a conductor
has stored it. A refused report means that another process has taken over the instance."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from nova import context, exception
from nova.compute.host import Machine, StepHost, shutdown_timeout
from nova.compute.job import ConductorClock, Job, NewestOrders, Superseded, order_key
from nova.conf import CONF
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.order import StepOrder, StepReport
from nova.operations import REGISTRY
from nova.operations.framework.base import Operation, Step, failure_of, journal
from nova.operations.framework.guest_driver import InProgress, repeated_step
from nova.rpcapi.by_hosts import Engine, Guests
from nova.service.fair_pool import FairThreadPool
from nova.service.run import Drain
from nova.telemetry import metrics, tracing, worker_stats

LOG = logging.getLogger(__name__)

# Seconds since the start of an order, after which the start of its next step is reported to the conductor separately.
_PROGRESS_AFTER = 0.5
# Maximum number of instances whose newest order is stored; beyond it the order that was stored first is removed.
_STORED_ORDERS = 10_000
# Seconds for which a step is retried while the hypervisor is unavailable; then the step fails.
_HYPERVISOR_TIMEOUT = 30.0
# Seconds between two calls of a step that the hypervisor has begun, while the hypervisor is unavailable.
_UNAVAILABLE_INTERVAL = 10.0
# Seconds after which a superseded order that has not ended is abandoned, so that the newer order starts.
_GRACE = 10.0
# Seconds between two checks of deadlines.
TICK = 0.5
# After so many refused reports of a result, a failure is reported; after twice as many, the host stops reporting.
_REFUSALS = 3
# Seconds for which a report is repeated while conductors fail on it (InternalError): for example a conductor of the
# previous release with a read-only database or an unfinished schema upgrade.
_INTERNAL_ERRORS = 900.0


def order_pool() -> FairThreadPool:
    """Return the thread pool of a nova-compute process. Each kind of work has its own threads. "shutdown": operations
    that shut down a guest whose image grants a longer time than [DEFAULT]shutdown_timeout."""
    threads = CONF.compute.threads
    return FairThreadPool({"build": CONF.max_concurrent_builds or threads, "power": threads, "move": threads,
                  "snapshot": CONF.max_concurrent_snapshots or threads, "swap": threads, "urgent": threads,
                  "shutdown": threads}, name="orders")


class Runner:
    """The runner of one compute host."""

    def __init__(self, machine: Machine, engine: Engine, guests: Guests, pool: FairThreadPool | None = None) -> None:
        self.machine, self._engine, self._guests = machine, engine, guests
        self._pool = pool or order_pool()
        self.clock = ConductorClock()
        self._mutex = threading.Lock()
        # Each of many hosts in one process stores fewer orders.
        self._newest = NewestOrders(_STORED_ORDERS if pool is None else _STORED_ORDERS // 10)
        self._orders_by_instance: dict[str, InstanceOrders] = {}
        # The latest abandoned order of an instance, while its driver call hangs and no newer operation has begun.
        self._hanging: dict[str, Job] = {}
        self._stopping = threading.Event()

    # --- taking orders -------------------------------------------------------------------------
    def submit(self, ctx: context.RequestContext, order: StepOrder) -> None:
        """Accept an order. Orders of one instance run one after the other; a newer order supersedes an older one."""
        uuid = order.instance.uuid
        with self._mutex:
            if self._stopping.is_set():
                return  # drop the order: the conductor sends it again when this host has restarted
            orders, newest = self._orders_by_instance.get(uuid), self._newest.get(uuid)
            late = newest is not None and newest[0] >= order.rank
            if late and (orders is not None or newest == order_key(order) or order.issued_at is None):
                return  # drop the order: a duplicate, or superseded by a newer attempt or a delete
            if not late:
                self._newest.store(order)
            # New orders have low ranks after the database was restored from a backup: a conductor decides.
            job = Job(ctx, order, 0.0 if late else self.clock.valid_for(order), self._confirm,
                      late_after=newest if late else None)
            hanging = self._hanging.get(uuid)
            if hanging is not None and not hanging.compensated_by(job):
                del self._hanging[uuid]
            if orders is None:
                self._orders_by_instance[uuid] = InstanceOrders(job)
                self._start(job)
            elif not orders.current.adopt(job):
                orders.current.supersede()
                if orders.current.begun:
                    orders.waiting = job
                else:  # start the newer order now: the thread of the old order has no effect any more
                    orders.current = job
                    self._start(job)

    def _start(self, job: Job) -> None:
        # Called with the mutex held, so that stop() sees all submitted work.
        order = job.order
        operation = REGISTRY.get(order.action.operation or "", Operation)
        kind = "urgent" if order.undo else operation.kind
        if kind != "urgent" and operation.shuts_down and shutdown_timeout(order.instance) > CONF.shutdown_timeout:
            kind = "shutdown"
        try:
            job.future = self._pool.submit(kind, order.instance.project_id, self._work, job)
        except RuntimeError as error:  # the system has no more threads
            del self._orders_by_instance[job.uuid]
            LOG.error("[instance: %s] Cannot start a thread for operation %s: %s. A conductor requests the operation "
                      "again when its lease has expired", job.uuid, order.action.action, error)

    def interrupt(self, action_uuid: str, what: str) -> None:
        """Send the interrupt ``what`` to the running step of an action without waiting; "cancel" sets ``cancelled``."""
        with self._mutex:
            job = next((orders.current for orders in self._orders_by_instance.values()
                        if orders.current.order.action.uuid == action_uuid), None)
        if job is None:
            LOG.info("Ignoring the request to interrupt action %s (%s): it does not run here", action_uuid, what)
            return
        LOG.info("[instance: %s] Interrupting %s: %s", job.uuid, job.order.action.action, what)
        job.cancelled.set() if what == "cancel" else self._pool.submit(
            "urgent", job.order.instance.project_id, self._interrupt_step, job, what)

    def _interrupt_step(self, job: Job, what: str) -> None:
        try:
            self._operation(job.order).interrupted(StepHost(self.machine, job, self._progress_of(job)), what)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] The request to interrupt operation %s (%s) failed, the operation continues: %s",
                        job.uuid, job.order.action.action, what, error)

    def running(self) -> list[str]:
        """Return the actions whose steps this host runs or queues; the heartbeat renews their leases."""
        with self._mutex:
            return [job.order.action.uuid for orders in self._orders_by_instance.values() for job in orders.jobs()
                    if not job.repeats]

    def renewed(self, uuids: Collection[str], lost: Collection[str], at: float) -> None:
        """Renew the leases of these actions after a heartbeat sent ``at`` (monotonic); end the leases of ``lost``."""
        with self._mutex:
            jobs = [job for orders in self._orders_by_instance.values() for job in orders.jobs()]
        for job in jobs:
            if job.order.action.uuid in lost:
                job.expire()
            elif job.order.action.uuid in uuids:
                job.renew(at)

    def busy(self, uuid: str) -> bool:
        """Return True if an operation on this instance is in progress here."""
        with self._mutex:
            return uuid in self._orders_by_instance

    def stop(self, drain: Drain) -> None:
        """Finish the running orders. The conductor sends the waiting orders again when this host has restarted."""
        with self._mutex:
            self._stopping.set()
        if not drain.wait(functools.partial(self._pool.shutdown, wait=True, cancel_futures=True)):
            LOG.warning("%d operations are not finished: they continue after the restart", len(self.running()))

    # --- deadlines -----------------------------------------------------------------------------
    def check_deadlines(self) -> None:
        """Abandon steps that exceed their deadline, and superseded orders that do not end."""
        now = time.monotonic()
        with self._mutex:
            self._newest.prune(self._orders_by_instance)
            all_orders = list(self._orders_by_instance.values())
        for orders in all_orders:
            job = orders.current
            step, parked = job.hangs(now), job.parked
            if step is not None:
                self._abandon(orders, job, f"{step} did not end before its deadline")
                error = exception.StepTimeout(step=step, host=self.machine.name)
                self._pool.submit("urgent", job.order.instance.project_id, self._report_for, job, step, error)
            elif orders.waiting is not None and job.superseded_for(now) > _GRACE:
                self._abandon(orders, job, "a newer operation is waiting")
            elif parked is not None and now >= parked[1]:
                self._resume(orders, job)

    def _resume(self, orders: InstanceOrders, job: Job) -> None:
        """Continue a parked order: call its driver again."""
        with self._mutex:
            if orders.current is job and not job.begun and job.parked is not None and not self._stopping.is_set():
                job.parked = job.parked[0], math.inf
                self._start(job)

    def _abandon(self, orders: InstanceOrders, job: Job, why: str) -> None:
        LOG.error("[instance: %s] %s hangs on this host and is abandoned: %s", job.uuid, job.order.action.action, why)
        job.abandon()
        if job.parked is None:
            with self._mutex:
                self._hanging[job.uuid] = job
        if job.future is not None and not self._pool.replace(job.future):
            LOG.error("[instance: %s] %s blocks a thread, which is not replaced: too many calls hang on the host. "
                      "Check its storage and hypervisor, then restart nova-compute", job.uuid, job.order.action.action)
        self._next(orders, job)

    def _report_for(self, job: Job, step: str, error: Exception) -> None:
        job.ctx.update_store()
        report = self._new_report(job)
        report.step, report.failure = step, failure_of(error, self.machine.name)
        self._report(job, report)

    def _next(self, orders: InstanceOrders, done: Job) -> None:
        """Start the order that waits behind ``done``, which has ended."""
        with self._mutex:
            if orders.current is not done:
                return
            if orders.waiting is None or self._stopping.is_set():
                self._orders_by_instance.pop(done.uuid, None)
                return
            orders.current, orders.waiting = orders.waiting, None
            self._start(orders.current)

    # --- running -------------------------------------------------------------------------------
    def _work(self, job: Job) -> None:
        order = job.order
        with self._mutex:
            job.begun = True
            parked, job.parked = job.parked, None
        try:
            job.ctx.update_store()
            with worker_stats.METER.work(), tracing.span(f"host {order.action.operation}", job.ctx, instance=job.uuid,
                                                         attempt=order.attempt, host=self.machine.name):
                if parked is None:
                    self._run(job)
                else:
                    job.fence()
                    parked[0]()
        except Superseded as error:
            LOG.info("[instance: %s] Step %s ends early without a result: %s", job.uuid, order.step, error)
            self._after_refusal(job)
        except Exception:
            LOG.exception("[instance: %s] Step %s failed unexpectedly; a conductor takes over the operation when its "
                          "lease has expired", job.uuid, order.step)
        finally:
            with self._mutex:
                orders = self._orders_by_instance.get(job.uuid)
                if job.parked is not None and not job.overtaken:
                    job.begun, orders = False, None  # the order stays the current one
            if orders is not None:
                self._next(orders, job)
        if job.abandoned:
            self._after_late_return(job)

    def _after_late_return(self, job: Job) -> None:
        """Undo the effect of an abandoned driver call that returned after its compensation: run the compensation once
        more. If a newer operation has begun, only remove the guest or report its power state."""
        while self.busy(job.uuid):
            if self._stopping.wait(TICK):
                return
        with self._mutex:
            compensation = job.compensation if self._hanging.get(job.uuid) is job else None
            if compensation is not None and job.uuid not in self._orders_by_instance and not self._stopping.is_set():
                LOG.warning("[instance: %s] An abandoned driver call of %s returned after its compensation had run: "
                            "repeating the compensation", job.uuid, job.order.action.action)
                repeated = Job(job.ctx, compensation, math.inf, self._confirm, repeats=True)
                self._orders_by_instance[job.uuid] = InstanceOrders(repeated)
                self._start(repeated)
            if self._hanging.get(job.uuid) is job:
                del self._hanging[job.uuid]
        if compensation is None:
            self._settle(job)

    def _operation(self, order: StepOrder) -> Operation:
        name = order.action.operation or ""
        if name not in REGISTRY:
            raise exception.UnknownOperation(name=name)
        return REGISTRY[name](order.instance, journal(order.action).data)

    def _new_report(self, job: Job) -> StepReport:
        return StepReport(action_uuid=job.order.action.uuid, step=job.order.step, attempt=job.order.attempt,
                          undo=job.order.undo, host=self.machine.name)

    def _run(self, job: Job) -> None:
        order, report = job.order, self._new_report(job)
        if self._stopping.is_set():
            return  # drop the order: the conductor sends it again when this host has restarted
        job.fence()
        started = time.monotonic()
        host = StepHost(self.machine, job, self._progress_of(job))
        try:
            operation = self._operation(order)
            batch = operation.batch(operation.step_named(order.step), order.undo)
        except exception.NovaException as error:
            report.failure = failure_of(error, self.machine.name)
            self._report(job, report)
            return
        LOG.info("[instance: %s] %s%s: %s", job.uuid, "Undoing " if order.undo else "", order.action.action,
                 ", ".join(step.name for step in batch))
        self._run_from(job, operation, batch, host, report, started)

    def _run_from(self, job: Job, operation: Operation, batch: Sequence[Step], host: StepHost, report: StepReport,
                  started: float) -> None:
        """Run these steps and report the end of the order, or park it until the driver is to be called again."""
        order, rest = job.order, self._run_batch(job, operation, batch, host, report, started)
        if rest is not None:
            steps, seconds = rest
            job.parked = (functools.partial(self._run_from, job, operation, steps, host, report, started),
                          time.monotonic() + seconds)
            return
        report.changes, report.results = host.changes, host.results
        self._report(job, report)
        LOG.info("[instance: %s] %s took %.2f s%s", job.uuid, order.action.action, time.monotonic() - started,
                 " and failed" if report.failure else "")

    def _run_batch(self, job: Job, operation: Operation, batch: Sequence[Step], host: StepHost, report: StepReport,
                   started: float) -> tuple[Sequence[Step], float] | None:
        """Run these steps and return None. If the hypervisor still changes the guest, return the remaining steps and
        the seconds until the first of them is to be called again."""
        for number, step in enumerate(batch):
            if step is not batch[0] and time.monotonic() - started > _PROGRESS_AFTER:
                self._send_progress(job, step.name, {}, {})
            report.step = step.name
            job.enter(step)
            try:
                job.fence()
                with repeated_step(job.notes), metrics.step(operation.name, step.name, job.order.undo), tracing.span(
                        f"host {'undo ' if job.order.undo else ''}{operation.name}.{step.name}"):
                    seconds = self._call_step(job, functools.partial(operation.run, step, host, job.order.undo))
                    host.end_step()
                if seconds is not None:
                    return batch[number:], seconds
            except Superseded:
                raise
            except Exception as error:
                job.fence()
                if isinstance(error, exception.NovaException):
                    LOG.warning("[instance: %s] %s failed: %s", job.order.instance.uuid, step.name, error)
                else:
                    LOG.exception("[instance: %s] %s failed", job.order.instance.uuid, step.name)
                report.failure = failure_of(error, self.machine.name)
                if not job.order.undo:
                    break  # a failed compensation does not prevent the following ones
        job.leave()
        return None

    def _call_step(self, job: Job, step: Callable[[], None]) -> float | None:
        """Run a step. While the hypervisor is unavailable, retry: for _HYPERVISOR_TIMEOUT, or until the deadline if the
        hypervisor has begun the step. Return the seconds until the step is to be called again; None when it is done."""
        until = time.monotonic() + _HYPERVISOR_TIMEOUT
        while True:
            try:
                step()
                return None
            except InProgress as change:
                job.continues = True
                return change.seconds
            except exception.HypervisorUnavailable as error:
                if job.continues:
                    LOG.warning("[instance: %s] Step %s is in progress, waiting for the hypervisor: %s", job.uuid,
                                job.step_name, error.inside)
                    return _UNAVAILABLE_INTERVAL
                if time.monotonic() > until or self._stopping.wait(1.0):
                    raise

    # --- reports to the conductor -------------------------------------------------------------------
    def _confirm(self, job: Job) -> None:
        """Confirm with a conductor that the order is current; retry while none is available. Raises Superseded."""
        wait = 0.5
        while True:
            sent = time.monotonic()
            try:
                self._engine.begin(job.ctx, job.order.action.uuid, job.order.attempt, self.machine.name)
                job.renew(sent)
                with self._mutex:
                    if job.late_after is not None and self._newest.get(job.uuid) == job.late_after:
                        self._newest.store(job.order)
                return
            except exception.StaleReport as error:
                raise Superseded("another process has taken over the operation") from error
            except (exception.ServiceUnavailable, exception.InternalError) as error:  # retried, as in _report
                LOG.warning("[instance: %s] Step %s waits for a conductor: %s", job.uuid, job.order.step, error)
            job.check()
            if self._stopping.wait(wait):
                raise Superseded("nova-compute stops")
            wait = min(wait * 2, 10.0)

    def _progress_of(self, job: Job) -> Callable[[dict[str, Any], dict[str, Any]], None]:
        def send(changes: dict[str, Any], values: dict[str, Any]) -> None:
            job.fence()
            self._send_progress(job, job.step_name, changes, values)

        return send

    def _send_progress(self, job: Job, step: str, changes: dict[str, Any], values: dict[str, Any]) -> None:
        try:
            self._engine.progress(job.ctx, msgspec.structs.replace(
                self._new_report(job), step=step, final=False, changes=changes, results=values))
        except exception.ServiceUnavailable:
            LOG.debug("Cannot report the progress of step %s to a conductor; its end will be reported", step)

    def _report(self, job: Job, report: StepReport) -> None:
        """Report the end of the order; repeat the report until a conductor has stored it, a newer order exists, or the
        service stops. A report that cannot be stored is not a failure of the step."""
        if job.repeats:
            self._after_refusal(job)  # no report: the conductor stored that of the first run
            return
        wait, refusals, started = 0.5, 0, time.monotonic()
        while True:
            report.attempt = job.order.attempt  # a newer attempt may have been adopted
            try:
                self._engine.step_done(job.ctx, report)
                return
            except exception.StaleReport:
                if report.attempt != job.order.attempt:
                    continue
                LOG.info("[instance: %s] The conductor ignores the result of %s: another process runs the operation",
                         job.uuid, job.order.action.action)
                self._after_refusal(job)
                return
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Cannot report step %s as ended, retrying: %s", job.uuid, report.step, error)
                if isinstance(error, exception.InternalError):
                    refusals += time.monotonic() - started > _INTERNAL_ERRORS
                else:
                    refusals += not isinstance(error, exception.ServiceUnavailable)
                if refusals == _REFUSALS:
                    # Conductors refuse the content of the report, but can store a failure without this content.
                    report.changes, report.results = {}, {}
                    report.failure = failure_of(error, self.machine.name)
                elif refusals > 2 * _REFUSALS:
                    LOG.error("[instance: %s] Conductors refuse the report that step %s ended, giving up; a conductor "
                              "takes over the operation when its lease has expired", job.uuid, report.step)
                    return
            if job.overtaken or self._stopping.wait(wait):
                return  # the newer order sends a report, or the conductor sends this order again after the restart
            wait = min(wait * 2, 10.0)

    def _after_refusal(self, job: Job) -> None:
        """Handle the guest of a refused order according to the database, unless a newer order runs."""
        if not job.overtaken and not self._stopping.is_set():
            self._settle(job)

    def _settle(self, job: Job) -> None:
        """Remove the guest if the database requires it, otherwise report its power state."""
        uuid, name = job.uuid, self.machine.name
        try:
            whereabouts = self._guests.whereabouts(job.ctx, name, [uuid])
            where = whereabouts[0] if whereabouts else None
            if where is not None and where.must_leave:
                self.machine.driver.guests.destroy(job.order.instance, keep_disks=where.keep_disks)
                self.machine.network.unplug(job.order.instance)
                self._guests.evicted(job.ctx, name, [uuid], {uuid: where.since} if where.since else {})
            elif where is not None and name in where.possible_hosts:
                self._guests.power_states(job.ctx, name, [GuestStatus(
                    uuid=uuid, power_state=self.machine.driver.guests.power_state(uuid), late=True)])
        except exception.GuestNotFound:
            LOG.info("[instance: %s] The instance has no guest on this host", uuid)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Cannot check the guest, retrying at the next periodic comparison: %s", uuid,
                        error)


class InstanceOrders:
    """The orders of one instance: the running order, and the newest order, which waits for it to end."""

    def __init__(self, job: Job) -> None:
        self.current = job
        self.waiting: Job | None = None

    def jobs(self) -> list[Job]:
        return [self.current] if self.waiting is None else [self.current, self.waiting]
