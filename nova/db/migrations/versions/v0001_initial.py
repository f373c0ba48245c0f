"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa

from nova.db.migrations.schema import index, table
from nova.db.sql.types import Json, Utc, big_id, long_text, text

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _hosts()
    _choices()
    _servers()
    _networks()


def _hosts() -> None:
    table(
        "services",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("host", text(), nullable=False),
        sa.Column("binary", text(), nullable=False),
        sa.Column("topic", text(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", text()),
        sa.Column("forced_down", sa.Boolean(), nullable=False),
        sa.Column("up", sa.Boolean(), nullable=False),
        sa.Column("last_seen", Utc()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
        sa.UniqueConstraint("host", "binary", name="uq_services_host_binary"),
    )
    index("ix_services_last_seen", "services", "last_seen")
    table(
        "compute_nodes",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("host", text(), nullable=False),
        sa.Column("hypervisor_hostname", text(), nullable=False),
        sa.Column("hypervisor_type", text(), nullable=False),
        sa.Column("hypervisor_version", sa.Integer(), nullable=False),
        sa.Column("host_ip", text(64), nullable=False),
        sa.Column("cpu_info", Json(object), nullable=False),
        sa.Column("supported_instances", Json(object), nullable=False),
        sa.Column("disk_available_least", sa.Integer()),
        sa.Column("uptime", text()),
        sa.Column("service_id", sa.BigInteger(), nullable=False),
        sa.Column("num_instances", sa.Integer(), nullable=False),
        sa.Column("num_io_ops", sa.Integer(), nullable=False),
        sa.Column("failed_builds", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
        sa.UniqueConstraint("host", "hypervisor_hostname", name="uq_compute_nodes_host_node"),
    )
    table(
        "providers",
        sa.Column("uuid", text(36), primary_key=True),
        sa.Column("name", text(), nullable=False),
        sa.Column("parent_uuid", text(36)),
        sa.Column("root_uuid", text(36), nullable=False),
        sa.Column("traits", Json(object), nullable=False),
    )
    index("ix_providers_root_uuid", "providers", "root_uuid")
    table(
        "inventories",
        sa.Column("provider_uuid", text(36), primary_key=True),
        sa.Column("resource_class", text(), primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=False),
        sa.Column("min_unit", sa.BigInteger(), nullable=False),
        sa.Column("max_unit", sa.BigInteger(), nullable=False),
        sa.Column("step_size", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
    )
    table(
        "allocations",
        sa.Column("consumer_uuid", text(36), primary_key=True),
        sa.Column("provider_uuid", text(36), primary_key=True),
        sa.Column("resources", Json(object), nullable=False),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
    )
    index("ix_allocations_provider_uuid", "allocations", "provider_uuid")
    table(
        "aggregates",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("name", text(), nullable=False, unique=True),
        sa.Column("hosts", Json(object), nullable=False),
        sa.Column("metadata", Json(object), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
    )
    table(
        "server_groups",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("name", text(), nullable=False),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("policy", text(32), nullable=False),
        sa.Column("rules", Json(object), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
    )
    index("ix_server_groups_project_id", "server_groups", "project_id")


def _choices() -> None:
    table(
        "flavors",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("flavorid", text(), nullable=False, unique=True),
        sa.Column("name", text(), nullable=False, unique=True),
        sa.Column("memory_mb", sa.BigInteger(), nullable=False),
        sa.Column("vcpus", sa.BigInteger(), nullable=False),
        sa.Column("root_gb", sa.BigInteger(), nullable=False),
        sa.Column("ephemeral_gb", sa.BigInteger(), nullable=False),
        sa.Column("swap", sa.BigInteger(), nullable=False),
        sa.Column("rxtx_factor", sa.Double(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("description", long_text()),
        sa.Column("extra_specs", Json(object), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
    )
    table(
        "flavor_access",
        sa.Column("flavor_id", sa.BigInteger(), primary_key=True),
        sa.Column("project_id", text(), primary_key=True),
    )
    table(
        "keypairs",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("type", text(16), nullable=False),
        sa.Column("public_key", long_text(), nullable=False),
        sa.Column("fingerprint", text(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.UniqueConstraint("user_id", "name", name="uq_keypairs_user_id_name"),
    )
    table(
        "quotas",
        sa.Column("project_id", text(), primary_key=True),
        sa.Column("user_id", text(), primary_key=True),
        sa.Column("limits", Json(object), nullable=False),
    )
    table(
        "quota_usages",
        sa.Column("project_id", text(), primary_key=True),
        sa.Column("user_id", text(), primary_key=True),
        sa.Column("instances", sa.BigInteger(), nullable=False),
        sa.Column("cores", sa.BigInteger(), nullable=False),
        sa.Column("ram", sa.BigInteger(), nullable=False),
    )


def _servers() -> None:
    table(
        "instances",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("user_id", text(), nullable=False),
        sa.Column("display_name", text(), nullable=False),
        sa.Column("display_description", text()),
        sa.Column("hostname", text(), nullable=False),
        sa.Column("vm_state", text(32), nullable=False),
        sa.Column("task_state", text(48)),
        sa.Column("power_state", sa.Integer(), nullable=False),
        sa.Column("progress", sa.Integer(), nullable=False),
        sa.Column("host", text()),
        sa.Column("node", text()),
        sa.Column("availability_zone", text()),
        sa.Column("pinned_availability_zone", text()),
        sa.Column("flavorid", text(), nullable=False),
        sa.Column("flavor", Json(object), nullable=False),
        sa.Column("image_ref", text(), nullable=False),
        sa.Column("image", Json(object)),
        sa.Column("kernel_id", text(), nullable=False),
        sa.Column("ramdisk_id", text(), nullable=False),
        sa.Column("key_name", text()),
        sa.Column("key", Json(object)),
        sa.Column("user_data", long_text()),
        sa.Column("metadata", Json(object), nullable=False),
        sa.Column("system_metadata", Json(object), nullable=False),
        sa.Column("tags", Json(object), nullable=False),
        sa.Column("security_groups", Json(object), nullable=False),
        sa.Column("requested_networks", Json(object)),
        sa.Column("network_info", Json(object), nullable=False),
        sa.Column("addresses", text(1024), nullable=False),
        sa.Column("block_devices", Json(object), nullable=False),
        sa.Column("personality", Json(object), nullable=False),
        sa.Column("config_drive", sa.Boolean(), nullable=False),
        sa.Column("disk_config", text(16), nullable=False),
        sa.Column("access_ip_v4", text(64)),
        sa.Column("access_ip_v6", text(64)),
        sa.Column("launch_index", sa.Integer(), nullable=False),
        sa.Column("reservation_id", text(), nullable=False),
        sa.Column("root_device_name", text(), nullable=False),
        sa.Column("locked_by", text(16)),
        sa.Column("locked_reason", text()),
        sa.Column("admin_pass", text()),
        sa.Column("trusted_certs", Json(object)),
        sa.Column("scheduler_hints", Json(object), nullable=False),
        sa.Column("server_group", text(36)),
        sa.Column("fault", Json(object)),
        sa.Column("action_uuid", text(36)),
        sa.Column("created_at", Utc(), nullable=False),
        sa.Column("updated_at", Utc()),
        sa.Column("launched_at", Utc()),
        sa.Column("terminated_at", Utc()),
        sa.Column("deleted", sa.Boolean(), nullable=False),
    )
    index("ix_instances_created", "instances", "deleted", "created_at", "uuid")
    index("ix_instances_host", "instances", "host", "deleted", "uuid")
    index("ix_instances_project", "instances", "project_id", "deleted", "created_at", "uuid")
    index("ix_instances_reservation", "instances", "reservation_id")
    index("ix_instances_server_group", "instances", "server_group")
    index("ix_instances_updated", "instances", "updated_at")
    table(
        "actions",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("instance_uuid", text(36), nullable=False),
        sa.Column("action", text(64), nullable=False),
        sa.Column("operation", text(64)),
        sa.Column("payload", Json(object), nullable=False),
        sa.Column("step", text(64)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("undoing", sa.Boolean(), nullable=False),
        sa.Column("owner", text()),
        sa.Column("lease_until", Utc()),
        sa.Column("outcome", text(16)),
        sa.Column("request_id", text(), nullable=False),
        sa.Column("user_id", text()),
        sa.Column("project_id", text()),
        sa.Column("start_time", Utc(), nullable=False),
        sa.Column("finish_time", Utc()),
        sa.Column("updated_at", Utc()),
        sa.Column("message", text()),
        sa.Column("events", Json(object), nullable=False),
    )
    index("ix_actions_instance", "actions", "instance_uuid", "id")
    index("ix_actions_lease", "actions", "outcome", "lease_until")
    index("ix_actions_owner", "actions", "outcome", "owner")


def _networks() -> None:
    table(
        "networks",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("uuid", text(36), nullable=False, unique=True),
        sa.Column("label", text(), nullable=False),
        sa.Column("cidr", text(64), nullable=False),
        sa.Column("gateway", text(64), nullable=False),
        sa.Column("dns", Json(object), nullable=False),
        sa.Column("dhcp_start", text(64)),
        sa.Column("mtu", sa.Integer(), nullable=False),
        sa.Column("bridge", text(15), nullable=False, unique=True),
        sa.Column("vlan", sa.Integer()),
        sa.Column("bridge_interface", text(15)),
        sa.Column("project_id", text()),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
    )
    table(
        "fixed_ips",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("network_uuid", text(36), nullable=False),
        sa.Column("address", text(64), nullable=False),
        sa.Column("instance_uuid", text(36)),
        sa.Column("vif_id", text(36)),
        sa.Column("updated_at", Utc()),
        sa.UniqueConstraint("network_uuid", "address", name="uq_fixed_ips_network_address"),
    )
    index("ix_fixed_ips_free", "fixed_ips", "network_uuid", "instance_uuid", "updated_at")
    index("ix_fixed_ips_instance", "fixed_ips", "instance_uuid")
    table(
        "security_groups",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("project_id", text(), nullable=False),
        sa.Column("name", text(), nullable=False),
        sa.Column("description", text(), nullable=False),
        sa.Column("created_at", Utc(), nullable=False),
        sa.UniqueConstraint("project_id", "name", name="uq_security_groups_project_name"),
    )
    table(
        "security_group_rules",
        sa.Column("id", big_id(), primary_key=True),
        sa.Column("parent_group_id", sa.BigInteger(), nullable=False),
        sa.Column("protocol", text(8)),
        sa.Column("from_port", sa.Integer()),
        sa.Column("to_port", sa.Integer()),
        sa.Column("cidr", text(64)),
        sa.Column("group_id", sa.BigInteger()),
    )
    index("ix_security_group_rules_group", "security_group_rules", "group_id")
    index("ix_security_group_rules_parent", "security_group_rules", "parent_group_id")
    table(
        "security_group_members",
        sa.Column("group_id", sa.BigInteger(), primary_key=True),
        sa.Column("instance_uuid", text(36), primary_key=True),
    )
    index("ix_security_group_members_instance", "security_group_members", "instance_uuid")
