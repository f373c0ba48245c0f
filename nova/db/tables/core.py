"""Tables of servers, hosts, accounts, volumes, shares and notifications. Values that are always read together, and by
which no query filters, are one JSON column instead of several columns or a further table."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Index, UniqueConstraint

from nova.db.sql.types import Json, LongBytes, LongText, Utc, big_id, table, text, times
from nova.objects.accounts.flavor import Flavor
from nova.objects.dedicated_resources.numa import GuestTopology, HostTopology
from nova.objects.dedicated_resources.pci import GuestDevice, PciDevice
from nova.objects.hosts.node import Metric
from nova.objects.hosts.service import WorkerStats
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, NetworkRequest
from nova.objects.servers.action import Event
from nova.objects.servers.instance import BlockDevice, DeviceAddress, Fault, Key, Personality
from nova.objects.volumes.share import ShareMapping


def required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def ids() -> tuple[Column[Any], Column[Any]]:
    return Column("id", big_id(), primary_key=True), Column("uuid", text(36), nullable=False, unique=True)


# --- hosts ---------------------------------------------------------------------------------------
services = table(
    "services",
    *ids(),
    *required(text(), "host", "binary", "topic"),
    Column("disabled", sa.Boolean, nullable=False),
    Column("disabled_reason", text()),
    Column("forced_down", sa.Boolean, nullable=False),
    # State last published to the schedulers; the current state follows from last_seen.
    Column("up", sa.Boolean, nullable=False),
    Column("last_seen", Utc),
    Column("version", sa.Integer, nullable=False),
    Column("load", Json(list[WorkerStats])),
    Column("identity", text(36)),  # identity of the machine of a nova-compute; null: never reported
    # Volume connector of the machine of a nova-compute; null: never reported.
    Column("connector", Json(dict[str, Any])),
    # Grows with every change of up, disabled and forced_down: schedulers ignore an update with a smaller number.
    Column("generation", sa.BigInteger, nullable=False, server_default="0"),
    *times(),
    UniqueConstraint("host", "binary", name="uq_services_host_binary"),
    Index("ix_services_last_seen", "last_seen"),
    Index("ix_services_identity", "identity", unique=True),
)

# Machines whose nova-compute an operator deleted; they may register again.
deleted_hosts = table(
    "deleted_hosts", Column("identity", text(36), primary_key=True), Column("deleted_at", Utc, nullable=False))

# One row with the uuid by which hosts recognize their database.
deployment = table("deployment", Column("id", big_id(), primary_key=True), Column("uuid", text(36), nullable=False))

compute_nodes = table(
    "compute_nodes",
    *ids(),
    *required(text(), "host", "hypervisor_hostname", "hypervisor_type"),
    Column("hypervisor_version", sa.Integer, nullable=False),
    Column("host_ip", text(64), nullable=False),
    Column("cpu_info", Json(dict[str, Any]), nullable=False),
    Column("supported_instances", Json(list[tuple[str, str, str]]), nullable=False),
    Column("disk_available_least", sa.Integer),
    Column("uptime", text()),
    Column("service_id", sa.BigInteger, nullable=False),
    *required(sa.Integer, "num_instances", "num_io_ops", "failed_builds"),
    Column("numa_topology", Json(HostTopology)),
    Column("pci_devices", Json(list[PciDevice])),
    Column("metrics", Json(list[Metric])),
    # True after the first claim with NUMA cells, devices or sub-providers: deltas to schedulers then contain free ones.
    Column("fitted", sa.Boolean, nullable=False, server_default=sa.false()),
    Column("generation", sa.BigInteger, nullable=False),  # counts changes: the state with the greater number is newer
    *times(),
    UniqueConstraint("host", "hypervisor_hostname", name="uq_compute_nodes_host_node"),
)

providers = table(
    "providers",
    Column("uuid", text(36), primary_key=True),
    Column("name", text(), nullable=False),
    Column("parent_uuid", text(36)),
    Column("root_uuid", text(36), nullable=False),
    Column("traits", Json(list[str]), nullable=False),
    # True for a provider that a client of the Placement API created; reports of hosts do not change it.
    Column("external", sa.Boolean, nullable=False, server_default=sa.false()),
    # Counts the changes of an external provider. Other providers have compute_nodes.generation of their root.
    Column("generation", sa.BigInteger, nullable=False, server_default="0"),
    # Traits that clients of the Placement API added to a provider of a host; ``traits`` contains them, too.
    Column("extra_traits", Json(list[str])),
    Index("ix_providers_root_uuid", "root_uuid"),
    Index("ix_providers_name", "name"),
)

inventories = table(
    "inventories",
    Column("provider_uuid", text(36), primary_key=True),
    Column("resource_class", text(), primary_key=True),
    *required(sa.BigInteger, "total", "reserved"),
    Column("ratio", sa.Double(), nullable=False),
    *required(sa.BigInteger, "min_unit", "max_unit", "step_size", "used"),
    Index("ix_inventories_resource_class", "resource_class", "provider_uuid"),
)

allocations = table(
    "allocations",
    Column("consumer_uuid", text(36), primary_key=True),
    Column("provider_uuid", text(36), primary_key=True),
    # The root of the provider's tree: the node that is locked and counts the claim. Null: row of an earlier release.
    Column("root_uuid", text(36)),
    Column("resources", Json(dict[str, int]), nullable=False),
    # NUMA cells and devices of the node that the claim has; null in rows of other providers than the root.
    Column("numa_topology", Json(GuestTopology)),
    Column("pci_devices", Json(list[GuestDevice])),
    *required(text(), "project_id", "user_id"),
    Column("created_at", Utc, nullable=False),
    Index("ix_allocations_provider_uuid", "provider_uuid"),
    Index("ix_allocations_root_uuid", "root_uuid"),
    Index("ix_allocations_project", "project_id", "user_id"),
)

# --- Placement API: data that hosts and servers do not have -----------------------------------------
# Consumers other than servers and their migrations; a consumer without allocations has no row.
consumers = table(
    "consumers", Column("uuid", text(36), primary_key=True), Column("generation", sa.BigInteger, nullable=False),
    Column("type", text(), nullable=False), Column("created_at", Utc, nullable=False))

# Memberships of providers in aggregates, except those of compute nodes in host aggregates.
provider_aggregates = table(
    "provider_aggregates", Column("aggregate_uuid", text(36), primary_key=True),
    Column("provider_uuid", text(36), primary_key=True),
    Index("ix_provider_aggregates_provider_uuid", "provider_uuid"))

# Names that clients have registered; kind: trait, class, or provider (unique names of external providers).
placement_names = table(
    "placement_names", Column("kind", text(16), primary_key=True), Column("name", text(), primary_key=True))

# --- aggregates and server groups -------------------------------------------------------------------

aggregates = table(
    "aggregates",
    *ids(),
    Column("name", text(), nullable=False, unique=True),
    Column("hosts", Json(list[str]), nullable=False),
    Column("metadata", Json(dict[str, str]), nullable=False),
    *times(),
)

server_groups = table(
    "server_groups",
    *ids(),
    *required(text(), "name", "project_id", "user_id"),
    Column("policy", text(32), nullable=False),
    Column("rules", Json(dict[str, Any]), nullable=False),
    # Incremented to lock the row (by claims and new members): in a database cluster only a write locks it on all nodes.
    Column("held", sa.BigInteger, nullable=False, server_default="0"),
    Column("created_at", Utc, nullable=False),
    Index("ix_server_groups_project_id", "project_id"),
)

# --- flavors, key pairs, quotas ----------------------------------------------------------------------
flavors = table(
    "flavors",
    Column("id", big_id(), primary_key=True),
    Column("flavorid", text(), nullable=False, unique=True),
    Column("name", text(), nullable=False, unique=True),
    *required(sa.BigInteger, "memory_mb", "vcpus", "root_gb", "ephemeral_gb", "swap"),
    Column("rxtx_factor", sa.Double(), nullable=False),
    *required(sa.Boolean, "is_public", "disabled"),
    Column("description", LongText),
    Column("extra_specs", Json(dict[str, str]), nullable=False),
    *times(),
)

flavor_access = table(
    "flavor_access", Column("flavor_id", sa.BigInteger, primary_key=True),
    Column("project_id", text(), primary_key=True))

keypairs = table(
    "keypairs",
    Column("id", big_id(), primary_key=True),
    *required(text(), "user_id", "name"),
    Column("type", text(16), nullable=False),
    Column("public_key", LongText, nullable=False),
    Column("fingerprint", text(), nullable=False),
    Column("created_at", Utc, nullable=False),
    UniqueConstraint("user_id", "name", name="uq_keypairs_user_id_name"),
)

# Root certificates of projects. The newest valid root signs; its private key is encrypted with the keys of conductors.
certificate_roots = table(
    "certificate_roots",
    Column("id", big_id(), primary_key=True),
    Column("project_id", text(), nullable=False),
    Column("data", LongText, nullable=False),
    Column("encrypted_key", LongText),
    *required(Utc, "created_at", "not_after"),
    Index("ix_certificate_roots_project", "project_id", "id"),
    Index("ix_certificate_roots_not_after", "not_after", "id"),
)

# Certificates that the roots signed, without their contents and keys, for limits and revocation.
certificates = table(
    "certificates",
    Column("id", big_id(), primary_key=True),
    Column("serial", text(40), nullable=False),
    Column("root_id", sa.BigInteger, nullable=False),
    *required(text(), "project_id", "user_id"),
    *required(Utc, "created_at", "not_after"),
    Column("revoked_at", Utc),
    UniqueConstraint("serial", name="uq_certificates_serial"),
    Index("ix_certificates_project", "project_id", "id"),
    Index("ix_certificates_root", "root_id", "id"),
    Index("ix_certificates_not_after", "not_after", "id"),
)

# user_id "" is the project as a whole; project_id "class:NAME" holds the limits of a quota class.
quotas = table(
    "quotas", Column("project_id", text(), primary_key=True), Column("user_id", text(), primary_key=True),
    Column("limits", Json(dict[str, int]), nullable=False))

quota_usages = table(
    "quota_usages", Column("project_id", text(), primary_key=True), Column("user_id", text(), primary_key=True),
    *required(sa.BigInteger, "instances", "cores", "ram"))

# --- servers ---------------------------------------------------------------------------------------
# Columns that lists of servers can be sorted by, besides created_at and uuid. Most of them are filters, too.
SORTED = ("access_ip_v4", "access_ip_v6", "availability_zone", "config_drive", "disk_config", "display_description",
          "display_name", "flavorid", "host", "hostname", "image_ref", "kernel_id", "key_name", "launch_index",
          "launched_at", "locked_by", "node", "power_state", "progress", "project_id", "ramdisk_id",
          "root_device_name", "task_state", "terminated_at", "updated_at", "user_id", "vm_state")

instances = table(
    "instances",
    *ids(),
    *required(text(), "project_id", "user_id", "display_name"),
    Column("display_description", text()),
    Column("hostname", text(), nullable=False),
    Column("vm_state", text(32), nullable=False),
    Column("task_state", text(48)),
    *required(sa.Integer, "power_state", "progress"),
    *optional(text(), "host", "node", "availability_zone", "pinned_availability_zone"),
    Column("flavorid", text(), nullable=False),
    Column("flavor", Json(Flavor), nullable=False),
    Column("image_ref", text(), nullable=False),
    Column("image", Json(Image)),
    *required(text(), "kernel_id", "ramdisk_id"),
    Column("key_name", text()),
    Column("key", Json(Key)),
    Column("user_data", LongText),
    *required(Json(dict[str, str]), "metadata", "system_metadata"),
    *required(Json(list[str]), "tags", "security_groups"),
    Column("requested_networks", Json(list[NetworkRequest])),
    Column("network_info", Json(list[VIF]), nullable=False),
    # The fixed addresses between commas, for the ip filters: ",10.0.0.3,10.1.0.7,".
    Column("addresses", text(1024), nullable=False),
    Column("block_devices", Json(list[BlockDevice]), nullable=False),
    Column("shares", Json(list[ShareMapping])),
    Column("personality", Json(list[Personality]), nullable=False),
    Column("config_drive", sa.Boolean, nullable=False),
    Column("disk_config", text(16), nullable=False),
    *optional(text(64), "access_ip_v4", "access_ip_v6"),
    Column("launch_index", sa.Integer, nullable=False),
    *required(text(), "reservation_id", "root_device_name"),
    Column("locked_by", text(16)),
    Column("locked_reason", text()),
    # Unencrypted password, stored by a conductor of the previous release; conductors of this release encrypt it.
    Column("admin_pass", text()),
    *optional(LongText, "encrypted_pass", "encrypted_tpm_secret"),
    # Digest of the create request, if the request had an Idempotency-Key.
    Column("request_digest", text(64)),
    Column("trusted_certs", Json(list[str])),
    Column("scheduler_hints", Json(dict[str, Any]), nullable=False),
    Column("server_group", text(36)),
    Column("numa_topology", Json(GuestTopology)),
    Column("pci_devices", Json(list[GuestDevice])),
    Column("device_addresses", Json(list[DeviceAddress])),
    Column("fault", Json(Fault)),
    Column("action_uuid", text(36)),
    *times(),
    *optional(Utc, "launched_at", "terminated_at", "soft_deleted_at"),
    Column("deleted", sa.Boolean, nullable=False),
    # Block of the text index; null: the texts of the server are not indexed yet, or have changed since.
    Column("text_block", sa.BigInteger),
    Index("ix_instances_project", "project_id", "deleted", "created_at", "uuid"),
    Index("ix_instances_created", "deleted", "created_at", "uuid"),
    Index("ix_instances_host", "host", "deleted", "uuid"),
    Index("ix_instances_server_group", "server_group"),
    Index("ix_instances_reservation", "reservation_id"),
    Index("ix_instances_soft_deleted", "soft_deleted_at"),
    Index("ix_instances_usage", "project_id", "uuid", "launched_at", "terminated_at"),
    Index("ix_instances_by_uuid", "deleted", "uuid"),
    Index("ix_instances_text_block", "deleted", "text_block", "id"),
    # Columns of these indexes: "deleted", a filter or sort key, and the default order of lists.
    *(Index(f"ix_instances_by_{name}", "deleted", name, "created_at", "uuid") for name in SORTED),
)

# One row with a check value, by which conductors verify that they have the keys of the encrypted secrets.
key_check = table("key_check", Column("id", big_id(), primary_key=True), Column("encrypted", LongText, nullable=False))

actions = table(
    "actions",
    *ids(),
    Column("instance_uuid", text(36), nullable=False),
    Column("action", text(64), nullable=False),
    Column("operation", text(64)),
    Column("payload", Json(dict[str, Any]), nullable=False),
    Column("step", text(64)),
    Column("attempt", sa.Integer, nullable=False),
    Column("undoing", sa.Boolean, nullable=False),
    Column("owner", text()),
    Column("lease_until", Utc),
    Column("outcome", text(16)),
    Column("request_id", text(), nullable=False),
    *optional(text(), "user_id", "project_id"),
    Column("start_time", Utc, nullable=False),
    *optional(Utc, "finish_time", "updated_at"),
    Column("message", text()),
    Column("events", Json(list[Event]), nullable=False),
    # True while the action waits for earlier operations of the instance.
    Column("queued", sa.Boolean, nullable=False, server_default=sa.false()),
    # Keys of the external events that wake the parked action, between commas; null: the action is not parked.
    Column("waits_for", text(1024)),
    Index("ix_actions_instance", "instance_uuid", "id"),
    Index("ix_actions_lease", "outcome", "lease_until"),
    Index("ix_actions_owner", "outcome", "owner"),
)

migrations = table(
    "migrations",
    *ids(),
    Column("instance_uuid", text(36), nullable=False),
    *required(text(32), "migration_type", "status"),
    # True while the migration is open: then both its hosts are possible hosts of the guest.
    Column("open", sa.Boolean, nullable=False),
    *required(text(), "source_compute", "source_node", "dest_compute", "dest_node"),
    Column("dest_host", text(64), nullable=False),
    *optional(Json(Flavor), "old_flavor", "new_flavor"),
    Column("shared", sa.Boolean, nullable=False),
    # The request of a user to abort or to force the live migration, sent to the host again until the migration ends.
    Column("wanted", text(16), nullable=False, server_default=""),
    Column("action_uuid", text(36)),
    *required(text(), "user_id", "project_id"),
    *(Column(f"{what}_{part}", sa.BigInteger) for what in ("memory", "disk")
      for part in ("total", "processed", "remaining")),
    *times(),
    Index("ix_migrations_instance", "instance_uuid", "id"),
    Index("ix_migrations_source", "open", "source_compute"),
    Index("ix_migrations_dest", "open", "dest_compute"),
    Index("ix_migrations_created", "created_at"),
    Index("ix_migrations_project", "project_id", "created_at"),
    *(Index(f"ix_migrations_by_{name}", name, "created_at", "id") for name in (
        "dest_compute", "migration_type", "source_compute", "status", "updated_at", "user_id")),
)

# Hosts being drained (nova.conductor.background.drains); owner: the conductor that currently processes the drain.
drains = table(
    "drains",
    Column("uuid", text(36), primary_key=True),
    Column("host", text(), nullable=False),
    *required(text(16), "kind", "state"),
    Column("parallel", sa.Integer, nullable=False),
    Column("cold", sa.Boolean, nullable=False),
    Column("target", text(), nullable=False),
    Column("patience", sa.Integer, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("owner", text()),
    Column("lease_until", Utc),
    UniqueConstraint("host", name="uq_drains_host"),
)

drain_servers = table(
    "drain_servers",
    Column("drain_uuid", text(36), primary_key=True),
    Column("instance_uuid", text(36), primary_key=True),
    *required(text(16), "state", "how"),
    Column("destination", text(), nullable=False),
    Column("reason", text(1024), nullable=False),
    Column("request_id", text(64), nullable=False),
    Column("since", Utc, nullable=False),
    *optional(Utc, "started_at", "ended_at"),
    Index("ix_drain_servers_state", "drain_uuid", "state"),
    Index("ix_drain_servers_instance", "instance_uuid"),
)

# Images that hosts fetch at an operator's request for an aggregate; ask_again_at: when the message to the host is
# repeated (null: none was sent).
precached_images = table(
    "precached_images",
    Column("aggregate_id", sa.BigInteger, primary_key=True, autoincrement=False),
    Column("host", text(), primary_key=True),
    Column("image_id", text(36), primary_key=True),
    Column("image", Json(Image), nullable=False),
    Column("state", text(16), nullable=False),
    Column("message", text(1024), nullable=False),
    Column("tries", sa.Integer, nullable=False),
    Column("ask_again_at", Utc),
    *times(),
    Index("ix_precached_images_state", "state"),
    Index("ix_precached_images_host", "host", "image_id"),
)

# Requests to a host to remove the guest of an instance that was deleted or moved while the host was unavailable.
evictions = table(
    "evictions", Column("instance_uuid", text(36), primary_key=True), Column("host", text(), primary_key=True),
    Column("keep_disks", sa.Boolean, nullable=False), Column("created_at", Utc, nullable=False),
    Index("ix_evictions_host", "host", "instance_uuid"))

# Events of external services for an instance (os-server-external-events), until the waiting step has read them.
external_events = table(
    "external_events", Column("instance_uuid", text(36), primary_key=True),
    Column("name", text(), primary_key=True),  # name:tag
    Column("status", text(16), nullable=False), Column("created_at", Utc, nullable=False),
    Index("ix_external_events_created", "created_at"))

# --- consoles --------------------------------------------------------------------------------------
# Tokens that give a browser access to a console through a proxy. Only the digest of a token is stored.
console_tokens = table(
    "console_tokens",
    Column("id", big_id(), primary_key=True),
    Column("digest", text(64), nullable=False, unique=True),
    Column("instance_uuid", text(36), nullable=False),
    *required(text(), "instance_host", "user_id", "project_id"),
    Column("console_type", text(32), nullable=False),
    Column("host", text(), nullable=False),
    Column("port", sa.Integer, nullable=False),
    Column("tls_port", sa.Integer),
    Column("access_path", text(1024)),
    Column("access_url_base", text(1024), nullable=False),
    # The newest action of the instance when the token was created.
    Column("since", sa.BigInteger, nullable=False),
    Column("expires_at", Utc, nullable=False),
    Index("ix_console_tokens_instance", "instance_uuid", "user_id", "id"),
    Index("ix_console_tokens_expires", "expires_at"),
)

# --- volumes ---------------------------------------------------------------------------------------
volumes = table(
    "volumes",
    *ids(),
    *required(text(), "project_id", "user_id", "name", "description"),
    Column("size_gb", sa.BigInteger, nullable=False),
    Column("status", text(32), nullable=False),
    *optional(text(), "volume_type", "availability_zone"),
    Column("metadata", Json(dict[str, str]), nullable=False),
    Column("bootable", sa.Boolean, nullable=False),
    Column("image", Json(Image)),
    Column("host", text()),
    Column("shared", sa.Boolean, nullable=False),
    Column("generation", sa.Integer, nullable=False),
    Column("format", text(16), nullable=False),
    *optional(text(36), "instance_uuid", "attachment_id"),
    Column("device_name", text()),
    *times(),
    *optional(Utc, "attached_at", "written_at"),
    Index("ix_volumes_project", "project_id", "id"),
    Index("ix_volumes_instance", "instance_uuid"),
)

# Requests to a host to remove the data of a volume; host "": any host may remove them, from the shared pool.
volume_removals = table(
    "volume_removals", Column("id", big_id(), primary_key=True), Column("volume_uuid", text(36), nullable=False),
    Column("generation", sa.Integer, nullable=False), Column("host", text(), nullable=False),
    Column("created_at", Utc, nullable=False),
    UniqueConstraint("volume_uuid", "generation", name="uq_volume_removals_volume_generation"))

# --- shares -----------------------------------------------------------------------------------------
# The shares of a server are in its row (instances.shares).
shares = table(
    "shares",
    *ids(),
    *required(text(), "project_id", "name"),
    # The only host with the directory of the share; null: not created yet, or all hosts share it.
    Column("host", text()),
    Column("created_at", Utc, nullable=False),
    Index("ix_shares_project", "project_id", "id"),
)

# Accesses of hosts to shares. A row is written before the access is requested from the share service, and deleted after
# it is revoked. Servers of one host with the same share have a row each, and one access at the service.
share_accesses = table(
    "share_accesses",
    Column("id", big_id(), primary_key=True),
    Column("share_id", text(36), nullable=False),
    Column("host", text(), nullable=False),
    Column("instance_uuid", text(36), nullable=False),
    Column("leaving", sa.Boolean, nullable=False),
    Column("updated_at", Utc, nullable=False),
    UniqueConstraint("share_id", "host", "instance_uuid", name="uq_share_accesses_share_host_instance"),
    Index("ix_share_accesses_instance", "instance_uuid"),
)

# --- notifications ---------------------------------------------------------------------------------
# Notifications to publish, written in the transaction of their change; lane: the partition, in which ids are the order.
outbox = table(
    "outbox",
    Column("id", big_id(), primary_key=True),
    Column("message_id", text(36), nullable=False),
    Column("lane", sa.SmallInteger, nullable=False),
    Column("versioned", sa.Boolean, nullable=False),
    Column("event_type", text(64), nullable=False),
    Column("priority", text(16), nullable=False),
    Column("publisher_id", text(300), nullable=False),
    Column("payload", Json(dict[str, Any]), nullable=False),
    Column("context", Json(dict[str, str]), nullable=False),
    Column("created_at", Utc, nullable=False),
    Index("ix_outbox_lane", "lane", "id"),
    Index("ix_outbox_created", "created_at"),
)

# The conductor that publishes a partition of the outbox, and the end of its lease.
outbox_lanes = table(
    "outbox_lanes", Column("lane", sa.SmallInteger, primary_key=True, autoincrement=False),
    Column("owner", text(), nullable=False), Column("lease_until", Utc, nullable=False))

# Progress of the existence notifications (compute.instance.exists) of the newest audit period.
usage_audits = table(
    "usage_audits", Column("period_ending", Utc, primary_key=True),
    Column("marker", sa.BigInteger, nullable=False),  # greatest server id whose notification is sent
    Column("finished", sa.Boolean, nullable=False))

# --- the text index of servers (nova.db.servers.text_index) -------------------------------------------
# Blocks of the text index: servers that were indexed together. Either all servers of a block were deleted, or none.
text_blocks = table(
    "text_blocks", Column("id", big_id(), primary_key=True), Column("deleted", sa.Boolean, nullable=False),
    *required(Utc, "oldest", "newest"))  # creation times of the servers of the block

# The values of one column in the servers of a block: compressed lines, one per server in the order of the block. The
# row with the name "" contains the ids and creation times of the servers.
block_texts = table(
    "block_texts", Column("block_id", sa.BigInteger, primary_key=True, autoincrement=False),
    Column("name", text(64), primary_key=True), Column("content", LongBytes, nullable=False))

# --- the EC2 API ------------------------------------------------------------------------------------
# Numbers of EC2 ids ("ami-%08x") of objects other than servers (the number of a server is instances.id). The number is
# the CRC-32 of the uuid unless another object of this kind has it. So an object gets the same number again after the
# removal of its row.
ec2_ids = table(
    "ec2_ids",
    Column("id", big_id(), primary_key=True),
    Column("kind", text(16), nullable=False),
    Column("number", sa.BigInteger, nullable=False),
    Column("uuid", text(), nullable=False),
    Column("used_at", Utc, nullable=False),  # when a request last used the id, accurate to a day
    UniqueConstraint("kind", "number", name="uq_ec2_ids_kind_number"),
    UniqueConstraint("kind", "uuid", name="uq_ec2_ids_kind_uuid"),
    Index("ix_ec2_ids_used", "used_at", "id"),
)
