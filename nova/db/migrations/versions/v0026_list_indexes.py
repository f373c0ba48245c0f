"""Indexes by which long lists of servers and migrations are sorted and filtered.

On PostgreSQL nova.db.maintenance.migrate creates the indexes of a table with rows afterwards, without a lock."""

from nova.db.migrations.schema import index, is_left_for_later, no_index

revision = "0026"
down_revision = "0025"

_SERVERS = ("access_ip_v4", "access_ip_v6", "availability_zone", "config_drive", "disk_config", "display_description",
            "display_name", "flavorid", "host", "hostname", "image_ref", "kernel_id", "key_name", "launch_index",
            "launched_at", "locked_by", "node", "power_state", "progress", "project_id", "ramdisk_id",
            "root_device_name", "task_state", "terminated_at", "updated_at", "user_id", "vm_state")
_MIGRATIONS = ("dest_compute", "migration_type", "source_compute", "status", "updated_at", "user_id")


def upgrade() -> None:
    if not is_left_for_later("instances"):
        index("ix_instances_by_uuid", "instances", "deleted", "uuid")
        for name in _SERVERS:
            index(f"ix_instances_by_{name}", "instances", "deleted", name, "created_at", "uuid")
        # ix_instances_by_updated_at replaces this index. If a database had both, it would choose the old one, which
        # lacks the column "deleted". Until conductors of the previous release are upgraded, their lists with
        # changes-since of all projects read the whole table. No other query of that release uses the old index.
        no_index("ix_instances_updated", "instances")
    if not is_left_for_later("migrations"):
        for name in _MIGRATIONS:
            index(f"ix_migrations_by_{name}", "migrations", name, "created_at", "id")
