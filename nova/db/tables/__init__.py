"""Definitions of all tables."""
# ruff: noqa: F401 - imported for other modules

from nova.db.sql.tables import metadata
from nova.db.tables.core import (
    actions,
    aggregates,
    allocations,
    compute_nodes,
    console_tokens,
    deleted_hosts,
    deployment,
    drain_servers,
    drains,
    evictions,
    external_events,
    flavor_access,
    flavors,
    instances,
    inventories,
    key_check,
    keypairs,
    migrations,
    precached_images,
    providers,
    quota_usages,
    quotas,
    server_groups,
    services,
    volume_removals,
    volumes,
)
from nova.db.tables.networks import (
    dns_domains,
    dns_entries,
    fixed_ips,
    floating_ips,
    network_hosts,
    networks,
    security_group_default_rules,
    security_group_members,
    security_group_rules,
    security_groups,
    versions,
)
from nova.db.tables.notifications import outbox, outbox_lanes, usage_audits
from nova.db.tables.search import block_texts, text_blocks
from nova.db.tables.shares import share_accesses, shares
