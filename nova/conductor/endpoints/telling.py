"""What is told on the bus of what endpoints write: functions for ``tells`` (:mod:`nova.conductor.endpoints.derived`).

Each has the change done, and says how things were before it where that is told, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from nova import exception
from nova.db import aggregates, flavors, keypairs, server_groups, services
from nova.notifications import legacy, resources
from nova.notifications.messages import NotificationBuilder, publisher
from nova.objects.aggregate import Aggregate
from nova.objects.flavor import Flavor
from nova.objects.keypair import Keypair
from nova.objects.notification import Notification
from nova.objects.server_group import ServerGroup
from nova.objects.service import Service

Do = Callable[[], Any]
Messages = list[Notification]


# --- aggregates ----------------------------------------------------------------------------------------
def _aggregate(teller: NotificationBuilder, event: str, phase: str, of: Aggregate) -> Messages:
    old_name = "" if event == "cache_images" else f"aggregate.{event.replace('_', '')}.{phase}"
    return teller.resource(f"aggregate.{event}.{phase}", of.uuid, resources.aggregate(of), old_name,
                           legacy.aggregate(of))


def aggregate_created(teller: NotificationBuilder, _connection: sa.Connection, do: Do, *_args: Any,
                      **_named: Any) -> Messages:
    made: Aggregate = do()
    return [*_aggregate(teller, "create", "start", resources.without_id(made)),
            *_aggregate(teller, "create", "end", made)]


def aggregate(event: str) -> Callable[..., Messages]:
    """A change of one that there is."""
    def tells(teller: NotificationBuilder, connection: sa.Connection, do: Do, aggregate_id: int, *_args: Any,
              **_named: Any) -> Messages:
        before = aggregates.get(connection, aggregate_id)
        after: Aggregate = do() or before
        return [*_aggregate(teller, event, "start", before), *_aggregate(teller, event, "end", after)]

    return tells


# --- flavors -------------------------------------------------------------------------------------------
def _flavor(teller: NotificationBuilder, event: str, of: Flavor, projects: list[str]) -> Messages:
    return teller.resource(f"flavor.{event}", of.flavorid, resources.flavor(of, projects))


def flavor_created(teller: NotificationBuilder, _connection: sa.Connection, do: Do, **_named: Any) -> Messages:
    return _flavor(teller, "create", do(), [])


def flavor_changed(teller: NotificationBuilder, connection: sa.Connection, do: Do, flavorid: str, *_args: Any,
                   **_named: Any) -> Messages:
    do()
    return _flavor(teller, "update", flavors.get(connection, flavorid), flavors.access(connection, flavorid))


def flavor_deleted(teller: NotificationBuilder, connection: sa.Connection, do: Do, flavorid: str) -> Messages:
    before, projects = flavors.get(connection, flavorid), flavors.access(connection, flavorid)
    do()
    return _flavor(teller, "delete", before, projects)


# --- key pairs -----------------------------------------------------------------------------------------
def _key(teller: NotificationBuilder, event: str, of: Keypair, begun: dict[str, Any]) -> Messages:
    """``begun``: what is not known when it begins."""
    old = legacy.keypair(of, teller.context.get("project_id"))
    return [told for phase, unknown in (("start", begun), ("end", {}))
            for told in teller.resource(f"keypair.{event}.{phase}", of.user_id, resources.keypair(of, unknown),
                                        f"keypair.{event}.{phase}", old)]


def key_created(teller: NotificationBuilder, _connection: sa.Connection, do: Do, *_args: Any,
                **_named: Any) -> Messages:
    return _key(teller, "create", do(), {"fingerprint": None, "public_key": None})


def key_imported(teller: NotificationBuilder, _connection: sa.Connection, do: Do, *_args: Any,
                 **_named: Any) -> Messages:
    return _key(teller, "import", do(), {"fingerprint": None})


def key_deleted(teller: NotificationBuilder, connection: sa.Connection, do: Do, user_id: str, name: str) -> Messages:
    before = keypairs.get(connection, user_id, name)
    do()
    return _key(teller, "delete", before, {})


# --- server groups -------------------------------------------------------------------------------------
def _group(teller: NotificationBuilder, event: str, of: ServerGroup) -> Messages:
    return teller.resource(f"server_group.{event}", of.uuid, resources.server_group(of),
                           f"servergroup.{event}", legacy.server_group(of))


def group_created(teller: NotificationBuilder, _connection: sa.Connection, do: Do, **_named: Any) -> Messages:
    return _group(teller, "create", do())


def group_deleted(teller: NotificationBuilder, connection: sa.Connection, do: Do, uuid: str,
                  project_id: str | None = None) -> Messages:
    before = server_groups.get(connection, uuid, project_id)
    do()
    return _group(teller, "delete", before)


# --- services ------------------------------------------------------------------------------------------
def service(teller: NotificationBuilder, event: str, of: Service) -> Messages:
    return teller.resource(f"service.{event}", of.uuid, resources.service(of), by=publisher(of.binary, of.host))


def service_changed(teller: NotificationBuilder, _connection: sa.Connection, do: Do, *_args: Any,
                    **_named: Any) -> Messages:
    changed, _up = do()
    return service(teller, "update", changed)


def service_registered(teller: NotificationBuilder, connection: sa.Connection, do: Do, host: str, binary: str,
                       *_args: Any, **_named: Any) -> Messages:
    """The first time; that it started again changes nothing that is told."""
    try:
        services.uuid_of(connection, host, binary)
    except exception.HostBinaryNotFound:
        return service(teller, "create", do())
    do()
    return []
