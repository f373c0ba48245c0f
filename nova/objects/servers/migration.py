"""Migrations: records of a server's move to another host."""

import datetime

from nova.objects.accounts.flavor import Flavor
from nova.objects.base import Object

MIGRATION, RESIZE, LIVE_MIGRATION, EVACUATION = "migration", "resize", "live-migration", "evacuation"  # migration_type

# status: shown by os-migrations
ACCEPTED, QUEUED, PREPARING = "accepted", "queued", "preparing"
RUNNING, RUNNING_POST_COPY = "running", "running (post-copy)"
PRE_MIGRATING, MIGRATING, POST_MIGRATING = "pre-migrating", "migrating", "post-migrating"
FINISHED = "finished"
CONFIRMING, CONFIRMED, REVERTING, REVERTED = "confirming", "confirmed", "reverting", "reverted"
DONE, COMPLETED = "done", "completed"
CANCELLED, FAILED, ERROR = "cancelled", "failed", "error"

# Statuses that servers/{id}/migrations shows as in progress.
IN_PROGRESS = frozenset({QUEUED, PREPARING, RUNNING, POST_MIGRATING})
# Final statuses: nothing more happens on the hosts.
ENDED = frozenset({CONFIRMED, REVERTED, ERROR, FAILED, COMPLETED, CANCELLED, DONE})

CANCEL, FORCE_COMPLETE = "cancel", "force-complete"  # interrupts for the running step of a live migration


class Migration(Object, kw_only=True):
    """A row of os-migrations. While it is ``open``, both hosts are possible hosts of the guest. The server's own claim
    is on the source, and the migration's claim is on the destination until the migration is confirmed. Sizes of memory
    and disks in bytes."""

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
    shared: bool = False  # True if both hosts use the same disks, which must then not be removed
    # CANCEL or FORCE_COMPLETE if requested while the migration ran.
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
        """Return (cores, MiB of memory) charged in excess of ``flavor`` while the migration is open: the larger flavor
        counts."""
        others = [other for other in (self.old_flavor, self.new_flavor) if other is not None and self.open]
        return (max([other.vcpus - flavor.vcpus for other in others] + [0]),
                max([other.memory_mb - flavor.memory_mb for other in others] + [0]))


class MigrationQuery(Object, kw_only=True):
    """Filter for a list of migrations. ``changes_since`` and ``changes_before``: time of the last change; ``marker``:
    uuid of a migration."""

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
