"""Migrations of servers: lists, what running ones are told, and the word that ends a resize when nobody says it."""

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
from nova.conductor.endpoints.instance_actions import done
from nova.conductor.saga.engine import Engine
from nova.conductor.saga.run import host_of
from nova.conf import CONF
from nova.db import actions, server_migrations, servers
from nova.db.sql import clock
from nova.notifications.messages import NotificationBuilder, ServerEvent, publisher
from nova.objects import migration as migration_states
from nova.objects import states
from nova.objects.action import Action
from nova.objects.instance import Instance
from nova.objects.migration import Migration
from nova.operations.resize import ConfirmResize
from nova.operations.rules import Rules, check

LOG = logging.getLogger(__name__)

# How many migrations are looked at together.
_PAGE = 100
# Confirmations that come by themselves are begun so many in one look: many that were due at the same moment, or whose
# host is back, are no convoy before what users ask for.
_AT_ONCE = 20


class _Interrupt(NamedTuple):
    """When a server's migration may be told this, how that is shown among the server's actions, and told on the bus."""

    rules: Rules
    action: str
    event: str
    told: str


_INTERRUPTS = {
    migration_states.CANCEL: _Interrupt(
        Rules(label="abort live migration", task_states=frozenset({states.MIGRATING})),
        "live_migration_cancel", "compute_live_migration_abort", "live_migration_abort"),
    migration_states.FORCE_COMPLETE: _Interrupt(
        Rules(label="force_complete", vm_states=frozenset({states.ACTIVE}), task_states=frozenset({states.MIGRATING})),
        "live_migration_force_complete", "compute_live_migration_force_complete", "live_migration_force_complete"),
}


class Migrations(Endpoint):
    """Implements :class:`nova.rpcapi.migrations.Migrations`."""

    index = reads(server_migrations.index)

    def in_progress(self, ctx: context.RequestContext, instance_uuid: str, project_id: str | None) -> list[Migration]:
        def look(connection: sa.Connection) -> list[Migration]:
            servers.get(connection, instance_uuid, project_id)
            return server_migrations.in_progress(connection, instance_uuid)

        return self.core.db.read(look)

    def get(self, ctx: context.RequestContext, instance_uuid: str, migration_id: int,
            project_id: str | None) -> Migration:
        def look(connection: sa.Connection) -> Migration:
            servers.get(connection, instance_uuid, project_id)
            found = server_migrations.live(connection, instance_uuid, migration_id)
            if found.status not in migration_states.IN_PROGRESS:
                raise exception.MigrationNotFoundForInstance(migration_id=migration_id, instance_id=instance_uuid)
            return found

        return self.core.db.read(look)

    def interrupt(self, ctx: context.RequestContext, instance_uuid: str, migration_id: int, what: str,
                  statuses: list[str], project_id: str | None) -> None:
        wanted = _INTERRUPTS.get(what)
        if wanted is None:
            raise exception.InvalidInput(reason=f"a migration cannot be told to {what}.")

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
            self._tell(connection, ctx, wanted, migration.source_compute, instance)
            return migration

        migration = self.core.db.write(write)
        LOG.info("[instance: %s] Its live migration from %s to %s is told: %s", instance_uuid,
                 migration.source_compute, migration.dest_compute, what)
        tell(self.core, ctx, [migration])

    def _tell(self, connection: sa.Connection, ctx: context.RequestContext, wanted: _Interrupt, host: str,
              instance: Instance) -> None:
        """What is wanted is in its row: the source is told until it has done it, or cannot any more."""
        outbox = self.core.outbox
        if outbox.on:
            teller, by = NotificationBuilder(outbox.settings, ctx), publisher("nova-compute", host)
            outbox.write(connection, [told for phase in ("start", "end") for told in teller.server(
                ServerEvent(wanted.told, phase, by, instance))])


def tell(core: Core, ctx: context.RequestContext, migrations: Sequence[Migration]) -> None:
    """Say what is wanted of them to the hosts that are at work on them (the conductor's own steps look at the row)."""
    def at_work(connection: sa.Connection) -> list[tuple[Migration, Action]]:
        found = [(migration, actions.get(connection, migration.action_uuid or "")) for migration in migrations]
        return [(migration, action) for migration, action in found
                if action is not None and action.outcome is None and host_of(action.owner)]

    for migration, action in core.db.read(at_work):
        host = host_of(action.owner)
        try:
            core.compute_at(host).interrupt(ctx, action.uuid, migration.wanted)
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Host %s was not told that its migration is to %s, and will be told again: %s",
                        migration.instance_uuid, host, migration.wanted, error)


# --- periodic --------------------------------------------------------------------------------------
def look_after(core: Core, engine: Engine) -> None:
    """What nobody else sees to: messages that got lost, and moves that have waited long enough for their word."""
    left = core.db.read(server_migrations.interrupted)
    if left:
        tell(core, context.admin(), left)
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
                LOG.info("[instance: %s] Its resize has waited for %d s and is confirmed", migration.instance_uuid,
                         CONF.resize_confirm_window)
            except exception.NovaException as error:
                # Somebody else was faster, or the source has just gone away: another look comes.
                LOG.info("[instance: %s] Its resize is not confirmed now: %s", migration.instance_uuid, error)
            if begun == _AT_ONCE:
                return
        if len(page) < _PAGE:
            return
        after = page[-1].id
