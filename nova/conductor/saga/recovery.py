"""Finding what got lost: leases that ended, hosts that come back, waits that are over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor.core import Core
from nova.conductor.saga.debts import Debts
from nova.conductor.saga.run import Run, current, owner_of
from nova.conductor.saga.walk import MAX_TRIES, Walk, lease
from nova.db import actions, external_events, servers, services
from nova.db.sql import clock
from nova.objects.action import Action
from nova.objects.order import StepOrder
from nova.operations.base import CONDUCTOR, context_of
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

Submit = Callable[[context.RequestContext, Run, bool], None]

# Expired actions that are read at once.
_PAGE = 100
# Seconds after which an action that cannot be taken over is looked at again: a newer neighbour may know it.
_UNKNOWN = 60.0
# Seconds after which an external event that nobody waits for is forgotten.
_KEPT = 3600.0


class Recovery:
    """Takes over actions; the walk goes on with them."""

    def __init__(self, core: Core, walk: Walk, submit: Submit, debts: Debts) -> None:
        self.core = core
        self._debts = debts
        self._walk = walk
        self._submit = submit

    # --- hosts ---------------------------------------------------------------------------------------
    def begin(self, action_uuid: str, attempt: int, host: str) -> None:
        """A host confirms an order before it goes on with it; its lease is renewed. Raises StaleReport."""
        def renew(connection: sa.Connection) -> None:
            if not actions.confirm(connection, action_uuid, attempt, owner_of(host), lease()):
                current(actions.get(connection, action_uuid), action_uuid, "", attempt)
                raise exception.StaleReport(action=action_uuid, step="", attempt=attempt)  # nobody's, or another's

        self.core.db.write(renew)

    def resume(self, host: str) -> list[StepOrder]:
        """New attempts of everything that a restarted host was doing."""
        def take(connection: sa.Connection) -> list[StepOrder]:
            orders = []
            for action in actions.owned(connection, owner_of(host)):
                run = self._known(connection, action)
                if run is None or run.step is None:
                    continue
                run.journal.tries += 1
                if run.journal.tries > MAX_TRIES:
                    continue  # perhaps the host ends of it: when the lease has ended the step counts as failed
                try:
                    actions.update(connection, action, attempt=action.attempt + 1, lease_until=lease(),
                                   payload=run.payload())
                except exception.StaleReport:
                    continue  # it goes on without the host
                action.attempt += 1
                orders.append(self._walk.order(connection, run, run.step, action.attempt, host))
            return orders

        orders = self.core.db.write(take)
        for order in orders:
            metrics.TAKEOVERS.inc(order.action.operation or "", "restart")
        if orders:
            LOG.info("Host %s resumes %d operations", host, len(orders))
        return orders

    # --- leases --------------------------------------------------------------------------------------
    def recover(self, reach_hosts: bool = True, judge_hosts: bool = True) -> int:
        """Take over actions whose lease ended; returns how many were found.

        Without ``reach_hosts`` those in the hands of hosts are left alone; without ``judge_hosts`` a silent
        host is asked once more rather than given up.
        """
        found: set[str] = set()
        while True:
            page = self.core.db.read(lambda connection: actions.expired(connection, clock.now(), _PAGE, reach_hosts))
            fresh = [action for action in page if action.uuid not in found]
            for action in fresh:
                self._try_to_take_over(action, judge_hosts)
            found.update(action.uuid for action in fresh)
            # What comes again could neither be taken over nor left.
            if len(page) < _PAGE or not fresh:
                break
        self._debts.collect()
        self.core.db.write(lambda connection: external_events.forget_old(connection, clock.after(-_KEPT)))
        return len(found)

    def _try_to_take_over(self, action: Action, judge_hosts: bool) -> None:
        try:
            self._take_over(action, judge_hosts)
        except exception.StaleReport:
            pass  # somebody else was faster
        except exception.ServiceUnavailable as error:
            LOG.warning("[instance: %s] Operation %s is taken over later: %s", action.instance_uuid, action.action,
                        error)
        except Exception:
            LOG.exception("[instance: %s] Operation %s could not be taken over", action.instance_uuid, action.action)
            try:
                self.core.db.write(lambda connection: self._leave(connection, action))
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Nor could it be left: %s", action.instance_uuid, error)

    @staticmethod
    def _leave(connection: sa.Connection, action: Action) -> None:
        """Let it be found again after a while, not before all others each time.

        It has no owner then: only what nobody owns may wait for longer than leases last.
        """
        actions.update(connection, action, owner=None, lease_until=clock.after(_UNKNOWN))

    def _take_over(self, action: Action, judge_hosts: bool) -> None:
        def take(connection: sa.Connection) -> tuple[Run, bool] | None:
            # A copy: this may run several times.
            run = self._known(connection, msgspec.structs.replace(action))
            if run is None:
                self._leave(connection, action)
                return None
            if action.queued and not self._has_turn(connection, run):
                return None
            step = run.step
            if action.owner and step is not None and step.place == CONDUCTOR:
                run.journal.tries += 1  # its conductor did not come to the end of it; perhaps it ended of it
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
        LOG.info("[instance: %s] Took over %s at step %s (attempt %d)", run.instance.uuid, run.action.action,
                 run.action.step, run.action.attempt)
        self._submit(context_of(run.action), run, not host_up)

    @staticmethod
    def _has_turn(connection: sa.Connection, run: Run) -> bool:
        """Return True if an action that waited for a build has the server now; if not, it waits for another lease."""
        actions.update(connection, run.action, lease_until=lease())
        run.renew(servers.lock(connection, run.instance.uuid))
        if run.instance.action_uuid is not None:
            return False
        servers.update(connection, run.instance.uuid, {"action_uuid": run.action.uuid})
        run.instance.action_uuid = run.action.uuid
        return True

    def _known(self, connection: sa.Connection, action: Action) -> Run | None:
        """The run of an action; None if this release does not know its operation, its step or its data."""
        try:
            run = Run(action, servers.get(connection, action.instance_uuid, deleted=True))
            run.operation.step_named(action.step or run.operation.steps[0].name)
            return run
        except (exception.NovaException, msgspec.ValidationError) as error:
            LOG.warning("[instance: %s] Operation %s cannot be read here and is left to a newer release: %s",
                        action.instance_uuid, action.operation, error)
            return None

    # --- what outside services tell ------------------------------------------------------------------
    def wake(self, instance_uuid: str, events: Mapping[str, str]) -> bool:
        """Note external events and let the action go on that waits for any of them; returns whether one did."""
        def note(connection: sa.Connection) -> Run | None:
            for key, status in sorted(events.items()):
                external_events.add(connection, instance_uuid, key, status)
            action = actions.waiting(connection, instance_uuid, events)
            run = self._known(connection, action) if action else None
            if run is None:
                return None
            actions.update(connection, run.action, attempt=run.action.attempt + 1, owner=self.core.name,
                           lease_until=lease(), waits_for=None)
            run.action.attempt += 1
            run.action.owner = self.core.name
            return run

        run = self.core.db.write(note)
        if run is None:
            return False
        self._submit(context_of(run.action), run, False)
        return True
