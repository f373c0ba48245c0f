"""Migrations of servers: listed, shown, and told something while they run."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.migration import Migration, MigrationQuery
from nova.rpcapi import CONDUCTOR


class Migrations(Interface):
    """``project_id`` None looks at the servers of every project; otherwise another project's is not found."""

    topic = CONDUCTOR
    namespace = "migrations"

    @call
    def index(self, ctx: RequestContext, query: MigrationQuery) -> list[Migration]:
        """A page, newest first. Raises MarkerNotFound."""

    @call
    def in_progress(self, ctx: RequestContext, instance_uuid: str, project_id: str | None = None) -> list[Migration]:
        """The live migrations of a server that are in progress, newest first. Raises InstanceNotFound."""

    @call
    def get(self, ctx: RequestContext, instance_uuid: str, migration_id: int,
            project_id: str | None = None) -> Migration:
        """One of them by its number. Raises InstanceNotFound, MigrationNotFoundForInstance."""

    @call
    def interrupt(self, ctx: RequestContext, instance_uuid: str, migration_id: int, what: str,
                  statuses: list[str], project_id: str | None = None) -> None:
        """Have a live migration that is in one of these states told to end (``cancel``) or to come to its end
        (``force-complete``), which it is until it has ended.

        Raises InstanceNotFound, InstanceIsLocked, InstanceInvalidState, InstanceStateUnknown,
        MigrationNotFoundForInstance, InvalidMigrationState.
        """
