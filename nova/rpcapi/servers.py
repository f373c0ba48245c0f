"""Servers: what the API asks the conductor about instances."""

from __future__ import annotations

from typing import Any

from nova.bus import Interface, by_hosts, call, slow_call, with_token
from nova.context import RequestContext
from nova.objects.action import Accepted
from nova.objects.instance import Instance
from nova.objects.network import VIF
from nova.objects.server_request import ServerCreate, ServerCreated, ServerPage, ServerQuery
from nova.rpcapi import CONDUCTOR


class Servers(Interface):
    """Every method that names one server raises InstanceNotFound for one that is not there.

    ``project_id`` None looks at every project; otherwise another project's server is not found.
    """

    topic = CONDUCTOR
    namespace = "servers"

    @with_token
    @call
    def create(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated:
        """Promise ``min_count`` to ``max_count`` servers (as many as the quota allows) and begin to build.

        Raises FlavorNotFound, InvalidInput (key, group, zone, network), OverQuota, Network*, IdempotencyKeyReused.
        """

    @slow_call(3)
    def made(self, ctx: RequestContext, request: ServerCreate) -> ServerCreated | None:
        """What came of a create request (only its names and numbers matter here) whose answer got lost.

        None: nothing, and nothing will when its caller waits no more. Raises IdempotencyKeyReused.
        """

    @by_hosts
    @call
    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None,
            deleted: bool = False) -> Instance:
        """A host is told of those only that are, or are coming, there."""

    @call
    def index(self, ctx: RequestContext, query: ServerQuery) -> list[Instance]:
        """Return a full page in the order asked for, however long that takes (nova-api of the last release).

        Raises MarkerNotFound, InvalidInput.
        """

    @call
    def page(self, ctx: RequestContext, query: ServerQuery) -> ServerPage:
        """Return a page in the order asked for, cut where the search would take long.

        Raises MarkerNotFound, InvalidInput.
        """

    @with_token
    @call
    def operate(self, ctx: RequestContext, uuid: str, operation: str, payload: dict[str, Any] | None = None,
                project_id: str | None = None) -> Accepted:
        """Start ``operation`` (a name of nova.operations) on a server; ``payload`` is its request.

        Checks lock, host and states as the operation declares them; raises UnknownOperation, InstanceIsLocked,
        InstanceNotReady, InstanceInvalidState, InstanceStateUnknown, ComputeServiceUnavailable (its host is down), and
        what the operation's own acceptance refuses.
        """

    @call
    def attached_interface(self, ctx: RequestContext, uuid: str, action_uuid: str,
                           project_id: str | None = None) -> VIF | None:
        """The interface that an attach_interface has made, None while it is being made.

        Raises what it failed with, and InstanceActionNotFound.
        """

    @call
    def live_migration_checked(self, ctx: RequestContext, uuid: str, action_uuid: str,
                               project_id: str | None = None) -> bool:
        """Return True once a live_migrate has passed the checks of both hosts, False while these are under way.

        Raises Invalid (with the reason for which no host takes the server), InstanceActionNotFound.
        """

    @call
    def password_changed(self, ctx: RequestContext, uuid: str, action_uuid: str,
                         project_id: str | None = None) -> bool:
        """Whether a change_password is done; False while it is under way.

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
        """``mode``: replace, add, remove or clear. Returns the tags as they were before."""

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
        """Put the server into a security group of its project or take it out."""
