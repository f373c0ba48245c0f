"""Acceptance of a create request: checked and written in one transaction, or refused."""

import contextlib
import re
import secrets
import uuid
from collections.abc import Iterator

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import context, exception
from nova.conductor import checks
from nova.conductor.resources import addresses, server_volumes, volume_keys
from nova.conductor.saga.engine import Engine
from nova.conductor.saga.run import Run
from nova.conf import CONF
from nova.db.accounts import quotas
from nova.db.hosts import compute_nodes, services
from nova.db.networks import new_servers, security_groups
from nova.db.servers import actions, server_groups, servers
from nova.db.sql import clock
from nova.db.volumes import volumes
from nova.image import lookup
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid
from nova.objects.hosts.scheduling import GroupSpec
from nova.objects.images.image import Image, check_image_fits, metadata_of
from nova.objects.networks.network import NetworkRequest
from nova.objects.requirements import local_disks
from nova.objects.requirements.requested_resources import request_spec
from nova.objects.servers import states
from nova.objects.servers.instance import OWNER_PROJECT_NAME, OWNER_USER_NAME, Instance, ServerProperties, root_volume
from nova.objects.servers.server_request import ServerCreate, ServerCreated
from nova.objects.volumes.volume import Volume
from nova.operations.build import Build, BuildData


def create(engine: Engine, ctx: context.RequestContext, request: ServerCreate) -> ServerCreated:
    """Store the servers, then place and build them in the background. A request that is delivered twice gets the answer
    of the first delivery, and so does a request with the same name (Idempotency-Key) and body. Raises FlavorNotFound,
    InvalidInput, OverQuota, Network*, SecurityGroupNotFound, Flavor*TooSmall, IdempotencyKeyReused."""
    if request.request_digest:
        answered = engine.core.db.read(lambda connection: _answered(engine, connection, request))
        if answered is not None:
            return answered
    try:
        return _create(engine, ctx, request)
    except (exception.NovaException, db_exception.DBDuplicateEntry):
        answered = engine.core.db.read(lambda connection: _answered(engine, connection, request))
        if answered is None:
            raise
        return answered


def made(engine: Engine, ctx: context.RequestContext, request: ServerCreate) -> ServerCreated | None:
    """Return the result of a request whose caller has disconnected; None if the request has no effect, now or later."""
    def find(connection: sa.Connection) -> ServerCreated | None:
        # A transaction that is about to commit the request holds these locks. A later transaction finds that the
        # deadline of the request has passed.
        quotas.lock(connection, ctx.project_id or "", ("", ctx.user_id or ""))
        return _answered(engine, connection, request)

    return engine.core.db.write(find)


def _answered(engine: Engine, connection: sa.Connection, request: ServerCreate) -> ServerCreated | None:
    """Return the earlier answer to this request if the request is repeated, else None. Raises IdempotencyKeyReused."""
    if not request.first_uuid:
        return None
    try:
        first = servers.get(connection, request.first_uuid, deleted=True)
    except exception.InstanceNotFound:
        return None
    if first.request_digest != request.request_digest:
        raise exception.IdempotencyKeyReused()
    uuids = [_uuid(request, index) for index in range(request.max_count)]
    written = servers.ever(connection, uuids)
    return ServerCreated(uuids=[uuid for uuid in uuids if uuid in written], reservation_id=first.reservation_id,
                         repeated=True,
                         admin_pass=engine.core.cipher.try_decrypt(first.encrypted_pass) or first.admin_pass)


def _uuid(request: ServerCreate, index: int) -> str:
    if not request.first_uuid:
        return new_uuid()
    return request.first_uuid if index == 0 else str(uuid.uuid5(uuid.UUID(request.first_uuid), str(index)))


