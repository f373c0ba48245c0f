"""Endpoints of servers, their actions and migrations, server groups, external events and consoles."""

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from nova import bus, exception
from nova.conductor import create, service_events
from nova.conductor.acceptance import start
from nova.conductor.background.migrations import send_interrupts
from nova.conductor.core import Core
from nova.conductor.endpoints import notifications
from nova.conductor.endpoints.derived import Endpoint, reads, writes
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import Engine
from nova.conf import CONF
from nova.context import RequestContext
from nova.db.accounts import quotas
from nova.db.networks import security_filters, security_groups
from nova.db.servers import actions, consoles, external_events, server_groups, server_migrations, server_search, servers
from nova.db.sql import clock
from nova.notifications.messages import NOTIFIED_COLUMNS, NotificationBuilder, ServerEvent, publisher
from nova.objects.base import new_uuid
from nova.objects.networks.network import VIF
from nova.objects.servers import migration as migration_states
from nova.objects.servers import states
from nova.objects.servers.action import Accepted, Action, Event, Failure
from nova.objects.servers.console import Console
from nova.objects.servers.external_event import IN_PROGRESS, ExternalEvent
from nova.objects.servers.instance import Instance, without_secrets
from nova.objects.servers.migration import Migration
from nova.objects.servers.server_request import ServerCreate, ServerCreated, ServerPage, ServerQuery
from nova.operations import REGISTRY
from nova.operations.framework.base import event_key, journal
from nova.operations.framework.rules import Rules, check
from nova.operations.interfaces import AttachInterface, InterfaceData
from nova.operations.live_migrate import LiveMigrate, LiveMigrateData
from nova.operations.password import ChangePassword
from nova.operations.reset_state import ResetState
from nova.rpcapi import servers as servers_api

LOG = logging.getLogger(__name__)

_METADATA_STATES = frozenset({states.ACTIVE, states.PAUSED, states.SUSPENDED, states.STOPPED})
_UPDATABLE = frozenset({"display_name", "display_description", "hostname", "access_ip_v4", "access_ip_v6",
                        "disk_config", "system_metadata"})
_MAX_TAGS = 50  # maximum number of tags of a server


def _packed(page: server_search.ServerPage) -> list[Instance]:
    """Return the servers encoded, so that those of a long page are not all in memory at once."""
    return [bus.packed(without_secrets(instance)) for instance in page.servers]


