"""Acceptance of an operation on an existing server: checked and written in one transaction, or refused."""

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from nova import context, exception
from nova.conductor import checks, secret_cipher
from nova.conductor.core import Core
from nova.conductor.resources import volume_keys
from nova.conductor.saga import transition_notifications
from nova.conductor.saga.control import ConductorControl
from nova.conductor.saga.engine import Engine
from nova.conductor.saga.run import Run, ended, inherited
from nova.conductor.saga.step_executor import lease
from nova.conf import CONF
from nova.db.accounts import flavors, quotas
from nova.db.hosts import compute_nodes, services
from nova.db.servers import actions, server_groups, server_migrations, servers
from nova.notifications.messages import publisher
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.scheduling import GroupSpec, RequestSpec
from nova.objects.networks.network import NetworkRequest
from nova.objects.requirements.requested_resources import request_spec
from nova.objects.servers import states
from nova.objects.servers.action import Accepted, Action, Failure
from nova.objects.servers.instance import BlockDevice, Instance, Key, Personality
from nova.objects.servers.migration import Migration
from nova.objects.volumes.share import Share
from nova.objects.volumes.volume import IN_USE, Volume, VolumeEncryption
from nova.operations import REGISTRY
from nova.operations.framework.base import Inherited, Journal, Operation, context_of, journal
from nova.operations.framework.rules import check

LOG = logging.getLogger(__name__)

_TAKEN_OVER = Failure(message="Another operation took the server over.")


@dataclasses.dataclass
class ConductorPrecheckContext:
    """A :class:`nova.operations.framework.contexts.PrecheckContext` of this conductor."""

    ctx: context.RequestContext
    instance: Instance
    core: Core

    def check_volume(self, volume_id: str, status: str) -> Volume | None:
        if not self.core.attachments.external:
            return None
        return self.core.attachments.validate(self.ctx, self.instance.project_id, volume_id, status)

    def key_of(self, volume: Volume) -> VolumeEncryption | None:
        return volume_keys.fetched(self.core, self.ctx, volume)

    def check_detachable(self, volume_id: str) -> bool:
        try:
            self.check_volume(volume_id, IN_USE)
            return True
        except (exception.VolumeNotFound, exception.InvalidVolume):
            if not self.core.attachments.is_lost(self.ctx, volume_id):
                raise
            return False

    def check_not_shared(self, device: BlockDevice) -> None:
        volume = device.volume_id or ""
        others = self.core.attachments.servers(self.ctx, volume) - {self.instance.uuid} if device.multiattach else ()
        if others:
            raise exception.VolumeShared(volume_id=volume, servers=", ".join(sorted(others)))

    def check_snapshots(self) -> None:
        volumes = self.instance.volumes
        self.core.attachments.snapshots.check_room(self.ctx, len(volumes))
        for device in volumes:
            self.check_volume(device.volume_id or "", IN_USE)

    def check_share(self, share_id: str) -> Share:
        return self.core.shares.get(self.ctx, self.instance.project_id, share_id, self.instance.host or "")

    def check_swap(self, old: str, new: str) -> bool:
        return self.core.attachments.check_swap(self.ctx, self.instance.project_id, old, new)

    def key_of_successor(self, old: BlockDevice, new: str) -> VolumeEncryption | None:
        return volume_keys.of_successor(self.core, self.ctx, old, new)

    def choose_network(self, wanted: NetworkRequest) -> NetworkRequest:
        named = bool(wanted.network_id or wanted.port_id)
        networks = self.core.allocator.validate(self.ctx, self.instance.project_id, [wanted] if named else None)
        if not networks:
            raise exception.NetworkNotFound("No network is available.")
        if self.core.allocator.external:
            self.core.allocator.servers_in_quota(self.ctx, self.instance.project_id, networks[:1], 1, 1)
        return networks[0] if named else msgspec.structs.replace(networks[0], tag=wanted.tag)


