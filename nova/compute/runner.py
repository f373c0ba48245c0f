"""Runs the steps of operations on this host: one operation of an instance at a time, each once.

A doubled or late order is recognised by its rank. The end of an order is reported until the
conductor has it; a refused report means that somebody else decides about the instance now, and
what this host made for it is removed if it does not belong here.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable

from nova import context, exception, metrics, tracing
from nova.compute.host import Machine, StepHost
from nova.conf import CONF
from nova.drain import Drain
from nova.objects.action import Failure
from nova.objects.compute import GuestStatus
from nova.objects.instance import StepOrder, StepReport
from nova.operations import REGISTRY
from nova.operations.base import Step, journal
from nova.operations.failures import failure_of
from nova.rpcapi.engine import Engine, Guests

LOG = logging.getLogger(__name__)

# A step that begins earlier than this after its order is not told separately: it saves messages.
_PROGRESS_AFTER = 0.5
# Instances whose newest orders are remembered.
_REMEMBERED = 10_000
# How long a hypervisor that does not answer is waited for before the step counts as failed.
_HYPERVISOR_PATIENCE = 30.0


class Runner:
    """The operations of one compute host."""

    def __init__(self, machine: Machine, engine: Engine, guests: Guests,
                 pool: concurrent.futures.Executor | None = None) -> None:
        self.machine = machine
        self._engine = engine
        self._guests = guests
        # Many hosts in one process remember less each.
        self._remembered = _REMEMBERED if pool is None else _REMEMBERED // 10
        self._pool = pool or concurrent.futures.ThreadPoolExecutor(CONF.compute.threads, thread_name_prefix="orders")
        self._builds = threading.BoundedSemaphore(CONF.max_concurrent_builds or CONF.compute.threads)
        self._mutex = threading.Lock()
        self._newest: collections.OrderedDict[str, tuple[int, int]] = collections.OrderedDict()  # by instance
        self._running: dict[str, int] = {}
        self._queues: dict[str, collections.deque[tuple[context.RequestContext, StepOrder]]] = {}
        self._stopping = threading.Event()

    # --- taking orders -------------------------------------------------------------------------
    def submit(self, ctx: context.RequestContext, order: StepOrder) -> None:
        """Take an order; orders of one instance run one after the other."""
        uuid = order.instance.uuid
        with self._mutex:
            if self._stopping.is_set():
                return  # it is ours still: we ask for it when we are back
            if self._newest.get(uuid, (0, 0)) >= order.rank:
                return  # doubled, or overtaken by a newer attempt or a delete that came in between
            self._newest[uuid] = order.rank
            self._newest.move_to_end(uuid)
            while len(self._newest) > self._remembered:
                self._newest.popitem(last=False)
            self._running[order.action.uuid] = order.attempt
            queue = self._queues.get(uuid)
            if queue is not None:
                queue.append((ctx, order))
                return
            self._queues[uuid] = collections.deque([(ctx, order)])
            # Under the lock, so that stop() finds the pool at rest.
            self._pool.submit(self._drain, uuid)

    def _overtaken(self, order: StepOrder) -> bool:
        """Whether this host has a newer order for the instance, or had one."""
        return self._newest.get(order.instance.uuid, (0, 0)) > order.rank

    def running(self) -> list[str]:
        """The actions whose steps this host holds (the heartbeat renews their leases)."""
        with self._mutex:
            return list(self._running)

    def busy(self, uuid: str) -> bool:
        """Whether an operation on this instance is under way here."""
        with self._mutex:
            return uuid in self._queues

    def stop(self, drain: Drain) -> None:
        """Finish the orders that were begun; the others are asked for when this host is back."""
        with self._mutex:
            self._stopping.set()
        if not drain.wait(functools.partial(self._pool.shutdown, wait=True, cancel_futures=True)):
            LOG.warning("Did not come to the end of %d operations: they are resumed when this host is back",
                        len(self.running()))

    def _drain(self, uuid: str) -> None:
        while True:
            with self._mutex:
                queue = self._queues[uuid]
                if not queue or self._stopping.is_set():
                    del self._queues[uuid]
                    return
                ctx, order = queue.popleft()
            try:
                ctx.update_store()
                with tracing.span(f"host {order.action.operation}", ctx, instance=uuid, attempt=order.attempt,
                                  host=self.machine.name):
                    self._run(ctx, order)
            except Exception:
                LOG.exception("[instance: %s] Order %s was lost; its lease will end", uuid, order.step)
            finally:
                with self._mutex:
                    if self._running.get(order.action.uuid) == order.attempt:
                        del self._running[order.action.uuid]

    # --- running -------------------------------------------------------------------------------
    def _run(self, ctx: context.RequestContext, order: StepOrder) -> None:
        operation = REGISTRY[order.action.operation or ""](order.instance, journal(order.action).data)
        host = StepHost(self.machine, ctx, order.instance, order.rules)
        batch = operation.batch(operation.step_named(order.step), order.undo)
        report = StepReport(action_uuid=order.action.uuid, step=order.step, attempt=order.attempt, undo=order.undo,
                            host=self.machine.name)
        LOG.info("[instance: %s] %s%s: %s", order.instance.uuid, "Undoing " if order.undo else "",
                 order.action.action, ", ".join(step.name for step in batch))
        started = time.monotonic()
        with self._builds if order.action.operation == "build" and not order.undo else contextlib.nullcontext():
            if self._stopping.is_set():
                return  # it waited for other builds and has not begun
            for step in batch:
                if step is not batch[0] and time.monotonic() - started > _PROGRESS_AFTER:
                    self._tell(ctx, order, step)
                report.step = step.name
                try:
                    with metrics.step(operation.name, step.name, order.undo), tracing.span(
                            f"host {'undo ' if order.undo else ''}{operation.name}.{step.name}"):
                        self._patiently(functools.partial(operation.run, step, host, order.undo))
                except Exception as error:
                    report.failure = self._failure(error, order, step)
                    if not order.undo:
                        break  # compensations go on: what they can still clear up, they shall
        report.changes = host.changes
        self._report(ctx, order, report)
        LOG.info("[instance: %s] %s took %.2f s%s", order.instance.uuid, order.action.action,
                 time.monotonic() - started, " and failed" if report.failure else "")

    def _patiently(self, step: Callable[[], None]) -> None:
        """Run a step; wait a while for a hypervisor that is being restarted."""
        until = time.monotonic() + _HYPERVISOR_PATIENCE
        while True:
            try:
                step()
                return
            except exception.HypervisorUnavailable:
                if time.monotonic() > until or self._stopping.wait(1.0):
                    raise

    def _failure(self, error: Exception, order: StepOrder, step: Step) -> Failure:
        if isinstance(error, exception.NovaException):
            LOG.warning("[instance: %s] %s failed: %s", order.instance.uuid, step.name, error)
        else:
            LOG.exception("[instance: %s] %s failed", order.instance.uuid, step.name)
        return failure_of(error, self.machine.name)

    def _tell(self, ctx: context.RequestContext, order: StepOrder, step: Step) -> None:
        try:
            self._engine.progress(ctx, StepReport(
                action_uuid=order.action.uuid, step=step.name, attempt=order.attempt, undo=order.undo, final=False,
                host=self.machine.name))
        except exception.ServiceUnavailable:
            LOG.debug("Progress was not told; the end will be")

    def _report(self, ctx: context.RequestContext, order: StepOrder, report: StepReport) -> None:
        """Tell the end until a conductor has it, or it is of no interest any more."""
        wait = 0.5
        while True:
            try:
                self._engine.step_done(ctx, report)
                return
            except exception.StaleReport:
                LOG.info("[instance: %s] %s was decided without us", order.instance.uuid, order.action.action)
                self._clear_stray(ctx, order)
                return
            except exception.NovaException as error:
                LOG.warning("[instance: %s] The end of %s could not be reported: %s", order.instance.uuid,
                            order.step, error)
            with self._mutex:
                if self._overtaken(order):
                    return  # the newer order will report
            if self._stopping.wait(wait):
                return
            wait = min(wait * 2, 10.0)

    def _clear_stray(self, ctx: context.RequestContext, order: StepOrder) -> None:
        """Remove the guest of an order that came too late, or tell how it left it, unless a newer order has the say."""
        uuid = order.instance.uuid
        with self._mutex:
            if self._overtaken(order):
                return
        try:
            if self._guests.known(ctx, [uuid]).get(uuid) != self.machine.name:
                self.machine.driver.destroy(order.instance)
                self.machine.network.unplug(order.instance)
            else:
                power_state = self.machine.driver.power_state(uuid)
                self._guests.power_states(ctx, self.machine.name, [
                    GuestStatus(uuid=uuid, power_state=power_state, late=True)])
        except exception.GuestNotFound:
            LOG.info("[instance: %s] has no guest", uuid)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Leftovers stay until the next comparison: %s", uuid, error)