def _create(engine: Engine, ctx: context.RequestContext, request: ServerCreate) -> ServerCreated:
    tried: list[tuple[list[Run], ServerCreated]] = []
    seen = server_volumes.check_volumes(engine.core, ctx, request.block_devices)
    if not request.shares_volumes and any(volume.multiattach for volume in seen.values()):
        raise exception.MultiattachTooOld()
    _check_boot_files(engine, ctx, request, seen)
    networks = _outside_networks(engine, ctx, request)
    if networks:
        request = msgspec.structs.replace(request, max_count=engine.core.allocator.servers_in_quota(
            ctx, ctx.project_id or "", networks, request.min_count, request.max_count))

    def accept(connection: sa.Connection) -> tuple[list[Run], ServerCreated]:
        tried.append(_accept(engine, connection, ctx, request, seen, networks))
        return tried[-1]

    def accepted(connection: sa.Connection) -> tuple[list[Run], ServerCreated] | None:
        return tried[-1] if actions.get(connection, tried[-1][0][0].action.uuid) else None

    runs, created = engine.core.db.write(accept, accepted)
    engine.start_builds(ctx, runs)
    return created


def _accept(engine: Engine, connection: sa.Connection, ctx: context.RequestContext, request: ServerCreate,
            seen: dict[str, Volume], networks: list[NetworkRequest] | None) -> tuple[list[Run], ServerCreated]:
    """Write the servers. ``seen``, ``networks``: volumes and networks of external services that the caller may use."""
    project_id, user_id = ctx.project_id or "", ctx.user_id or ""
    with _as_bad_input(exception.FlavorNotFound):
        account, flavor = quotas.account(connection, project_id, user_id, request.flavor_id)
    volume_backed = root_volume(request.block_devices) is not None
    check_image_fits(flavor, request.image, volume_backed)
    _check_disks(flavor, request, volume_backed)
    checks.check_amounts(connection, project_id, request.metadata, request.personality)
    key = checks.key_of(connection, user_id, request.key_name) if request.key_name else None
    zone = request.availability_zone or CONF.default_schedule_zone
    if zone is not None and not request.forced_host:
        services.check_zone(connection, zone)
    _check_hosts(connection, request)
    group = _group(connection, request, project_id)
    requested_networks = networks
    if requested_networks is None:
        with _as_bad_input(exception.NetworkNotFound):
            requested_networks = addresses.choose(connection, project_id, request.networks)
    group_names = request.security_groups or [security_groups.DEFAULT]
    in_default = networks is None and group_names == [security_groups.DEFAULT]  # insert() adds this group unread
    groups = [] if networks is not None or in_default else security_groups.resolve(connection, project_id, group_names)
    room = quotas.room(connection, account, flavor.vcpus, flavor.memory_mb, request.min_count, request.max_count,
                       len(requested_networks) if networks is None else 0)
    count = room.count
    _check_members(connection, group, project_id, count)

    reservation_id = "r-" + secrets.token_hex(4)
    template = Instance(
        **{name: getattr(request, name) for name in ServerProperties.__struct_fields__},
        uuid="", project_id=project_id, user_id=user_id, display_name=request.name, hostname="",
        display_description=request.description, task_state=states.SCHEDULING, flavor=flavor, key=key,
        image_ref=request.image.id if request.image and not volume_backed else "",
        system_metadata=_system_metadata(ctx, request.image),
        security_groups=[group.name for group in groups] or group_names, requested_networks=requested_networks,
        config_drive=_wants_drive(request), disk_config=request.disk_config,
        reservation_id=reservation_id, pinned_availability_zone=zone, availability_zone=zone,
        server_group=group.uuid if group else None, encrypted_pass=engine.core.cipher.encrypt(request.admin_pass),
        created_at=clock.now(), updated_at=clock.now())
    runs = []
    for index in range(count):
        instance = _named(template, request, index, count)
        host = _give_volumes(engine, connection, ctx, request, instance, seen) if request.block_devices else None
        spec = request_spec(instance, instance.flavor, group, CONF.pci.alias, force_host=request.forced_host,
                            force_node=request.forced_node, requested_host=request.requested_host or host,
                            requested_node=request.requested_node, alternates=CONF.conductor.max_attempts - 1)
        instance.encrypted_tpm_secret = volume_keys.tpm_secret(engine.core.cipher, instance, instance.flavor)
        outside = server_volumes.are_outside(engine.core, instance)
        data = msgspec.to_builtins(BuildData(
            spec=spec, outside_volumes=outside, outside_interfaces=bool(networks),
            max_tries=1 if request.forced_node or request.forced_host else CONF.conductor.max_attempts))
        action = engine.new_action(ctx, Build, instance, data)
        instance.action_uuid = action.uuid
        runs.append(Run(action, instance))
    uuids = [run.instance.uuid for run in runs]
    new_servers.insert(connection, [run.instance for run in runs], [run.action for run in runs],
                       project_id if in_default else None)
    security_groups.add_members(connection, [group.id for group in groups], uuids)
    _notify(engine, connection, ctx, [run.instance for run in runs], group)
    quotas.take(connection, room)  # last, because all requests of a project wait for this row
    return runs, ServerCreated(uuids=uuids, reservation_id=reservation_id)