class ConductorAcceptance(ConductorControl):
    """A :class:`nova.operations.framework.contexts.Acceptance`: a control inside the transaction that accepts or
    refuses the operation."""

    connection: sa.Connection

    def __init__(self, engine: Engine, ctx: context.RequestContext, instance: Instance, connection: sa.Connection,
                 action_uuid: str) -> None:
        super().__init__(engine.core, ctx, instance, saved_by=publisher("nova-api", CONF.host))
        self.connection, self.action_uuid = connection, action_uuid
        self.same_host_allowed: bool = CONF.allow_resize_to_same_host
        self.offloads_at_once: bool = CONF.shelved_offload_time == 0

    def request_spec(self, flavor: Flavor, host: str | None = None, forced: bool = False) -> RequestSpec:
        group = None
        if self.instance.server_group:
            with contextlib.suppress(exception.ServerGroupNotFound):
                stored = server_groups.get(self.connection, self.instance.server_group)
                group = GroupSpec(uuid=stored.uuid, policy=stored.policy,
                                  max_server_per_host=int(stored.rules.get("max_server_per_host", 1)))
        secret = volume_keys.tpm_secret(self.core.cipher, self.instance, flavor)
        if secret != self.instance.encrypted_tpm_secret:
            self.set(encrypted_tpm_secret=secret)
        bound = self.volumes.bound_host()
        if bound and host not in (None, bound):
            raise exception.InvalidVolume(reason=f"the volumes of the server cannot be reached from host {host}")
        return request_spec(self.instance, flavor, group, CONF.pci.alias,
                            force_host=host if forced else None, requested_host=None if forced else host or bound,
                            alternates=CONF.conductor.max_attempts - 1)

    def flavor(self, flavor_id: str) -> Flavor:
        return flavors.get(self.connection, flavor_id, self.instance.project_id)

    def encrypted_for_user(self, password: str) -> str:
        return secret_cipher.encrypt_for_key_owner(self.instance.key, password)

    def key(self, name: str) -> Key:
        return checks.key_of(self.connection, self.ctx.user_id or "", name)

    def check_amounts(self, metadata: dict[str, str], personality: Sequence[Personality]) -> None:
        checks.check_amounts(self.connection, self.instance.project_id, metadata, personality)

    def reserve(self, cores: int = 0, ram: int = 0) -> None:
        quotas.grow(self.connection, self.instance.project_id, self.instance.user_id, cores, ram)

    def reserve_again(self) -> None:
        flavor = self.instance.flavor
        quotas.grow(self.connection, self.instance.project_id, self.instance.user_id, flavor.vcpus, flavor.memory_mb,
                    instances=1)
        self.set(soft_deleted_at=None)

    def check_room_to_wait(self) -> None:
        quotas.check_waiting(self.connection, self.instance)

    def open_migrations(self) -> list[Migration]:
        return server_migrations.open_of(self.connection, [self.instance.uuid])

    def open_migration(self, migration: Migration) -> None:
        server_migrations.insert(self.connection, migration)

    def the_migration(self, *statuses: str) -> Migration:
        migration = server_migrations.newest(self.connection, self.instance.uuid, statuses)
        if migration is None:
            raise exception.MigrationNotFoundByStatus(instance_id=self.instance.uuid, status=" or ".join(statuses))
        return migration

    def host_has_trait(self, trait: str) -> bool:
        return compute_nodes.has_trait(self.connection, self.instance.host or "", self.instance.node or "", trait)

    def compute_exists(self, host: str) -> bool:
        return services.compute_exists(self.connection, host)

    def check_zone(self, zone: str) -> None:
        services.check_zone(self.connection, zone)

    def host_up(self, host: str) -> bool:
        return services.host_up(self.connection, host)


def start(engine: Engine, ctx: context.RequestContext, uuid: str, name: str, request: dict[str, Any],
          project_id: str | None = None) -> Accepted:
    """Store an action for the operation ``name``, then run its steps in the background. Raises UnknownOperation,
    InvalidInput (a request that does not belong to the operation), InstanceNotFound, and the errors of
    :func:`nova.operations.framework.rules.check` and of the operation's acceptance."""
    operation = REGISTRY.get(name)
    if operation is None:
        raise exception.UnknownOperation(name=name)
    try:
        typed_request = msgspec.convert(request, operation.request_type)
    except msgspec.ValidationError as error:
        raise exception.InvalidInput(reason=f"{name}: {error}") from error
    return _Request(engine, ctx, uuid, operation, typed_request, project_id).accept()


