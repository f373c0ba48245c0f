"""Migrations: a server on its way from one host to another, or waiting for the word that ends it."""

from __future__ import annotations

import datetime

from nova.objects.base import Object
from nova.objects.flavor import Flavor

# migration_type
MIGRATION = "migration"
RESIZE = "resize"
LIVE_MIGRATION = "live-migration"
EVACUATION = "evacuation"

# status: shown by os-migrations
ACCEPTED = "accepted"
QUEUED = "queued"
PREPARING = "preparing"
RUNNING = "running"
RUNNING_POST_COPY = "running (post-copy)"
PRE_MIGRATING = "pre-migrating"
MIGRATING = "migrating"
POST_MIGRATING = "post-migrating"
FINISHED = "finished"
CONFIRMING = "confirming"
CONFIRMED = "confirmed"
REVERTING = "reverting"
REVERTED = "reverted"
DONE = "done"
COMPLETED = "completed"
CANCELLED = "cancelled"
FAILED = "failed"
ERROR = "error"

# What servers/{id}/migrations shows as in progress.
IN_PROGRESS = frozenset({QUEUED, PREPARING, RUNNING, POST_MIGRATING})
# Nothing more is done on their hosts.
ENDED = frozenset({CONFIRMED, REVERTED, ERROR, FAILED, COMPLETED, CANCELLED, DONE})

# What the running step of a live migration can be told.
CANCEL = "cancel"
FORCE_COMPLETE = "force-complete"


class Migration(Object, kw_only=True):
    """A row of os-migrations.

    While it is ``open`` both its hosts are places of the guest. The first claim of a server is its own (on the
    source), the second one is the migration's (on the destination) until the migration is confirmed. Sizes of
    memory and disks in bytes.
    """

    id: int = 0
    uuid: str
    instance_uuid: str
    migration_type: str
    status: str
    open: bool = True
    source_compute: str = ""
    source_node: str = ""
    dest_compute: str = ""
    dest_node: str = ""
    dest_host: str = ""
    old_flavor: Flavor | None = None
    new_flavor: Flavor | None = None
    # Whether both hosts see the same disks: then neither removes them alone.
    shared: bool = False
    # CANCEL or FORCE_COMPLETE, if somebody asked for it while it ran.
    wanted: str = ""
    action_uuid: str | None = None
    user_id: str = ""
    project_id: str = ""
    memory_total: int | None = None
    memory_processed: int | None = None
    memory_remaining: int | None = None
    disk_total: int | None = None
    disk_processed: int | None = None
    disk_remaining: int | None = None
    created_at: datetime.datetime
    updated_at: datetime.datetime | None = None

    def beyond(self, flavor: Flavor) -> tuple[int, int]:
        """(cores, MiB of memory) that its server is charged for beyond ``flavor``: for the greater of both, while it
        is open."""
        others = [other for other in (self.old_flavor, self.new_flavor) if other is not None and self.open]
        return (max([other.vcpus - flavor.vcpus for other in others] + [0]),
                max([other.memory_mb - flavor.memory_mb for other in others] + [0]))


class MigrationQuery(Object, kw_only=True):
    """Which migrations to list: by who asked for them, by server, by host (source or destination), and so on.

    ``changes_since`` and ``changes_before`` are about the last change; ``marker`` is the uuid of a migration.
    """

    project_id: str | None = None
    user_id: str | None = None
    instance_uuid: str | None = None
    host: str | None = None
    source_compute: str | None = None
    status: str | None = None
    migration_type: str | None = None
    changes_since: datetime.datetime | None = None
    changes_before: datetime.datetime | None = None
    limit: int = 1000
    marker: str | None = None