def _notify(engine: Engine, connection: sa.Connection, ctx: context.RequestContext, made: list[Instance],
          group: GroupSpec | None) -> None:
    outbox = engine.core.outbox
    if group is not None:
        outbox.notify(connection, ctx, lambda builder: builder.members_added(
            server_groups.get(connection, group.uuid), [instance.uuid for instance in made]))
    if outbox.updates:
        builder, by = NotificationBuilder(outbox.settings, ctx), publisher("nova-api", CONF.host)
        outbox.write(connection, [
            notification for instance in made
            for notification in builder.updated(instance, by, (None, None), outbox.updates)])


def _check_boot_files(engine: Engine, ctx: context.RequestContext, request: ServerCreate,
                        seen: dict[str, Volume]) -> None:
    """Set the kernel and ramdisk of the request to those of its bootable volume. Raises the errors of
    :func:`nova.image.lookup.boot_files`, for example if the caller may not see these images."""
    root = root_volume(request.block_devices)
    if root is None or not root.volume_id:
        return
    uuid, project_id = root.volume_id, ctx.project_id or ""
    volume = seen.get(uuid)
    if volume is None:
        with contextlib.suppress(exception.VolumeNotFound):  # reserving the volume reports that it is missing
            volume = engine.core.db.read(lambda connection: volumes.get(connection, uuid, project_id))
    request.kernel_id, request.ramdisk_id = lookup.boot_files(ctx, volume.image if volume else None)


def _give_volumes(engine: Engine, connection: sa.Connection, ctx: context.RequestContext, request: ServerCreate,
                  instance: Instance, seen: dict[str, Volume]) -> str | None:
    """Give the server its first volumes, which may determine its image; return the host to which they bind it. Raises
    the errors of :func:`nova.conductor.resources.server_volumes.give`, and FlavorMemoryTooSmall."""
    images = {**({request.image.id: request.image} if request.image else {}), **request.device_images}
    server_volumes.give(engine.core, connection, instance, images, seen)
    if instance.image is not request.image:
        check_image_fits(instance.flavor, instance.image, volume_backed=True)
        instance.system_metadata = _system_metadata(ctx, instance.image)
    host = server_volumes.host_of(engine.core, connection, instance)
    for wanted in (request.forced_host, request.requested_host):
        if wanted and host and wanted != host:
            raise exception.InvalidVolume(reason=f"the volumes of the server cannot be reached from host {wanted}")
    return host


# --- checks --------------------------------------------------------------------------------------------
def _check_disks(flavor: Flavor, request: ServerCreate, volume_backed: bool) -> None:
    if flavor.root_gb == 0 and not volume_backed and not request.zero_disk_allowed:
        raise exception.Forbidden("Only volume-backed servers are allowed for flavors with zero disk.")
    local_disks.check(request.block_devices, flavor, CONF.max_local_block_devices)


