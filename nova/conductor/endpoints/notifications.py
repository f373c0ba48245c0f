"""Notifications of the changes that endpoints write. The functions here are passed as ``notify``
(:mod:`nova.conductor.endpoints.derived`). Each function runs the change. It reads the previous state before the change
if the notification contains it."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db.accounts import flavors, keypairs
from nova.db.hosts import aggregates, services
from nova.db.servers import server_groups
from nova.notifications import legacy, versioned
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.accounts.flavor import Flavor
from nova.objects.accounts.keypair import Keypair
from nova.objects.accounts.notification import Notification
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.hosts.service import Service
from nova.objects.servers.server_group import ServerGroup

Do = Callable[[], Any]
Messages = list[Notification]
Notify = Callable[..., Messages]


def _of_result(make: Callable[[NotificationBuilder, Any], Messages]) -> Notify:
    """Return the notification function for a change whose notifications follow from its result."""
    return lambda builder, _connection, do, *_args, **_named: make(builder, do())


def _aggregate(builder: NotificationBuilder, event: str, phase: str, of: Aggregate) -> Messages:
    old_name = "" if event == "cache_images" else f"aggregate.{event.replace('_', '')}.{phase}"
    return builder.resource(f"aggregate.{event}.{phase}", of.uuid, versioned.aggregate(of), old_name,
                           legacy.aggregate(of))


def aggregate(event: str) -> Notify:
    """Return the notification function for a change of an existing aggregate."""
    def notify(builder: NotificationBuilder, connection: sa.Connection, do: Do, aggregate_id: int, *_args: Any,
              **_named: Any) -> Messages:
        before = aggregates.get(connection, aggregate_id)
        after: Aggregate = do() or before
        return [*_aggregate(builder, event, "start", before), *_aggregate(builder, event, "end", after)]

    return notify


def _flavor(builder: NotificationBuilder, event: str, of: Flavor, projects: list[str]) -> Messages:
    return builder.resource(f"flavor.{event}", of.flavorid, versioned.flavor(of, projects))


def flavor_changed(builder: NotificationBuilder, connection: sa.Connection, do: Do, flavorid: str, *_args: Any,
                   **_named: Any) -> Messages:
    do()
    return _flavor(builder, "update", flavors.get(connection, flavorid), flavors.access(connection, flavorid))


def flavor_deleted(builder: NotificationBuilder, connection: sa.Connection, do: Do, flavorid: str) -> Messages:
    before, projects = flavors.get(connection, flavorid), flavors.access(connection, flavorid)
    do()
    return _flavor(builder, "delete", before, projects)


def _key(builder: NotificationBuilder, event: str, of: Keypair, at_start: dict[str, Any]) -> Messages:
    """Return the start and end notifications. ``at_start``: values of fields that are unset at the start."""
    old = legacy.keypair(of, builder.context.get("project_id"))
    return [message for phase, overrides in (("start", at_start), ("end", {}))
            for message in builder.resource(f"keypair.{event}.{phase}", of.user_id, versioned.keypair(of, overrides),
                                        f"keypair.{event}.{phase}", old)]


def key_deleted(builder: NotificationBuilder, connection: sa.Connection, do: Do, user_id: str, name: str) -> Messages:
    before = keypairs.get(connection, user_id, name)
    do()
    return _key(builder, "delete", before, {})


def _group(builder: NotificationBuilder, event: str, of: ServerGroup) -> Messages:
    return builder.resource(f"server_group.{event}", of.uuid, versioned.server_group(of),
                           f"servergroup.{event}", legacy.server_group(of))


def group_deleted(builder: NotificationBuilder, connection: sa.Connection, do: Do, uuid: str,
                  project_id: str | None = None) -> Messages:
    before = server_groups.get(connection, uuid, project_id)
    do()
    return _group(builder, "delete", before)


def service(builder: NotificationBuilder, event: str, of: Service) -> Messages:
    return builder.resource(f"service.{event}", of.uuid, versioned.service(of), by=publisher(of.binary, of.host))


def service_registered(builder: NotificationBuilder, connection: sa.Connection, do: Do, host: str, binary: str,
                       *_args: Any, **_named: Any) -> Messages:
    """Notify the creation of the service; a restart is not notified."""
    try:
        services.uuid_of(connection, host, binary)
    except exception.HostBinaryNotFound:
        return service(builder, "create", do())
    do()
    return []


aggregate_created = _of_result(lambda builder, created: [
    *_aggregate(builder, "create", "start", versioned.without_id(created)),
    *_aggregate(builder, "create", "end", created)])
flavor_created = _of_result(lambda builder, created: _flavor(builder, "create", created, []))
key_created = _of_result(lambda builder, created: _key(
    builder, "create", created, {"fingerprint": None, "public_key": None}))
key_imported = _of_result(lambda builder, created: _key(builder, "import", created, {"fingerprint": None}))
group_created = _of_result(lambda builder, created: _group(builder, "create", created))
service_changed = _of_result(lambda builder, changed: service(builder, "update", changed[0]))
