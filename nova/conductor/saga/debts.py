"""Debts: what an external step may make outside after its operation has ended, and nobody has undone.

A service may answer late, or not at all: the call that was under way when its operation was superseded may be done
after everything was compensated. The row of the superseded action remembers it (``lease_until`` of an action that has
ended), in the transaction in which it is superseded. Any conductor takes it back once a lease is over, and again
whenever somebody notices that his call came late, until the service outside has answered. A compensation that was given
up, since the service was away for too long, is remembered in the same way by whatever action had to do it.

A volume may be attached to the same server anew between our look at the server and the deletion one call later. What
a debt asks Cinder to forget is found by server and volume, so the new attachment would go, too. An attach that has not
asked for its connection by then fails there and is compensated; one that was quicker than a single call of ours loses
its attachment, and the volume has to be detached and attached again. Embedded volumes are never owed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conductor.core import Core
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.run import Run
from nova.conf import CONF
from nova.db import actions, servers
from nova.db.sql import clock
from nova.objects.action import Action
from nova.objects.instance import Instance, without_secrets
from nova.objects.volume import journal_without_secrets
from nova.operations import REGISTRY
from nova.operations.base import Journal, Owed, Step, context_of, journal
from nova.telemetry import tracing

LOG = logging.getLogger(__name__)

# Debts that are read at once.
_PAGE = 100
# How often it is tried to take something back (with the longest pause in seconds between two times): about a day.
_MAX_TRIES = 32
_LONGEST_PAUSE = 3600.0


def owed_by(run: Run) -> Owed | None:
    """Return the cleanup of what the current step may do in external services; None if it is not an external step."""
    step = run.step
    return owed_for(run, step) if step is not None and step.external and not run.never_began else None


def owed_for(run: Run, step: Step) -> Owed:
    """Return the cleanup of what this step has created, or may create, in external services. It needs no secret."""
    return Owed(operation=run.operation.name, step=step.name,
                data=journal_without_secrets(msgspec.to_builtins(run.operation.data)),
                block_devices=without_secrets(run.instance).block_devices, network_info=run.instance.network_info)


class Debts:
    """Takes back what was made outside in vain. ``submit(project, task)`` runs a task in the background."""

    def __init__(self, core: Core, submit: Callable[[str, Callable[[], None]], None]) -> None:
        self.core = core
        self._submit = submit

    def came_late(self, run: Run, owed: Owed | None) -> None:
        """A call ended after somebody else had got hold of its operation: whoever compensated may have come too early.

        However the step ended: what a service outside did not answer, or refused half-way, may have been done.
        """
        if owed is None:
            return
        def owe(connection: sa.Connection) -> Action | None:
            found = actions.get(connection, run.action.uuid)
            book = Journal(owed=owed, owes=journal(found).owes if found else [], trace=run.journal.trace)
            return actions.owe(connection, run.action.uuid, msgspec.to_builtins(book))

        try:
            due = self.core.db.write(owe)
            if due is not None:  # else it goes on in other hands, which find what was made
                self._take_back(due)
        except exception.NovaException as error:
            LOG.error("[instance: %s] What step %s of %s made outside may be left: %s", run.instance.uuid, owed.step,
                      owed.operation, error)

    def collect(self) -> None:
        """Take back what is due."""
        for action in self.core.db.read(lambda connection: actions.owing(connection, clock.now(), _PAGE)):
            self._submit(action.project_id or "", lambda action=action: self._take_back(action))  # type: ignore[misc]

    def _take_back(self, action: Action) -> None:
        try:
            book = journal(action)
        except msgspec.ValidationError as error:
            self._leave(action, error)
            return
        pause = min(CONF.conductor.lease * 2**book.tries, _LONGEST_PAUSE)
        book.tries += 1
        payload = msgspec.to_builtins(book)

        def take(connection: sa.Connection) -> Instance | None:
            """The server, if nobody holds it; another conductor leaves the debt alone meanwhile."""
            server = servers.get(connection, action.instance_uuid, deleted=True)
            free = server.deleted or server.action_uuid is None
            actions.defer(connection, action, clock.after(pause if free else CONF.conductor.lease),
                          payload if free else action.payload)
            return server if free else None

        try:
            server = self.core.db.write(take)
            action.attempt += 1
            if server is not None and (self._all_done(action, book, server) or book.tries > _MAX_TRIES):
                self.core.db.write(lambda connection: self._forget(connection, action, server))
        except exception.StaleReport:
            pass  # another conductor was faster, or it came late once more
        except exception.NovaException as error:
            LOG.warning("[instance: %s] What was made outside is taken back later: %s", action.instance_uuid, error)

    def _leave(self, action: Action, error: Exception) -> None:
        """A newer release can read it; it is not found before all others until then."""
        LOG.warning("[instance: %s] What operation %s may have left outside cannot be read here and is left to a newer "
                    "release: %s", action.instance_uuid, action.operation, error)
        with contextlib.suppress(exception.NovaException):  # somebody else was faster, or it is left another time
            self.core.db.write(lambda connection: actions.defer(
                connection, action, clock.after(_LONGEST_PAUSE), action.payload))

    @staticmethod
    def _forget(connection: sa.Connection, action: Action, undone: Instance) -> None:
        """Record the cleanup as done, unless another action took the server: what was undone may affect it."""
        server = servers.get(connection, action.instance_uuid, deleted=True)
        if server.deleted == undone.deleted and (server.host, server.action_uuid) == (undone.host, undone.action_uuid):
            actions.defer(connection, action, None, action.payload)

    def _all_done(self, action: Action, book: Journal, server: Instance) -> bool:
        owes = [*book.owes, *([book.owed] if book.owed else [])]
        return all([self._done(action, owed, server) for owed in owes])  # noqa: C419 - none waits for another

    def _done(self, action: Action, owed: Owed, server: Instance) -> bool:
        """Undo it; returns whether there is nothing more to do."""
        if owed.operation not in REGISTRY:
            return True
        ctx = context_of(action)
        ctx.update_store()
        if server.deleted:  # by what it had then the things outside are found
            server.block_devices, server.network_info = owed.block_devices, owed.network_info
        try:
            operation = REGISTRY[owed.operation](server, owed.data)
            with tracing.span(f"conductor take back {owed.operation}.{owed.step}", ctx, instance=server.uuid):
                operation.take_back(operation.step_named(owed.step), ConductorControl(self.core, ctx, server))
        except (exception.ServiceUnavailable, exception.HostDown) as error:
            LOG.warning("[instance: %s] What step %s of %s made outside is not undone yet: %s", server.uuid, owed.step,
                        owed.operation, error)
            return False
        except Exception:
            LOG.exception("[instance: %s] What step %s of %s made outside is not undone", server.uuid, owed.step,
                          owed.operation)
            return False
        LOG.info("[instance: %s] Whatever step %s made outside is undone: operation %s had ended", server.uuid,
                 owed.step, owed.operation)
        return True
