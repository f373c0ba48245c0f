"""Deferred cleanup of external services, after the operation that called them has ended.

An external service may complete a call late: after the operation of the call was superseded and compensated. The row of
the ended action therefore stores the cleanup (``lease_until`` is then the time at which the cleanup is due), in the
transaction that supersedes the action. Any conductor runs the cleanup after the duration of a lease, and again when the
late call returns, until the service has answered. A compensation that was given up because its service was unavailable
for too long is stored and repeated in the same way.

A known limit: the cleanup of an attachment in Cinder finds the attachment by server and volume. If a user attaches the
same volume to the same server between the check of the server and the deletion one call later, the new attachment is
deleted. The attach operation fails and is compensated if it had not yet updated its attachment. If it had, the user
must detach the volume and attach it again. Embedded volumes need no deferred cleanup."""

import contextlib
import functools
import logging
from collections.abc import Callable

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.run import Run
from nova.conf import CONF
from nova.db.servers import actions, servers
from nova.db.sql import clock
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.operations import REGISTRY
from nova.operations.framework.base import Cleanup, Journal, context_of, journal
from nova.telemetry import tracing

LOG = logging.getLogger(__name__)

_PAGE = 100  # number of actions per query
_MAX_TRIES = 32  # attempts (in about a day) after which a failing cleanup is given up with an ERROR in the log
_LONGEST_PAUSE = 3600.0  # seconds between two attempts; the pause doubles from [conductor]lease to this limit


