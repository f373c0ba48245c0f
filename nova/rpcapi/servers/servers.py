"""The RPC interface of servers (instances)."""

from __future__ import annotations

from typing import Any

from nova.bus import Interface, by_hosts, call, slow_call, with_token
from nova.context import RequestContext
from nova.objects.networks.network import VIF
from nova.objects.servers.action import Accepted
from nova.objects.servers.instance import Instance
from nova.objects.servers.server_request import ServerCreate, ServerCreated, ServerPage, ServerQuery
from nova.rpcapi import CONDUCTOR


class Servers(Interface):
    """Servers and the start of operations. Methods with a server's uuid raise InstanceNotFound.

    ``project_id`` None means all projects; otherwise servers of other projects are not found.
    """

    topic = CONDUCTOR
    namespace = "servers"

    @with_token
    @call
    def create(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated:
        """Accept ``min_count`` to ``max_count`` servers, as the quota allows, and start to build them.

        Raises FlavorNotFound, InvalidInput (key, group, zone, network), OverQuota, Network*, IdempotencyKeyReused.
        """

    @slow_call(3)
    def made(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated | None:
        """Return the result of an earlier create request whose answer was lost, or None if it created nothing.

        Only the names and counts of the request are used. Raises IdempotencyKeyReused.
        """

    @by_hosts
    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None,
            deleted: bool = False) -> Instance:
        """Return a server. A host gets only servers that exist on it or are moving to it."""

    @call
    def index(self, ctx: RequestContext, query: ServerQuery) -> list[Instance]:
        """Return a full page in the requested order, however long that takes. For nova-api of the last release.

        Raises MarkerNotFound, InvalidInput.
        """

    @call
    def page(self, ctx: RequestContext, query: ServerQuery) -> ServerPage:
        """Return a page in the requested order, shortened if the search would take long.

        Raises MarkerNotFound, InvalidInput.
        """

    @with_token
    @call
    def operate(self, ctx: RequestContext, uuid: str, operation: str, payload: dict[str, Any] | None = None,
                project_id: str | None = None) -> Accepted:
        """Start ``operation`` (a name of nova.operations) on a server; ``payload`` is its request.

        Checks lock, host and states as the operation declares them; raises UnknownOperation, InstanceIsLocked,
        InstanceNotReady, InstanceInvalidState, InstanceStateUnknown, ComputeServiceUnavailable (its host is down), and
        the errors of the acceptance of the operation.
        """

    @call
    def attached_interface(self, ctx: RequestContext, uuid: str, action_uuid: str,
                           project_id: str | None = None) -> VIF | None:
        """Return the interface that an attach_interface created, or None while the operation runs.

        Raises the error of the operation, and InstanceActionNotFound.
        """

    @call
    def live_migration_checked(self, ctx: RequestContext, uuid: str, action_uuid: str,
                               project_id: str | None = None) -> bool:
        """Return True if a live_migrate has passed the checks of both hosts, False while they run.

        Raises Invalid (with the reason why no host accepts the server), InstanceActionNotFound.
        """

    @call
    def password_changed(self, ctx: RequestContext, uuid: str, action_uuid: str,
                         project_id: str | None = None) -> bool:
        """Return True if a change_password has completed, False while it runs.

        Raises InstancePasswordSetFailed, NotImplementedHere (the hypervisor cannot), InstanceActionNotFound.
        """

    @call
    def update(self, ctx: RequestContext, uuid: str, changes: dict[str, Any],
               project_id: str | None = None) -> Instance:
        """Change display_name, display_description, hostname, access_ip_v4/v6, disk_config,
        pinned_availability_zone (2.104 rules: raises Conflict), locked_by, locked_reason."""

    @call
    def set_metadata(self, ctx: RequestContext, uuid: str, metadata: dict[str, str], replace: bool = False,
                     project_id: str | None = None) -> dict[str, str]:
        """Merge (or replace) the metadata; raises QuotaLimit, InstanceInvalidState."""

    @call
    def delete_metadata(self, ctx: RequestContext, uuid: str, key: str, project_id: str | None = None) -> None:
        """Raises MetadataNotFound, InstanceInvalidState."""

    @call
    def set_tags(self, ctx: RequestContext, uuid: str, tags: list[str], mode: str = "replace",
                 project_id: str | None = None) -> list[str]:
        """Change the tags by ``mode`` (replace, add, remove, clear) and return the previous tags."""

    @call
    def lock(self, ctx: RequestContext, uuid: str, reason: str | None = None,
             project_id: str | None = None) -> None: ...

    @call
    def unlock(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None: ...

    @call
    def reset_state(self, ctx: RequestContext, uuid: str, state: str) -> None:
        """Set vm_state to ``active`` or ``error`` and release any task."""

    @call
    def set_security_group(self, ctx: RequestContext, uuid: str, name: str, add: bool,
                           project_id: str | None = None) -> None:
        """Add the server to a security group of its project, or remove it."""