@contextlib.contextmanager
def _as_bad_input(missing: type[exception.NotFound]) -> Iterator[None]:
    """Report an unknown resource, in a create request, as bad input (400) instead of a missing resource (404)."""
    try:
        yield
    except missing as error:
        raise exception.InvalidInput(str(error)) from error


def _outside_networks(engine: Engine, ctx: context.RequestContext,
                      request: ServerCreate) -> list[NetworkRequest] | None:
    """Return the networks of the server in the external network service, checked with the caller's token. Returns None
    if the networks are embedded."""
    allocator, project_id = engine.core.allocator, ctx.project_id or ""
    if not allocator.external:
        return None
    with _as_bad_input(exception.NotFound):
        allocator.check_groups(ctx, project_id, request.security_groups or [])
        return allocator.validate(ctx, project_id, request.networks, request.auto_networks)


def _check_hosts(connection: sa.Connection, request: ServerCreate) -> None:
    for host in (request.forced_host, request.requested_host):
        if host and not services.compute_exists(connection, host):
            raise exception.InvalidInput(f"Compute host {host} could not be found.")
    for host, node in ((request.forced_host, request.forced_node), (request.requested_host, request.requested_node)):
        if node and not compute_nodes.exists(connection, node, host):
            raise exception.InvalidInput(f"Compute host {node} could not be found.")


def _group(connection: sa.Connection, request: ServerCreate, project_id: str) -> GroupSpec | None:
    wanted = request.scheduler_hints.get("group")
    wanted = wanted[0] if isinstance(wanted, list) and wanted else wanted
    if not wanted:
        return None
    with _as_bad_input(exception.ServerGroupNotFound):
        group = server_groups.get(connection, str(wanted), project_id)
    server_groups.hold(connection, group.uuid)  # the group is locked before the quota, as in claims
    return GroupSpec(uuid=group.uuid, policy=group.policy,
                     max_server_per_host=int(group.rules.get("max_server_per_host", 1)))


def _check_members(connection: sa.Connection, group: GroupSpec | None, project_id: str, count: int) -> None:
    """Check that ``count`` servers may join the group, which is locked. Raises QuotaLimit."""
    if group is None:
        return
    limit = quotas.limits(connection, project_id, None)["server_group_members"]
    if limit >= 0 and server_groups.count_members(connection, group.uuid) + count > limit:
        raise exception.QuotaLimit("Quota exceeded, too many servers in group")


def _system_metadata(ctx: context.RequestContext, image: Image | None) -> dict[str, str]:
    """Return the stored metadata of the image, and the names of user and project, which hypervisors show to monitoring.
    """
    names = {OWNER_USER_NAME: ctx.user_name, OWNER_PROJECT_NAME: ctx.project_name}
    return metadata_of(image) | {item: str(name) for item, name in names.items() if name}


# --- rows ----------------------------------------------------------------------------------------------
def _named(template: Instance, request: ServerCreate, index: int, count: int) -> Instance:
    """Return the server number ``index`` of ``count`` servers of a request."""
    this = _uuid(request, index)
    name = request.name if request.max_count == 1 else f"{request.name}-{index + 1}"
    hostname = request.hostname or _hostname(name) or f"Server-{this}"
    return msgspec.structs.replace(template, uuid=this, display_name=name, hostname=hostname, launch_index=index,
                                   tags=list(template.tags), metadata=dict(template.metadata))


def _hostname(display_name: str) -> str:
    """Return at most 63 characters of the name, of a-z 0-9 and ``-``; "" if no usable character is left."""
    latin = display_name.encode("latin-1", "ignore").decode("latin-1")
    dashed = re.sub(r"[ _.]", "-", latin)
    return re.sub(r"[^\w-]", "", dashed, flags=re.ASCII).lower()[:63].strip(".-")


def _wants_drive(request: ServerCreate) -> bool:
    properties = request.image.properties if request.image else {}
    return request.config_drive or CONF.force_config_drive or properties.get("img_config_drive") == "mandatory"
