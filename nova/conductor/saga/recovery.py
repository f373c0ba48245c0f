"""Takeover of actions whose lease ended, resumption by restarted hosts, and wake-up by external events."""

import logging
from collections.abc import Callable, Mapping

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.saga.deferred_cleanup import DeferredCleanup
from nova.conductor.saga.run import Run, current, owner_of, read_run
from nova.conductor.saga.step_executor import MAX_TRIES, StepExecutor, lease
from nova.db.hosts import services
from nova.db.servers import actions, external_events, servers
from nova.db.sql import clock
from nova.objects.servers.action import Action
from nova.objects.servers.order import StepOrder
from nova.operations.framework.base import CONDUCTOR, context_of
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

Submit = Callable[[context.RequestContext, Run, bool], None]

_PAGE = 100  # number of expired actions per query
# Seconds until the next try to take over an action that this conductor cannot read. A newer conductor may read it.
_UNREADABLE_PAUSE = 60.0
_EVENT_LIFETIME = 3600.0  # age in seconds at which an external event is deleted if no action has used it


class Recovery:
    """Takes over actions and submits them to the executor."""

    def __init__(self, core: Core, executor: StepExecutor, submit: Submit, cleanup: DeferredCleanup) -> None:
        self.core, self._cleanup, self._executor, self._submit = core, cleanup, executor, submit

    # --- hosts ---------------------------------------------------------------------------------------
    def begin(self, action_uuid: str, attempt: int, host: str) -> None:
        """Confirm to a host that the steps sent to it are current, and renew the lease. Raises StaleReport."""
        def renew(connection: sa.Connection) -> None:
            if not actions.confirm(connection, action_uuid, attempt, owner_of(host), lease()):
                current(actions.get(connection, action_uuid), action_uuid, "", attempt)
                # The action is owned by another service, or by none.
                raise exception.StaleReport(action=action_uuid, step="", attempt=attempt)

        self.core.db.write(renew)

    def resume(self, host: str) -> list[StepOrder]:
        """Return orders that continue all unfinished actions of a restarted host."""
        def take(connection: sa.Connection) -> list[StepOrder]:
            orders = []
            for action in actions.owned(connection, owner_of(host)):
                run = read_run(connection, action)
                if run is None or run.step is None:
                    continue
                run.journal.tries += 1
                if run.journal.tries > MAX_TRIES:
                    continue  # not sent again: the step may crash the host; it fails when its lease has ended
                try:
                    actions.update(connection, action, attempt=action.attempt + 1, lease_until=lease(),
                                   payload=run.payload())
                except exception.StaleReport:
                    continue  # not sent again: a conductor has taken over the action
                action.attempt += 1
                orders.append(self._executor.order(connection, run, run.step, action.attempt, host))
            return orders

        orders = self.core.db.write(take)
        for order in orders:
            metrics.TAKEOVERS.inc(order.action.operation or "", "restart")
        if orders:
            LOG.info("Host %s has restarted and resumes %d operations", host, len(orders))
        return orders

    # --- leases --------------------------------------------------------------------------------------
    def recover(self, reach_hosts: bool = True, judge_hosts: bool = True) -> int:
        """Take over actions whose lease ended; return their number. ``reach_hosts``: include actions that hosts own.
        ``judge_hosts``: treat hosts without heartbeats as lost; if False, their orders are sent again."""
        handled: set[str] = set()
        while True:
            page = self.core.db.read(lambda connection: actions.expired(connection, clock.now(), _PAGE, reach_hosts))
            fresh = [action for action in page if action.uuid not in handled]
            for action in fresh:
                self._try_to_take_over(action, judge_hosts)
            handled.update(action.uuid for action in fresh)
            # A page without new actions contains only those that could be neither taken over nor postponed.
            if len(page) < _PAGE or not fresh:
                break
        self._cleanup.run_due()
        self.core.db.write(lambda connection: external_events.forget_old(connection, clock.after(-_EVENT_LIFETIME)))
        return len(handled)

    def _try_to_take_over(self, action: Action, judge_hosts: bool) -> None:
        try:
            self._take_over(action, judge_hosts)
        except exception.StaleReport:
            pass  # another conductor has taken over the action
        except exception.ServiceUnavailable as error:
            LOG.warning("[instance: %s] Cannot take over operation %s now, retrying: %s", action.instance_uuid,
                        action.action, error)
        except Exception:
            LOG.exception("[instance: %s] Cannot take over operation %s, retrying in %d s", action.instance_uuid,
                          action.action, _UNREADABLE_PAUSE)
            try:
                self.core.db.write(lambda connection: self._postpone(connection, action))
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Cannot postpone the takeover of operation %s, retrying at the next check: "
                            "%s", action.instance_uuid, action.action, error)

    @staticmethod
    def _postpone(connection: sa.Connection, action: Action) -> None:
        """Postpone an action that cannot be taken over, so that it does not stay first in the list. The action loses
        its owner, because only actions without owner may have a lease in the distant future."""
        actions.update(connection, action, owner=None, lease_until=clock.after(_UNREADABLE_PAUSE))

    def _take_over(self, action: Action, judge_hosts: bool) -> None:
        def take(connection: sa.Connection) -> tuple[Run, bool] | None:
            # A copy, because the transaction may be retried.
            run = read_run(connection, msgspec.structs.replace(action))
            if run is None:
                self._postpone(connection, action)
                return None
            if action.queued and not self._has_turn(connection, run):
                return None
            step = run.step
            if action.owner and step is not None and step.place == CONDUCTOR:
                run.journal.tries += 1  # the conductor did not complete the step; the step may have crashed it
            actions.update(connection, action, attempt=action.attempt + 1, owner=self.core.name, lease_until=lease(),
                           waits_for=None, queued=False, payload=run.payload())
            run.action.queued = False
            run.action.attempt = action.attempt + 1
            run.action.owner = self.core.name
            host = run.operation.host_of(step) if step else ""
            up = services.host_up(connection, host) if judge_hosts else not services.forced_down(connection, host)
            return run, not host or up

        taken = self.core.db.write(take)
        if taken is None:
            return
        run, host_up = taken
        metrics.TAKEOVERS.inc(run.operation.name, "lease")
        LOG.info("[instance: %s] Took over operation %s at step %s (attempt %d)", run.instance.uuid, run.action.action,
                 run.action.step, run.action.attempt)
        self._submit(context_of(run.action), run, not host_up)

    @staticmethod
    def _has_turn(connection: sa.Connection, run: Run) -> bool:
        """Start a queued action if no other action holds its server; return False if an action still holds it."""
        actions.update(connection, run.action, lease_until=lease())
        run.use_instance(servers.lock(connection, run.instance.uuid))
        if run.instance.action_uuid is not None:
            return False
        servers.update(connection, run.instance.uuid, {"action_uuid": run.action.uuid})
        run.instance.action_uuid = run.action.uuid
        run.operation.relocate()
        return True

    # --- external events -------------------------------------------------------------------------------
    def wake(self, instance_uuid: str, events: Mapping[str, str]) -> bool:
        """Store external events and resume the action that waits for any of them; return True if an action waited."""
        def store(connection: sa.Connection) -> Run | None:
            for key, status in sorted(events.items()):
                external_events.add(connection, instance_uuid, key, status)
            action = actions.waiting(connection, instance_uuid, events)
            run = read_run(connection, action) if action else None
            if run is None:
                return None
            actions.update(connection, run.action, attempt=run.action.attempt + 1, owner=self.core.name,
                           lease_until=lease(), waits_for=None)
            run.action.attempt += 1
            run.action.owner = self.core.name
            return run

        run = self.core.db.write(store)
        if run is None:
            return False
        self._submit(context_of(run.action), run, False)
        return True
