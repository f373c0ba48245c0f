"""RPC interfaces for servers, their actions and migrations, server groups, external events and consoles."""

import datetime
from typing import Any

from nova.bus import by_hosts, slow_call, with_token
from nova.context import RequestContext
from nova.objects.networks.network import VIF
from nova.objects.servers.action import Accepted, Action
from nova.objects.servers.console import Console, ConsoleSession
from nova.objects.servers.external_event import ExternalEvent
from nova.objects.servers.instance import Instance
from nova.objects.servers.migration import Migration, MigrationQuery
from nova.objects.servers.server_group import ServerGroup
from nova.objects.servers.server_request import ServerCreate, ServerCreated, ServerPage, ServerQuery
from nova.rpcapi import CONDUCTOR, Interface


class Servers(Interface, topic=CONDUCTOR, namespace="servers"):
    """Servers and the start of operations. Methods with a server's uuid raise InstanceNotFound. ``project_id`` None
    means all projects; otherwise servers of other projects are not found."""

    @with_token
    def create(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated:
        """Accept ``min_count`` to ``max_count`` servers, as the quota allows, and start to build them. Raises
        FlavorNotFound, InvalidInput (key, group, zone, network), OverQuota, Network*, IdempotencyKeyReused."""

    @slow_call(3)
    def made(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated | None:
        """Return the result of an earlier create request whose answer was lost, or None if it created nothing. Only the
        names and counts of the request are used. Raises IdempotencyKeyReused."""

    @by_hosts
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None, deleted: bool = False) -> Instance:
        """Return a server. A host gets only servers that exist on it or are moving to it."""

    def index(self, ctx: RequestContext, query: ServerQuery) -> list[Instance]:
        """Return a full page in the requested order, without a time limit. Used by nova-api of the previous release.
        Raises MarkerNotFound, InvalidInput."""

    def page(self, ctx: RequestContext, query: ServerQuery) -> ServerPage:
        """Return a page, shortened if the search would take long. Raises MarkerNotFound, InvalidInput."""

    @with_token
    def operate(self, ctx: RequestContext, uuid: str, operation: str, payload: dict[str, Any] | None = None,
                project_id: str | None = None) -> Accepted:
        """Start ``operation`` (a name of nova.operations) on a server; ``payload`` is its request. Checks lock, host
        and states as the operation declares them; raises UnknownOperation, InstanceIsLocked, InstanceNotReady,
        InstanceInvalidState, InstanceStateUnknown, ComputeServiceUnavailable (its host is down), and the errors of the
        acceptance of the operation."""

    def attached_interface(self, ctx: RequestContext, uuid: str, action_uuid: str,
                           project_id: str | None = None) -> VIF | None:
        """Return the interface that an operation attach_interface created, or None while it runs. Raises the error of
        the operation, and InstanceActionNotFound."""

    def live_migration_checked(self, ctx: RequestContext, uuid: str, action_uuid: str,
                               project_id: str | None = None) -> bool:
        """Return True if both hosts have passed the checks of a live migration, False while the checks run. Raises
        Invalid (with the reason why no host accepts the server), InstanceActionNotFound."""

    def password_changed(self, ctx: RequestContext, uuid: str, action_uuid: str, project_id: str | None = None) -> bool:
        """Return True if an operation change_password has completed, False while it runs. Raises NotImplementedHere
        (the driver cannot set passwords), InstancePasswordSetFailed, InstanceActionNotFound."""

    def update(self, ctx: RequestContext, uuid: str, changes: dict[str, Any],
               project_id: str | None = None) -> Instance:
        """Change display_name, display_description, hostname, access_ip_v4/v6, disk_config,
        pinned_availability_zone (2.104 rules: raises Conflict), locked_by, locked_reason."""

    def set_metadata(self, ctx: RequestContext, uuid: str, metadata: dict[str, str], replace: bool = False,
                     project_id: str | None = None) -> dict[str, str]:
        """Merge (or replace) the metadata; raises QuotaLimit, InstanceInvalidState."""

    def delete_metadata(self, ctx: RequestContext, uuid: str, key: str, project_id: str | None = None) -> None:
        """Delete a metadata item of a server. Raises MetadataNotFound, InstanceInvalidState."""

    def set_tags(self, ctx: RequestContext, uuid: str, tags: list[str], mode: str = "replace",
                 project_id: str | None = None) -> list[str]:
        """Change the tags by ``mode`` (replace, add, remove, clear) and return the previous tags."""

    def lock(self, ctx: RequestContext, uuid: str, reason: str | None = None,
             project_id: str | None = None) -> None: ...

    def unlock(self, ctx: RequestContext, uuid: str, project_id: str | None = None, override: bool = True) -> None:
        """Unlock a server. Raises InstanceIsLocked if it is locked by an administrator, without ``override``."""

    def reset_state(self, ctx: RequestContext, uuid: str, state: str) -> None:
        """Set vm_state to ``active`` or ``error`` and release any task."""

    @with_token
    def set_security_group(self, ctx: RequestContext, uuid: str, name: str, add: bool,
                           project_id: str | None = None) -> None:
        """Add the server to a security group of its project, or remove it. Raises SecurityGroupNotFound, and with an
        external network service SecurityGroupNotOfServer, SecurityGroupCannotBeApplied, NoUniqueMatch, Forbidden."""


class Actions(Interface, topic=CONDUCTOR, namespace="actions"):
    """The actions of os-instance-actions."""

    def index(self, ctx: RequestContext, instance_uuid: str, limit: int | None = None, marker: str | None = None,
              changes_since: datetime.datetime | None = None,
              changes_before: datetime.datetime | None = None) -> list[Action]:
        """Return actions of a server, newest first, after the request id ``marker``. Raises MarkerNotFound."""

    def get(self, ctx: RequestContext, instance_uuid: str, request_id: str) -> Action:
        """Return an action of a server. Raises InstanceActionNotFound."""


class Migrations(Interface, topic=CONDUCTOR, namespace="migrations"):
    """Migrations of servers. With a ``project_id`` servers of other projects are not found."""

    def index(self, ctx: RequestContext, query: MigrationQuery) -> list[Migration]:
        """Return a page of migrations, newest first. Raises MarkerNotFound."""

    def in_progress(self, ctx: RequestContext, instance_uuid: str, project_id: str | None = None) -> list[Migration]:
        """Return the live migrations of a server in progress, newest first. Raises InstanceNotFound."""

    def get(self, ctx: RequestContext, instance_uuid: str, migration_id: int,
            project_id: str | None = None) -> Migration:
        """Return a live migration in progress by its id. Raises InstanceNotFound, MigrationNotFoundForInstance."""

    def interrupt(self, ctx: RequestContext, instance_uuid: str, migration_id: int, what: str,
                  statuses: list[str], project_id: str | None = None) -> None:
        """Cancel a live migration (``cancel``) or force its completion (``force-complete``). The migration must have
        one of ``statuses``. The request is repeated until the migration ends. Raises InstanceNotFound,
        InstanceIsLocked, InstanceInvalidState, InstanceStateUnknown, MigrationNotFoundForInstance,
        InvalidMigrationState."""


class ServerGroups(Interface, topic=CONDUCTOR, namespace="server_groups"):
    def index(self, ctx: RequestContext, project_id: str | None, limit: int | None = None,
              offset: int = 0) -> list[ServerGroup]: ...

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> ServerGroup:
        """Return a server group. Raises ServerGroupNotFound."""

    def create(self, ctx: RequestContext, group: ServerGroup) -> ServerGroup:
        """Create a server group. Raises QuotaLimit ("Quota exceeded, too many server groups.")."""

    def delete(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None: ...


class ExternalEvents(Interface, topic=CONDUCTOR, namespace="external_events"):
    """Events from other services (os-server-external-events)."""

    def create(self, ctx: RequestContext, events: list[ExternalEvent]) -> list[int]:
        """Store the events and resume the operations that wait for them. Returns a code for each event: 200, 404 (no
        such server) or 422 (the server is on no host)."""


class Consoles(Interface, topic=CONDUCTOR, namespace="consoles"):
    """Console tokens, identified by their digests (:func:`nova.objects.servers.console.digest`)."""

    def create(self, ctx: RequestContext, digest: str, console: Console) -> Console:
        """Store a token for this console and return the console with the end of its validity. A user can have a few
        tokens for each server; the oldest is removed first. Raises InstanceNotFound, and InstanceNotReady if the server
        has left the host meanwhile."""

    def get(self, ctx: RequestContext, digest: str) -> Console:
        """Return the console. Raises ConsoleTokenNotFound, also if the token expired or the server stopped or moved."""

    def over(self, ctx: RequestContext, sessions: list[ConsoleSession]) -> list[str]:
        """Return the ids (``ident``) of the sessions to close, since their servers were stopped, moved or deleted."""