class Servers(servers_api.Servers):
    """Servers: reads of instances for the API, and changes that need no operation."""

    def __init__(self, core: Core, engine: Engine) -> None:
        self.core, self.engine = core, engine

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None, deleted: bool = False) -> Instance:
        instance = self.core.db.lookup(lambda connection: servers.check_place(
            connection, servers.get(connection, uuid, project_id, deleted), ctx.calling_host))
        return without_secrets(instance)

    def create(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated:
        return create.create(self.engine, ctx, request)

    def made(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated | None:
        return create.made(self.engine, ctx, request)

    def index(self, ctx: RequestContext, query: ServerQuery) -> list[Instance]:
        return self.core.db.read(lambda connection: _packed(server_search.search(connection, query)))

    def page(self, ctx: RequestContext, query: ServerQuery) -> ServerPage:
        def read(connection: sa.Connection) -> ServerPage:
            page = server_search.search(connection, query, partial=True)
            return ServerPage(servers=_packed(page), marker=page.marker)

        return self.core.db.read(read)

    def operate(self, ctx: RequestContext, uuid: str, operation: str, payload: dict[str, Any] | None = None,
                project_id: str | None = None) -> Accepted:
        return start(self.engine, ctx, uuid, operation, payload or {}, project_id)

    def attached_interface(self, ctx: RequestContext, uuid: str, action_uuid: str,
                           project_id: str | None = None) -> VIF | None:
        state = journal(self._action(ctx, uuid, action_uuid, AttachInterface.name, project_id))
        if state.failure is not None:
            if state.failure.code < 500:
                raise exception.NovaException.rebuild(state.failure.kind, state.failure.message, {})
            raise exception.InterfaceAttachFailed(instance_uuid=uuid, reason=state.failure.message)
        return msgspec.convert(state.data, InterfaceData).vif

    def live_migration_checked(self, ctx: RequestContext, uuid: str, action_uuid: str,
                               project_id: str | None = None) -> bool:
        action = self._action(ctx, uuid, action_uuid, LiveMigrate.name, project_id)
        state = journal(action)
        if msgspec.convert(state.data, LiveMigrateData).target is not None or action.outcome == "success":
            return True
        if action.outcome is None:
            return False
        failure = state.failure or Failure(message="Another operation took the server over.")
        raise exception.Invalid((ctx.is_admin and failure.inside) or failure.message)

    def password_changed(self, ctx: RequestContext, uuid: str, action_uuid: str, project_id: str | None = None) -> bool:
        action = self._action(ctx, uuid, action_uuid, ChangePassword.name, project_id)
        if action.outcome in (None, "success"):
            return action.outcome is not None
        failure = journal(action).failure or Failure(message="another operation took the server over")
        if failure.kind == exception.NotImplementedHere.__name__:
            raise exception.NotImplementedHere("Unable to set password on instance")
        if failure.kind == exception.InstancePasswordSetFailed.__name__:
            raise exception.InstancePasswordSetFailed(failure.message)
        raise exception.InstancePasswordSetFailed(instance=uuid, reason=failure.message)

    def _action(self, ctx: RequestContext, uuid: str, action_uuid: str, operation: str,
                project_id: str | None = None) -> Action:
        """Return the action of this operation on a server visible to the caller. Raises InstanceActionNotFound."""
        def read_action(connection: sa.Connection) -> Action | None:
            servers.get(connection, uuid, project_id)
            return actions.get(connection, action_uuid)

        action = self.core.db.read(read_action)
        if action is None or action.instance_uuid != uuid or action.operation != operation:
            raise exception.InstanceActionNotFound(request_id=ctx.request_id, instance_uuid=uuid)
        return action

    def update(self, ctx: RequestContext, uuid: str, changes: dict[str, Any],
               project_id: str | None = None) -> Instance:
        plain = {name: value for name, value in changes.items() if name in _UPDATABLE}

        def write(connection: sa.Connection, instance: Instance) -> None:
            if "system_metadata" in plain:
                plain["system_metadata"] = {**instance.system_metadata, **plain["system_metadata"]}
            if "pinned_availability_zone" in changes:
                plain["pinned_availability_zone"] = _pin(instance, changes["pinned_availability_zone"])
            _change_row(connection, instance, plain)

        return self._change(ctx, uuid, project_id, write)

    def set_metadata(self, ctx: RequestContext, uuid: str, metadata: dict[str, str], replace: bool = False,
                     project_id: str | None = None) -> dict[str, str]:
        def write(connection: sa.Connection, instance: Instance) -> None:
            _check_metadata_change(ctx, instance, "update metadata")
            merged = metadata if replace else {**instance.metadata, **metadata}
            limit = quotas.limits(connection, instance.project_id, None)["metadata_items"]
            if 0 <= limit < len(merged):
                raise exception.QuotaLimit(f"Maximum number of metadata items exceeds {limit}")
            _change_row(connection, instance, {"metadata": merged})

        return self._change(ctx, uuid, project_id, write).metadata

    def delete_metadata(self, ctx: RequestContext, uuid: str, key: str, project_id: str | None = None) -> None:
        def write(connection: sa.Connection, instance: Instance) -> None:
            if key not in instance.metadata:
                raise exception.MetadataNotFound()
            _check_metadata_change(ctx, instance, "delete metadata")
            left = {name: value for name, value in instance.metadata.items() if name != key}
            servers.update(connection, uuid, {"metadata": left})

        self._change(ctx, uuid, project_id, write)

    def set_tags(self, ctx: RequestContext, uuid: str, tags: list[str], mode: str = "replace",
                 project_id: str | None = None) -> list[str]:
        before: list[str] = []

        def write(connection: sa.Connection, instance: Instance) -> None:
            label = {"replace": "update tags", "add": "update tag", "remove": "delete tag", "clear": "delete tags"}
            _check_metadata_state(instance, label[mode])
            before[:] = instance.tags
            if mode == "remove":
                after = [tag for tag in instance.tags if tag not in tags]
            else:
                existing = instance.tags if mode == "add" else []
                after = list(dict.fromkeys([*existing, *tags]))
            if len(after) > _MAX_TAGS:
                raise exception.Invalid(f"The number of tags exceeded the per-server limit {_MAX_TAGS}")
            _change_row(connection, instance, {"tags": sorted(after)})

        self._change(ctx, uuid, project_id, write)
        return before

    # --- lock ------------------------------------------------------------------------------------
    def lock(self, ctx: RequestContext, uuid: str, reason: str | None = None, project_id: str | None = None) -> None:
        def write(connection: sa.Connection, instance: Instance) -> str | None:
            owner = ctx.project_id == instance.project_id
            by = "owner" if owner else "admin"
            if instance.locked and (owner or (instance.locked_by, instance.locked_reason) == (by, reason)):
                return None  # no change: the owner's lock is not replaced by a further lock of the owner
            return self._instant(connection, ctx, instance, "lock", locked_by=by, locked_reason=reason)

        self._change(ctx, uuid, project_id, write)

    def unlock(self, ctx: RequestContext, uuid: str, project_id: str | None = None, override: bool = True) -> None:
        def write(connection: sa.Connection, instance: Instance) -> str | None:
            if not instance.locked:
                return None
            if not override and instance.locked_by != "owner":  # locked after the API checked the policy
                raise exception.InstanceIsLocked(instance_uuid=uuid)
            return self._instant(connection, ctx, instance, "unlock", locked_by=None, locked_reason=None)

        self._change(ctx, uuid, project_id, write)

    def reset_state(self, ctx: RequestContext, uuid: str, state: str) -> None:
        start(self.engine, ctx, uuid, ResetState.name, {"state": state})

    def _instant(self, connection: sa.Connection, ctx: RequestContext, instance: Instance, name: str,
                 **changes: Any) -> str:
        """Write a change and its completed instance action; return the name of the action."""
        actions.insert(connection, [done(ctx, instance.uuid, name)])
        servers.update(connection, instance.uuid, changes)
        return name

    # --- security groups -------------------------------------------------------------------------
    def set_security_group(self, ctx: RequestContext, uuid: str, name: str, add: bool,
                           project_id: str | None = None) -> None:
        if self.core.allocator.external:
            self._set_outside_group(ctx, uuid, name, add, project_id)
            return
        changed: set[str] = set()

        def write(connection: sa.Connection, instance: Instance) -> None:
            group = security_groups.resolve(connection, instance.project_id, [name])[0]
            names = [other for other in instance.security_groups if other != group.name]
            if add == (group.name in instance.security_groups):
                state = "already" if add else "not"
                raise exception.Invalid(f"Security group {group.name} is {state} associated with the instance {uuid}")
            changed.update(security_filters.moved(connection, uuid))
            security_groups.remove_members(connection, uuid)
            names = [*names, group.name] if add else names
            members = security_groups.resolve(connection, instance.project_id, names) if names else []
            security_groups.add_members(connection, [member.id for member in members], [uuid])
            servers.update(connection, uuid, {"security_groups": names})
            changed.update(security_filters.moved(connection, uuid))

        self._change(ctx, uuid, project_id, write)
        self.core.filters.publish_server(uuid)
        self.core.filters.touch(changed)

    def _set_outside_group(self, ctx: RequestContext, uuid: str, name: str, add: bool, project_id: str | None) -> None:
        """Change the existing ports in the network service, then the row, whose groups apply to ports added later."""
        instance = self.core.db.read(lambda connection: servers.get(connection, uuid, project_id))
        same = ConductorControl(self.core, ctx, instance).outside_interfaces.set_group(name, add)

        def write(connection: sa.Connection, before: Instance) -> None:
            others = [other for other in before.security_groups if other not in same]
            servers.update(connection, uuid, {"security_groups": [*others, name] if add else others})

        self._change(ctx, uuid, project_id, write)

    # --- shared ----------------------------------------------------------------------------------
    def _change(self, ctx: RequestContext, uuid: str, project_id: str | None,
                write: Callable[[sa.Connection, Instance], str | None]) -> Instance:
        """Change the locked instance in a transaction and return it. ``write`` may return the event to notify."""
        def transaction(connection: sa.Connection) -> Instance:
            before = servers.lock(connection, uuid, project_id)
            event = write(connection, before)
            after = servers.get(connection, uuid)
            self._notify(connection, ctx, event, before, after)
            return after

        return self.core.db.write(transaction)

    def _notify(self, connection: sa.Connection, ctx: RequestContext, event: str | None, before: Instance,
                after: Instance) -> None:
        outbox, by = self.core.outbox, publisher("nova-api", CONF.host)
        if not outbox.on:
            return
        builder = NotificationBuilder(outbox.settings, ctx)
        messages = builder.server(ServerEvent(event, "", by, after)) if event else []
        if outbox.updates and any(getattr(before, name) != getattr(after, name) for name in NOTIFIED_COLUMNS):
            renamed = before.display_name if before.display_name != after.display_name else None
            messages += builder.updated(after, by, (before.vm_state, before.task_state), outbox.updates, renamed)
        outbox.write(connection, messages)


def _change_row(connection: sa.Connection, instance: Instance, changes: dict[str, Any]) -> None:
    """Write only changed columns, so that repeated identical requests cost no write."""
    new = {name: value for name, value in changes.items() if getattr(instance, name) != value}
    if new:
        servers.update(connection, instance.uuid, new)


def _check_metadata_change(ctx: RequestContext, instance: Instance, method: str) -> None:
    if instance.locked and not ctx.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    _check_metadata_state(instance, method)


def _check_metadata_state(instance: Instance, method: str) -> None:
    if instance.vm_state not in _METADATA_STATES:
        raise exception.InstanceInvalidState(method=method, instance_uuid=instance.uuid, attr="vm_state",
                                             state=instance.vm_state)


def _pin(instance: Instance, zone: str | None) -> str | None:
    """Return the zone, if a PUT (2.104) may pin the server to it. Raises Conflict."""
    if zone is None or zone == instance.pinned_availability_zone:
        return zone
    if instance.pinned_availability_zone is not None:
        raise exception.Conflict(f"Instance {instance.uuid} is pinned to another availability zone; unpin it first.")
    if zone != instance.availability_zone:
        raise exception.Conflict(f"Instance {instance.uuid} is not in availability zone {zone}.")
    return zone


class Actions(Endpoint, servers_api.Actions):
    index = reads(functools.partial(actions.index, columns=actions.LISTED))
    get = reads(actions.by_request)


def done(ctx: RequestContext, instance_uuid: str, name: str, event: str = "", host: str | None = None) -> Action:
    """Return a completed action with an optional completed ``event`` on ``host``."""
    now = clock.now()
    events = [Event(event=event, start_time=now, finish_time=now, result="Success", host=host)] if event else []
    return Action(
        uuid=new_uuid(), instance_uuid=instance_uuid, action=name, outcome="success", request_id=ctx.request_id,
        user_id=ctx.user_id, project_id=ctx.project_id, start_time=now, finish_time=now, updated_at=now, events=events)


class _Interrupt(NamedTuple):
    """A request to abort or force-complete a live migration: the required server states, and the names of the instance
    action, of its event and of the notification."""

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


class Migrations(Endpoint, servers_api.Migrations):
    """Migrations of servers: lists, and requests to abort or force-complete running live migrations."""

    index = reads(server_migrations.index)

    def in_progress(self, ctx: RequestContext, instance_uuid: str, project_id: str | None = None) -> list[Migration]:
        def read(connection: sa.Connection) -> list[Migration]:
            servers.get(connection, instance_uuid, project_id)
            return server_migrations.in_progress(connection, instance_uuid)

        return self.core.db.read(read)

    def get(self, ctx: RequestContext, instance_uuid: str, migration_id: int,
            project_id: str | None = None) -> Migration:
        def read(connection: sa.Connection) -> Migration:
            servers.get(connection, instance_uuid, project_id)
            migration = server_migrations.live(connection, instance_uuid, migration_id)
            if migration.status not in migration_states.IN_PROGRESS:
                raise exception.MigrationNotFoundForInstance(migration_id=migration_id, instance_id=instance_uuid)
            return migration

        return self.core.db.read(read)

    def interrupt(self, ctx: RequestContext, instance_uuid: str, migration_id: int, what: str,
                  statuses: list[str], project_id: str | None = None) -> None:
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
        LOG.info("[instance: %s] Sending a request to the live migration from %s to %s: %s", instance_uuid,
                 migration.source_compute, migration.dest_compute, what)
        send_interrupts(self.core, ctx, [migration])

    def _notify(self, connection: sa.Connection, ctx: RequestContext, wanted: _Interrupt, host: str,
                instance: Instance) -> None:
        outbox = self.core.outbox
        if outbox.on:
            builder, by = NotificationBuilder(outbox.settings, ctx), publisher("nova-compute", host)
            outbox.write(connection, [message for phase in ("start", "end") for message in builder.server(
                ServerEvent(wanted.notification, phase, by, instance))])


class ServerGroups(Endpoint, servers_api.ServerGroups):
    index = reads(server_groups.index)
    get = reads(server_groups.get)
    create = writes(server_groups.create, notify=notifications.group_created)
    delete = writes(server_groups.delete, notify=notifications.group_deleted)


OK, UNKNOWN_SERVER, UNPROCESSABLE = 200, 404, 422


class ExternalEvents(servers_api.ExternalEvents):
    """Events about servers that external services report."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(self, ctx: RequestContext, events: list[ExternalEvent]) -> list[int]:
        named = sorted({event.instance_uuid for event in events})
        hosts = self.engine.core.db.read(lambda connection: servers.placed(connection, named))
        codes: list[int] = []
        reported: dict[str, dict[str, str]] = {}
        for event in events:
            uuid, key = event.instance_uuid, event_key(event.name, event.tag)
            codes.append(OK if hosts.get(uuid) else UNPROCESSABLE if uuid in hosts else UNKNOWN_SERVER)
            # A status "in progress" does not end a wait. Operations cannot wait for an event whose key is too long.
            if hosts.get(uuid) and event.status != IN_PROGRESS and len(key) <= external_events.LONGEST:
                reported.setdefault(uuid, {})[key] = event.status
        for uuid, statuses in reported.items():
            self.engine.recovery.wake(uuid, statuses)
        placed = [event for event in events if hosts.get(event.instance_uuid)]
        if self.engine.core.allocator.external:
            service_events.process_network_events(self.engine, placed)
        if self.engine.core.attachments.external:
            service_events.process_volume_events(self.engine, placed)
        service_events.process_power_events(self.engine.core, placed)
        return codes


# Operations that end console sessions: they replace, move or stop the guest, so its tokens become invalid.
ENDINGS = frozenset(name for name, operation in REGISTRY.items() if operation.ends_consoles)


class Consoles(Endpoint, servers_api.Consoles):
    get = reads(functools.partial(consoles.get, endings=ENDINGS))
    over = reads(functools.partial(consoles.over, endings=ENDINGS))

    def create(self, ctx: RequestContext, digest: str, console: Console) -> Console:
        until = clock.after(CONF.consoleauth.token_ttl)
        return self.core.db.write(
            lambda connection: consoles.create(connection, digest, msgspec.structs.replace(console), until))