class DeferredCleanup:
    """The cleanups of all ended actions. ``submit(project, key, task)`` runs a task in the background."""

    def __init__(self, core: Core, submit: Callable[[str, str, Callable[[], None]], None]) -> None:
        self.core, self._submit = core, submit

    def call_returned_late(self, run: Run, cleanup: Cleanup | None) -> None:
        """Clean up after an external call that returned when another process had already taken over its operation. The
        compensation of that process may have run before the call took effect. The result of the call does not matter: a
        service may also complete a call that it rejected or did not answer."""
        if cleanup is None:
            return

        def schedule(connection: sa.Connection) -> Action | None:
            stored = actions.get(connection, run.action.uuid)
            if stored is not None and stored.outcome is None:
                self._schedule_at_end(connection, stored, run, cleanup)
                return None
            content = Journal(interrupted=cleanup, cleanups=journal(stored).cleanups if stored else [],
                              trace=run.journal.trace)
            return actions.schedule_cleanup(connection, run.action.uuid, msgspec.to_builtins(content))

        try:
            action = self.core.db.write(schedule)
            if action is not None:  # None: the action continues in another process, or has succeeded
                self._attempt(action)
        except exception.NovaException as error:
            LOG.error("[instance: %s] Cannot schedule the cleanup of step %s of operation %s; check the external "
                      "service for leftovers: %s", run.instance.uuid, cleanup.step, cleanup.operation, error)

    @staticmethod
    def _schedule_at_end(connection: sa.Connection, stored: Action, late: Run, cleanup: Cleanup) -> None:
        """Add the cleanup to an unfinished action whose compensations are already past the step of the ``late`` call.
        In other cases the remaining steps or compensations of the action handle the result of the call."""
        names = [step.name for step in late.operation.steps]
        if late.action.undoing or stored.step not in names:
            return
        position, called = names.index(stored.step), names.index(cleanup.step)
        if position > called or (position == called and not stored.undoing):
            return
        content = journal(stored)
        content.cleanups.append(cleanup)
        try:  # a new attempt, because the executor of the current attempt overwrites the journal with its own copy
            actions.update(connection, stored, attempt=stored.attempt + 1, owner=None, lease_until=clock.now(),
                           payload=msgspec.to_builtins(content))
        except exception.StaleReport as error:
            raise db_exception.RetryRequest(exception.ServiceUnavailable("The action is at a later step.")) from error

    def run_due(self) -> None:
        """Run the cleanups that are due, in the background."""
        for action in self.core.db.read(lambda connection: actions.due_cleanups(connection, clock.now(), _PAGE)):
            self._submit(action.project_id or "", f"cleanup {action.uuid}", functools.partial(self._attempt, action))

    def _attempt(self, action: Action) -> None:
        try:
            content = journal(action)
        except msgspec.ValidationError as error:
            self._postpone_unreadable(action, error)
            return
        pause = min(CONF.conductor.lease * 2**content.tries, _LONGEST_PAUSE)
        content.tries += 1
        payload = msgspec.to_builtins(content)

        def take(connection: sa.Connection) -> Instance | None:
            """Return the server, or None while an operation holds it. Postpones the cleanup for other conductors."""
            server = servers.get(connection, action.instance_uuid, deleted=True)
            free = server.deleted or server.action_uuid is None
            actions.postpone_cleanup(connection, action, clock.after(pause if free else CONF.conductor.lease),
                                     payload if free else action.payload)
            return server if free else None

        try:
            server = self.core.db.write(take)
            action.attempt += 1
            if server is None:
                return
            cleanups = [*content.cleanups, *([content.interrupted] if content.interrupted else [])]
            results = [self._clean_up(action, cleanup, server) for cleanup in cleanups]  # all, even if one fails
            if not all(results) and content.tries > _MAX_TRIES:
                LOG.error("[instance: %s] Giving up the cleanup of %s after %d attempts: remove the leftovers of the "
                          "server from the external service", action.instance_uuid, ", ".join(
                              f"{cleanup.operation}.{cleanup.step}" for cleanup, done in zip(
                                  cleanups, results, strict=True) if not done), content.tries)
            if all(results) or content.tries > _MAX_TRIES:
                self.core.db.write(lambda connection: self._record_done(connection, action, server))
        except exception.StaleReport:
            pass  # another conductor runs the cleanup, or a further call returned late
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Cleanup of external services failed, retrying later: %s", action.instance_uuid,
                        error)

    def _postpone_unreadable(self, action: Action, error: Exception) -> None:
        """Postpone a cleanup that only a newer release can read, so that other cleanups are not delayed."""
        LOG.warning("[instance: %s] Cannot read the deferred cleanup of operation %s, leaving it to a conductor of a "
                    "newer release: %s", action.instance_uuid, action.operation, error)
        with contextlib.suppress(exception.NovaException):  # after an error, the next run postpones it
            self.core.db.write(lambda connection: actions.postpone_cleanup(
                connection, action, clock.after(_LONGEST_PAUSE), action.payload))

    @staticmethod
    def _record_done(connection: sa.Connection, action: Action, cleaned: Instance) -> None:
        """Record the cleanup as done, unless an operation began meanwhile: the cleanup may have affected it."""
        server = servers.get(connection, action.instance_uuid, deleted=True)
        if (server.deleted, server.host, server.action_uuid) == (cleaned.deleted, cleaned.host, cleaned.action_uuid):
            actions.postpone_cleanup(connection, action, None, action.payload)

    def _clean_up(self, action: Action, cleanup: Cleanup, server: Instance) -> bool:
        """Run the cleanup. Return True if it succeeded, or if this release does not have its operation."""
        if cleanup.operation not in REGISTRY:
            return True
        ctx = context_of(action)
        ctx.update_store()
        if server.deleted:  # the row of a deleted server no longer has the external resources
            server.block_devices, server.network_info = cleanup.block_devices, cleanup.network_info
        try:
            operation = REGISTRY[cleanup.operation](server, cleanup.data)
            with tracing.span(f"conductor clean up {cleanup.operation}.{cleanup.step}", ctx, instance=server.uuid):
                operation.clean_up(operation.step_named(cleanup.step), ConductorControl(self.core, ctx, server))
        except (exception.ServiceUnavailable, exception.HostDown) as error:
            LOG.warning("[instance: %s] Cleanup of step %s of operation %s failed, retrying later: %s", server.uuid,
                        cleanup.step, cleanup.operation, error)
            return False
        except Exception:
            LOG.exception("[instance: %s] Cleanup of step %s of operation %s failed, retrying later", server.uuid,
                          cleanup.step, cleanup.operation)
            return False
        LOG.info("[instance: %s] Removed the leftovers of step %s of the ended operation %s from the external service",
                 server.uuid, cleanup.step, cleanup.operation)
        return True