class _Request:
    def __init__(self, engine: Engine, ctx: context.RequestContext, uuid: str, operation: type[Operation],
                 typed_request: Any, project_id: str | None) -> None:
        self.engine, self.ctx, self.uuid, self.operation = engine, ctx, uuid, operation
        self.typed_request, self.project_id = typed_request, project_id
        self.preemption = actions.Preemption()
        self.prepared: dict[str, Any] | None = None  # result of prepare(), reused by every attempt of the transaction
        self.tried: list[tuple[Run | None, Accepted, ConductorAcceptance]] = []

    def accept(self) -> Accepted:
        if self.operation.prepare is not Operation.prepare:
            self._prepare()
        run, accepted, ctl = self.engine.core.db.write(self._transaction, self._made)
        LOG.info("[instance: %s] Operation %s accepted%s", self.uuid, accepted.action.action,
                 "" if run else ": it starts when the current operation of the server ends")
        ctl.after_commit()
        if run is not None:
            self.engine.submit(self.ctx, run)
        return accepted

    def _prepare(self) -> None:
        instance = self.engine.core.db.read(lambda connection: servers.get(connection, self.uuid, self.project_id))
        run = self.operation(instance, self.operation.begin(instance, self.typed_request))
        run.prepare(ConductorPrecheckContext(self.ctx, instance, self.engine.core), self.typed_request)
        self.prepared = msgspec.to_builtins(run.data)

    def _transaction(self, connection: sa.Connection) -> tuple[Run | None, Accepted, ConductorAcceptance]:
        self.preemption.begin(connection)
        instance = servers.lock(connection, self.uuid, self.project_id)
        rules = self.operation.rules
        check(rules, instance, bool(self.ctx.is_admin), lambda: services.host_up(connection, instance.host or ""))
        self._check_release(connection, instance)
        data = {**self.operation.begin(instance, self.typed_request), **(self.prepared or {})}
        action = self.engine.new_action(self.ctx, self.operation, instance, data)
        ctl = ConductorAcceptance(self.engine, self.ctx, instance, connection, action.uuid)
        operation = self.operation(instance, data)
        if rules.preempts:
            ctl.forget_secrets()
        answer = operation.accept(ctl, self.typed_request)
        waits, repeated = self._take_the_instance(connection, instance, action, operation)
        if not rules.beside:
            ctl.set(task_state=self.operation.task_state)
        for accepted in (action, *repeated):
            actions.follow(connection, accepted)
        ctl.apply(connection, **({} if waits else {"action_uuid": action.uuid}))
        outbox = self.engine.core.outbox
        transition_notifications.of_acceptance(outbox, operation, instance).write(outbox, connection, self.ctx)
        if not waits:
            instance.action_uuid = action.uuid
        promise = Accepted(action=action, answer=msgspec.to_builtins(answer) if answer is not None else {})
        self.tried.append((None if waits else Run(action, instance), promise, ctl))
        return self.tried[-1]

    def _check_release(self, connection: sa.Connection, instance: Instance) -> None:
        """Raise ComputeServiceTooOld if the host runs a release that does not support the operation."""
        needed = self.operation.rules.release
        version = services.compute_version(connection, instance.host) if needed and instance.host else None
        if version is not None and version < needed:
            raise exception.ComputeServiceTooOld(
                method=self.operation.rules.label, host=instance.host, version=version, needed=needed)

    def _take_the_instance(self, connection: sa.Connection, instance: Instance, action: Action,
                           operation: Operation) -> tuple[bool, list[Action]]:
        """Supersede the action that holds the instance, or queue behind it. Return True if the action waits, and the
        actions to queue behind it. Also sets the action's first step and data, which are known only now."""
        own = journal(action)
        own.data = msgspec.to_builtins(operation.data)
        first = operation.first()
        action.step = first.name if first else None
        waits, repeated = False, list[Action]()
        if instance.action_uuid and operation.rules.preempts:
            own.inherited, repeated = self._supersede(connection, instance)
            if own.inherited:
                action.undoing, action.step = True, own.inherited[-1].step or None
        elif instance.action_uuid:
            waits = True
            # A build saves time: it starts no queued action when it ends. Recovery starts queued actions when their
            # leases end.
            building = instance.vm_state == states.BUILDING
            action.queued, action.owner, action.lease_until = True, None, lease() if building else None
        action.payload = msgspec.to_builtins(own)
        return waits, repeated

    def _supersede(self, connection: sa.Connection, instance: Instance) -> tuple[list[Inherited], list[Action]]:
        """End the action that holds the instance and the actions queued behind it. Return the operations to compensate,
        and new actions for the operations that must run again."""
        holder = self.preemption.lock(connection, instance.action_uuid or "")
        cleanups, repeated = list[Inherited](), list[Action]()
        for action in [*([holder] if holder else []), *actions.queued(connection, instance.uuid)]:
            deferred: dict[str, Any] | None = None
            try:
                run = Run(action, instance)
                if self.operation.rules.keeps_guest and run.own.rules.repeated and not run.action.undoing:
                    repeated.append(self._repeat(run))
                else:
                    cleanups = [*inherited(run), *cleanups]
                    cleanup = run.current_cleanup
                    if cleanup is not None or run.journal.cleanups:  # The external call may still be running.
                        deferred = msgspec.to_builtins(Journal(interrupted=cleanup, cleanups=run.journal.cleanups,
                                                               trace=run.journal.trace))
                outbox = self.engine.core.outbox
                notifications = transition_notifications.of_superseded(outbox, run, _TAKEN_OVER)
                notifications.write(outbox, connection, context_of(action))
            except (exception.Invalid, msgspec.ValidationError) as error:
                LOG.error("[instance: %s] Cannot compensate the superseded operation %s; check the server for "
                          "leftovers: %s", instance.uuid, action.operation, error)
            actions.supersede(connection, action, ended(action.events, _TAKEN_OVER), deferred, lease())
        return cleanups, repeated

    def _repeat(self, run: Run) -> Action:
        """Return a queued action that repeats a superseded operation: a new action, because hosts refuse steps of
        actions that are older than the superseding action."""
        again = self.engine.new_action(context_of(run.action), type(run.own), run.instance,
                                       msgspec.to_builtins(run.own.data))
        again.queued, again.owner, again.lease_until = True, None, None
        return again

    def _made(self, connection: sa.Connection) -> tuple[Run | None, Accepted, ConductorAcceptance] | None:
        """Return the result of the transaction if it was committed but the reply to the commit got lost."""
        run, accepted, ctl = self.tried[-1]
        existing = actions.get(connection, accepted.action.uuid)
        if existing is None:
            return None
        accepted.action = existing
        return (Run(existing, servers.get(connection, self.uuid, deleted=True)) if run else None), accepted, ctl
