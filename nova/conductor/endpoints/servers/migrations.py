"""Migrations of servers: lists, interrupts of running live migrations, and automatic confirmation of resizes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from nova import context, exception
from nova.conductor.acceptance import start
from nova.conductor.core import Core
from nova.conductor.endpoints.derived import Endpoint, reads
from nova.conductor.endpoints.servers.instance_actions import done
from nova.conductor.saga.engine import Engine
from nova.conductor.saga.run import host_of
from nova.conf import CONF
from nova.db.servers import actions, server_migrations, servers
from nova.db.sql import clock
from nova.notifications.messages import NotificationBuilder, ServerEvent, publisher
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Action
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration
from nova.operations.framework.rules import Rules, check
from nova.operations.resize import ConfirmResize

LOG = logging.getLogger(__name__)

# Migrations read in one query.
_PAGE = 100
# Maximum number of automatic confirmations started in one pass. Many may be due at once, or after their host returned;
# they must not delay the requests of users.
_AT_ONCE = 20


class _Interrupt(NamedTuple):
    """An interrupt of a live migration: required server states, names of its instance action, and its notification."""

    rules: Rules
    action: str
    event: str
    notification: str


_INTERRUPTS = {
    migration_states.CANCEL: _Interrupt(
        Rules(label="abort live migration", task_states=frozenset({states.MIGRATING})),
        "live_migration_cancel", "compute_live_migration_abort", "live_migration_abort"),
    migration_states.FORCE_COMPLETE: _Interrupt(
        Rules(label="force_complete", vm_states=frozenset({states.ACTIVE}), task_states=frozenset({states.MIGRATING})),
        "live_migration_force_complete", "compute_live_migration_force_complete", "live_migration_force_complete"),
}


class Migrations(Endpoint):
    """Implements :class:`nova.rpcapi.servers.Migrations`."""

    index = reads(server_migrations.index)

    def in_progress(self, ctx: context.RequestContext, instance_uuid: str, project_id: str | None) -> list[Migration]:
        def read(connection: sa.Connection) -> list[Migration]:
            servers.get(connection, instance_uuid, project_id)
            return server_migrations.in_progress(connection, instance_uuid)

        return self.core.db.read(read)

    def get(self, ctx: context.RequestContext, instance_uuid: str, migration_id: int,
            project_id: str | None) -> Migration:
        def read(connection: sa.Connection) -> Migration:
            servers.get(connection, instance_uuid, project_id)
            migration = server_migrations.live(connection, instance_uuid, migration_id)
            if migration.status not in migration_states.IN_PROGRESS:
                raise exception.MigrationNotFoundForInstance(migration_id=migration_id, instance_id=instance_uuid)
            return migration

        return self.core.db.read(read)

    def interrupt(self, ctx: context.RequestContext, instance_uuid: str, migration_id: int, what: str,
                  statuses: list[str], project_id: str | None) -> None:
        wanted = _INTERRUPTS.get(what)
        if wanted is None:
            raise exception.InvalidInput(reason=f"{what} is not an interrupt of a migration.")

        def write(connection: sa.Connection) -> Migration:
            instance = servers.lock(connection, instance_uuid, project_id)
            check(wanted.rules, instance, bool(ctx.is_admin), lambda: True)
            migration = server_migrations.live(connection, instance_uuid, migration_id)
            if migration.status not in statuses or not migration.open:
                raise exception.InvalidMigrationState(
                    migration_id=migration_id, instance_uuid=instance_uuid, state=migration.status, method=what)
            server_migrations.update(connection, migration.uuid, {"wanted": what})
            migration.wanted = what
            actions.insert(connection, [done(ctx, instance_uuid, wanted.action, wanted.event,
                                             migration.source_compute)])
            self._notify(connection, ctx, wanted, migration.source_compute, instance)
            return migration

        migration = self.core.db.write(write)
        LOG.info("[instance: %s] Sending interrupt to the live migration from %s to %s: %s", instance_uuid,
                 migration.source_compute, migration.dest_compute, what)
        send_interrupts(self.core, ctx, [migration])

    def _notify(self, connection: sa.Connection, ctx: context.RequestContext, wanted: _Interrupt, host: str,
                instance: Instance) -> None:
        """Write the start and end notifications of the interrupt to the outbox."""
        outbox = self.core.outbox
        if outbox.on:
            builder, by = NotificationBuilder(outbox.settings, ctx), publisher("nova-compute", host)
            outbox.write(connection, [message for phase in ("start", "end") for message in builder.server(
                ServerEvent(wanted.notification, phase, by, instance))])


def send_interrupts(core: Core, ctx: context.RequestContext, migrations: Sequence[Migration]) -> None:
    """Send the interrupts of the migrations to the hosts that run their steps.

    Steps of the conductor itself read the interrupt from the row.
    """
    def at_work(connection: sa.Connection) -> list[tuple[Migration, Action]]:
        pairs = [(migration, actions.get(connection, migration.action_uuid or "")) for migration in migrations]
        return [(migration, action) for migration, action in pairs
                if action is not None and action.outcome is None and host_of(action.owner)]

    for migration, action in core.db.read(at_work):
        host = host_of(action.owner)
        try:
            core.compute_at(host).interrupt(ctx, action.uuid, migration.wanted)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Cannot send interrupt to host %s of the live migration, will retry: %s: %s",
                        migration.instance_uuid, host, migration.wanted, error)


# --- periodic --------------------------------------------------------------------------------------
def run_periodic(core: Core, engine: Engine) -> None:
    """Repeat interrupts whose message may be lost, and confirm resizes after resize_confirm_window."""
    left = core.db.read(server_migrations.interrupted)
    if left:
        send_interrupts(core, context.admin(), left)
    if CONF.resize_confirm_window and clock.steady(CONF.service_down_time):
        _confirm_overdue(core, engine)


def _confirm_overdue(core: Core, engine: Engine) -> None:
    before, after, begun = clock.overdue(CONF.resize_confirm_window), 0, 0
    while True:
        page = core.db.read(functools.partial(server_migrations.unconfirmed, before=before, after=after, limit=_PAGE))
        for migration in page:
            try:
                start(engine, context.admin(), migration.instance_uuid, ConfirmResize.name, {})
                begun += 1
                LOG.info("[instance: %s] Confirming the resize: it was not confirmed within %d s",
                         migration.instance_uuid, CONF.resize_confirm_window)
            except exception.NovaException as error:
                # Another operation started first, or the source host just went down. The next pass tries again.
                LOG.info("[instance: %s] The resize cannot be confirmed now, will retry: %s",
                         migration.instance_uuid, error)
            if begun == _AT_ONCE:
                return
        if len(page) < _PAGE:
            return
        after = page[-1].id
