"""The RPC interface of migrations of servers."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.servers.migration import Migration, MigrationQuery
from nova.rpcapi import CONDUCTOR


class Migrations(Interface):
    """Migrations of servers. With a ``project_id`` servers of other projects are not found."""

    topic = CONDUCTOR
    namespace = "migrations"

    @call
    def index(self, ctx: RequestContext, query: MigrationQuery) -> list[Migration]:
        """Return a page of migrations, newest first. Raises MarkerNotFound."""

    @call
    def in_progress(self, ctx: RequestContext, instance_uuid: str, project_id: str | None = None) -> list[Migration]:
        """Return the live migrations of a server in progress, newest first. Raises InstanceNotFound."""

    @call
    def get(self, ctx: RequestContext, instance_uuid: str, migration_id: int,
            project_id: str | None = None) -> Migration:
        """Return a live migration in progress by its id. Raises InstanceNotFound, MigrationNotFoundForInstance."""

    @call
    def interrupt(self, ctx: RequestContext, instance_uuid: str, migration_id: int, what: str,
                  statuses: list[str], project_id: str | None = None) -> None:
        """Cancel a live migration (``cancel``) or force its completion (``force-complete``).

        The migration must have one of ``statuses``. The request is repeated until the migration has ended.

        Raises InstanceNotFound, InstanceIsLocked, InstanceInvalidState, InstanceStateUnknown,
        MigrationNotFoundForInstance, InvalidMigrationState.
        """
