"""The table of all routes of the Compute API.

A line: method, path, handler, policy (None: checked by the handler), then ``since``/``until`` (minor microversions in
which the route exists), ``success`` (status, or {since: status}) and ``action`` (the key of an action's body). Query,
body and answer are declared on the handler with ``accepts``."""

import dataclasses
from collections.abc import Iterator

from nova.api import versions
from nova.api.compute import extensions, flavors
from nova.api.compute.accounts import keypairs, quotas, usages
from nova.api.compute.hosts import aggregates, hosts, hypervisors, services
from nova.api.compute.images import image_metadata, images
from nova.api.compute.networks import floating_ips, networks, security_groups
from nova.api.compute.servers import (
    external_events,
    instance_actions,
    migrations,
    server_groups,
    servers,
    servers_create,
    servers_list,
)
from nova.api.compute.servers.actions import consoles, server_actions, server_disks, server_images, server_moves
from nova.api.compute.servers.subresources import diagnostics, interfaces, metadata, shares, tags, volume_attachments
from nova.api.compute.volumes import assisted_snapshots, volumes
from nova.api.legacy import routes as legacy_routes
from nova.api.router import Route

_SERVER = "/servers/{server_id}"
_ACTION = "/servers/{server_id}/action"
_FLAVOR = "/flavors/{id}"
_SPECS = "/flavors/{flavor_id}/os-extra_specs"
_HYPERVISOR = "/os-hypervisors/{id}"
_AGGREGATE = "/os-aggregates/{id}"
_HOST = "/os-hosts/{id}"
_NODE = "/os-baremetal-nodes/{id}"
_IMAGE = "/images/{image_id}/metadata"

_FLAVORS = "os_compute_api:os-flavor-manage:"
_EXTRA = "os_compute_api:os-flavor-extra-specs:"
_ACCESS = "os_compute_api:os-flavor-access"
_SERVICES = "os_compute_api:os-services:"
_HYPERVISORS = "os_compute_api:os-hypervisors:"
_HOSTS = "os_compute_api:os-hosts:"
_ZONES = "os_compute_api:os-availability-zone:"
_AGGREGATES = "os_compute_api:os-aggregates:"
_GROUPS = "os_compute_api:os-server-groups:"
_AUDIT_LOG = "os_compute_api:os-instance-usage-audit-log:"
_FLOATING = "os_compute_api:os-floating-ips:"
_SECURITY = "os_compute_api:os-security-groups:"
_VOLUMES = "os_compute_api:os-volumes:"
_ASSISTED = "os_compute_api:os-assisted-volume-snapshots:"
_SNAPSHOTS = "os_compute_api:os-volumes:snapshots:"
_MIGRATIONS = "/servers/{server_id}/migrations"
_SHARES = "/servers/{server_id}/shares"
_ATTACHMENTS = "/servers/{server_id}/os-volume_attachments"
_INTERFACES = "/servers/{server_id}/os-interface"

_ROUTES: tuple[Route, ...] = (
    Route("GET", "/versions/{id}", versions.show),
    Route("GET", "/extensions", extensions.index, "os_compute_api:extensions"),
    Route("GET", "/extensions/{id}", extensions.show, "os_compute_api:extensions"),

    # -- servers (the handlers check the policy, because the target's project is in the server) -----
    Route("GET", "/servers", servers_list.index),
    Route("GET", "/servers/detail", servers_list.detail),
    Route("POST", "/servers", servers_create.create, success=202),
    Route("GET", _SERVER, servers.show),
    Route("PUT", _SERVER, servers.update),
    Route("DELETE", _SERVER, servers.delete, success=204),
    Route("GET", f"{_SERVER}/metadata", metadata.index),
    Route("POST", f"{_SERVER}/metadata", metadata.create),
    Route("PUT", f"{_SERVER}/metadata", metadata.update_all),
    Route("GET", f"{_SERVER}/metadata/{{key}}", metadata.show),
    Route("PUT", f"{_SERVER}/metadata/{{key}}", metadata.update),
    Route("DELETE", f"{_SERVER}/metadata/{{key}}", metadata.delete, success=204),
    Route("GET", f"{_SERVER}/tags", tags.index, since=26),
    Route("PUT", f"{_SERVER}/tags", tags.update_all, since=26),
    Route("DELETE", f"{_SERVER}/tags", tags.delete_all, since=26, success=204),
    Route("GET", f"{_SERVER}/tags/{{tag}}", tags.show, since=26, success=204),
    Route("PUT", f"{_SERVER}/tags/{{tag}}", tags.update, since=26),
    Route("DELETE", f"{_SERVER}/tags/{{tag}}", tags.delete, since=26, success=204),
    Route("GET", f"{_SERVER}/ips", interfaces.ips),
    Route("GET", f"{_SERVER}/ips/{{label}}", interfaces.network_ips),
    Route("GET", f"{_SERVER}/topology", diagnostics.numa_cells, since=78),
    Route("GET", f"{_SERVER}/diagnostics", diagnostics.index),
    Route("GET", f"{_SERVER}/os-server-password", server_actions.show_password),
    Route("DELETE", f"{_SERVER}/os-server-password", server_actions.clear_password, success=204),

    # -- actions on a server ----------------------------------------------------------------------
    Route("POST", _ACTION, server_actions.start, success=202, action="os-start"),
    Route("POST", _ACTION, server_actions.stop, success=202, action="os-stop"),
    Route("POST", _ACTION, server_actions.reboot, success=202, action="reboot"),
    Route("POST", _ACTION, server_actions.pause, success=202, action="pause"),
    Route("POST", _ACTION, server_actions.unpause, success=202, action="unpause"),
    Route("POST", _ACTION, server_actions.suspend, success=202, action="suspend"),
    Route("POST", _ACTION, server_actions.resume, success=202, action="resume"),
    Route("POST", _ACTION, server_actions.lock, success=202, action="lock"),
    Route("POST", _ACTION, server_actions.unlock, success=202, action="unlock"),
    Route("POST", _ACTION, server_actions.reset_state, success=202, action="os-resetState"),
    Route("POST", _ACTION, server_actions.force_delete, success=202, action="forceDelete"),
    Route("POST", _ACTION, server_actions.restore, success=202, action="restore"),
    Route("POST", _ACTION, server_disks.rebuild, success=202, action="rebuild"),
    Route("POST", _ACTION, server_disks.rescue, action="rescue"),
    Route("POST", _ACTION, server_actions.unrescue, success=202, action="unrescue"),
    Route("POST", _ACTION, server_moves.resize, success=202, action="resize"),
    Route("POST", _ACTION, server_moves.confirm_resize, success=204, action="confirmResize"),
    Route("POST", _ACTION, server_moves.revert_resize, success=202, action="revertResize"),
    Route("POST", _ACTION, server_moves.migrate, success=202, action="migrate"),
    Route("POST", _ACTION, server_moves.live_migrate, success=202, action="os-migrateLive"),
    Route("POST", _ACTION, server_moves.evacuate, action="evacuate"),
    Route("POST", _ACTION, server_moves.shelve, success=202, action="shelve"),
    Route("POST", _ACTION, server_moves.shelve_offload, success=202, action="shelveOffload"),
    Route("POST", _ACTION, server_moves.unshelve, success=202, action="unshelve"),
    Route("POST", _ACTION, server_images.create_image, success=202, action="createImage"),
    Route("POST", _ACTION, server_images.create_backup, success=202, action="createBackup"),
    Route("POST", _ACTION, server_actions.add_security_group, success=202, action="addSecurityGroup"),
    Route("POST", _ACTION, server_actions.remove_security_group, success=202, action="removeSecurityGroup"),
    Route("POST", _ACTION, interfaces.add_fixed_ip, until=43, success=202, action="addFixedIp"),
    Route("POST", _ACTION, interfaces.remove_fixed_ip, until=43, success=202, action="removeFixedIp"),
    Route("POST", _ACTION, floating_ips.add, until=43, success=202, action="addFloatingIp"),
    Route("POST", _ACTION, floating_ips.remove, until=43, success=202, action="removeFloatingIp"),
    Route("POST", _ACTION, consoles.output, action="os-getConsoleOutput"),
    Route("POST", _ACTION, consoles.vnc, until=5, action="os-getVNCConsole"),
    Route("POST", _ACTION, consoles.spice, until=5, action="os-getSPICEConsole"),
    Route("POST", _ACTION, consoles.serial, until=5, action="os-getSerialConsole"),
    Route("POST", _ACTION, consoles.rdp, until=5, action="os-getRDPConsole"),
    Route("POST", _ACTION, server_actions.change_password, success=202, action="changePassword"),
    Route("POST", _ACTION, server_actions.trigger_crash_dump, since=17, success=202, action="trigger_crash_dump"),
    Route("POST", _ACTION, server_actions.inject_network_info, success=202, action="injectNetworkInfo"),
    Route("POST", _ACTION, legacy_routes.no_longer_available, action="resetNetwork"),

    # -- consoles ---------------------------------------------------------------------------------
    Route("POST", f"{_SERVER}/remote-consoles", consoles.create, since=6),
    Route("GET", "/os-console-auth-tokens/{id}", consoles.show_token, "os_compute_api:os-console-auth-tokens"),

    # -- key pairs (the handlers check the policy, because the user is in the query) --------------
    Route("GET", "/os-keypairs", keypairs.index),
    Route("POST", "/os-keypairs", keypairs.create, success={1: 200, 2: 201}),
    Route("GET", "/os-keypairs/{id}", keypairs.show),
    Route("DELETE", "/os-keypairs/{id}", keypairs.delete, success={1: 202, 2: 204}),

    # -- flavors ----------------------------------------------------------------------------------
    Route("GET", "/flavors", flavors.index),
    Route("POST", "/flavors", flavors.create, _FLAVORS + "create"),
    Route("GET", "/flavors/detail", flavors.detail),
    Route("GET", _FLAVOR, flavors.show),
    Route("PUT", _FLAVOR, flavors.update, _FLAVORS + "update", since=55),
    Route("DELETE", _FLAVOR, flavors.delete, _FLAVORS + "delete", success=202),
    Route("POST", f"{_FLAVOR}/action", flavors.add_access, f"{_ACCESS}:add_tenant_access", action="addTenantAccess"),
    Route("POST", f"{_FLAVOR}/action", flavors.remove_access, f"{_ACCESS}:remove_tenant_access",
          action="removeTenantAccess"),
    Route("GET", f"{_FLAVOR}/os-flavor-access", flavors.list_access, _ACCESS),
    Route("GET", _SPECS, flavors.list_specs, _EXTRA + "index"),
    Route("POST", _SPECS, flavors.create_specs, _EXTRA + "create"),
    Route("GET", f"{_SPECS}/{{id}}", flavors.show_spec, _EXTRA + "show"),
    Route("PUT", f"{_SPECS}/{{id}}", flavors.update_spec, _EXTRA + "update"),
    Route("DELETE", f"{_SPECS}/{{id}}", flavors.delete_spec, _EXTRA + "delete"),

    # -- images -----------------------------------------------------------------------------------
    Route("GET", "/images", images.index, until=35),
    Route("GET", "/images/detail", images.detail, until=35),
    Route("GET", "/images/{id}", images.show, until=35),
    Route("DELETE", "/images/{id}", images.delete, until=35, success=204),
    Route("GET", _IMAGE, image_metadata.index, until=38),
    Route("POST", _IMAGE, image_metadata.create, until=38),
    Route("PUT", _IMAGE, image_metadata.update_all, until=38),
    Route("GET", f"{_IMAGE}/{{id}}", image_metadata.show, until=38),
    Route("PUT", f"{_IMAGE}/{{id}}", image_metadata.update, until=38),
    Route("DELETE", f"{_IMAGE}/{{id}}", image_metadata.delete, until=38, success=204),

    # -- limits and quotas (the handlers check the policy, because the project is in the URL) -----
    Route("GET", "/limits", quotas.limits, "os_compute_api:limits"),
    Route("GET", "/os-quota-sets/{id}", quotas.show),
    Route("PUT", "/os-quota-sets/{id}", quotas.update),
    Route("DELETE", "/os-quota-sets/{id}", quotas.delete, success=202),
    Route("GET", "/os-quota-sets/{id}/detail", quotas.detail),
    Route("GET", "/os-quota-sets/{id}/defaults", quotas.defaults),
    Route("GET", "/os-quota-class-sets/{id}", quotas.show_class, "os_compute_api:os-quota-class-sets:show"),
    Route("PUT", "/os-quota-class-sets/{id}", quotas.update_class, "os_compute_api:os-quota-class-sets:update"),

    Route("GET", "/os-simple-tenant-usage", usages.index, "os_compute_api:os-simple-tenant-usage:list"),
    Route("GET", "/os-simple-tenant-usage/{id}", usages.show),
    Route("GET", "/os-instance_usage_audit_log", usages.audit_index, _AUDIT_LOG + "list"),
    Route("GET", "/os-instance_usage_audit_log/{id}", usages.audit_show, _AUDIT_LOG + "show"),

    # -- hosts ------------------------------------------------------------------------------------
    Route("GET", "/os-services", services.index, _SERVICES + "list"),
    Route("PUT", "/os-services/{id}", services.update, _SERVICES + "update"),
    Route("DELETE", "/os-services/{id}", services.delete, _SERVICES + "delete", success=204),
    Route("GET", "/os-hypervisors", hypervisors.index, _HYPERVISORS + "list"),
    Route("GET", "/os-hypervisors/detail", hypervisors.detail, _HYPERVISORS + "list-detail"),
    Route("GET", "/os-hypervisors/statistics", hypervisors.statistics, _HYPERVISORS + "statistics", until=87),
    Route("GET", _HYPERVISOR, hypervisors.show, _HYPERVISORS + "show"),
    Route("GET", f"{_HYPERVISOR}/search", hypervisors.search, _HYPERVISORS + "search", until=52),
    Route("GET", f"{_HYPERVISOR}/servers", hypervisors.servers, _HYPERVISORS + "servers", until=52),
    Route("GET", f"{_HYPERVISOR}/uptime", hypervisors.uptime, _HYPERVISORS + "uptime", until=87),
    Route("GET", "/os-hosts", hosts.index, _HOSTS + "list", until=42),
    Route("GET", _HOST, hosts.show, _HOSTS + "show", until=42),
    Route("PUT", _HOST, hosts.update, _HOSTS + "update", until=42),
    Route("GET", f"{_HOST}/reboot", hosts.reboot, _HOSTS + "reboot", until=42),
    Route("GET", f"{_HOST}/shutdown", hosts.shutdown, _HOSTS + "shutdown", until=42),
    Route("GET", f"{_HOST}/startup", hosts.startup, _HOSTS + "start", until=42),
    Route("GET", "/os-baremetal-nodes", hosts.no_ironic, "os_compute_api:os-baremetal-nodes:list", until=35),
    Route("POST", "/os-baremetal-nodes", hosts.create_node, until=35),
    Route("GET", _NODE, hosts.no_ironic, "os_compute_api:os-baremetal-nodes:show", until=35),
    Route("DELETE", _NODE, hosts.delete_node, until=35),
    Route("POST", f"{_NODE}/action", hosts.add_interface, until=35, action="add_interface"),
    Route("POST", f"{_NODE}/action", hosts.remove_interface, until=35, action="remove_interface"),
    Route("GET", "/os-availability-zone", services.zones, _ZONES + "list"),
    Route("GET", "/os-availability-zone/detail", services.zones_detail, _ZONES + "detail"),
    Route("GET", "/os-aggregates", aggregates.index, _AGGREGATES + "index"),
    Route("POST", "/os-aggregates", aggregates.create, _AGGREGATES + "create"),
    Route("GET", _AGGREGATE, aggregates.show, _AGGREGATES + "show"),
    Route("PUT", _AGGREGATE, aggregates.update, _AGGREGATES + "update"),
    Route("DELETE", _AGGREGATE, aggregates.delete, _AGGREGATES + "delete"),
    Route("POST", f"{_AGGREGATE}/images", aggregates.cache_images, "compute:aggregates:images", since=81, success=202),
    Route("POST", f"{_AGGREGATE}/action", aggregates.add_host, _AGGREGATES + "add_host", action="add_host"),
    Route("POST", f"{_AGGREGATE}/action", aggregates.remove_host, _AGGREGATES + "remove_host", action="remove_host"),
    Route("POST", f"{_AGGREGATE}/action", aggregates.set_metadata, _AGGREGATES + "set_metadata", action="set_metadata"),

    # -- resources that belong to servers ---------------------------------------------------------
    Route("GET", f"{_SERVER}/os-instance-actions", instance_actions.index),
    Route("GET", f"{_SERVER}/os-instance-actions/{{id}}", instance_actions.show),
    Route("GET", f"{_SERVER}/os-security-groups", security_groups.of_server),
    Route("GET", _INTERFACES, interfaces.index),
    Route("POST", _INTERFACES, interfaces.create),
    Route("GET", f"{_INTERFACES}/{{id}}", interfaces.show),
    Route("DELETE", f"{_INTERFACES}/{{id}}", interfaces.delete, success=202),
    Route("GET", "/os-migrations", migrations.index, "os_compute_api:os-migrations:index"),
    Route("GET", _MIGRATIONS, migrations.of_server, since=23),
    Route("GET", f"{_MIGRATIONS}/{{id}}", migrations.show, since=23),
    Route("DELETE", f"{_MIGRATIONS}/{{id}}", migrations.abort, since=24, success=202),
    Route("POST", f"{_MIGRATIONS}/{{id}}/action", migrations.force_complete, since=22, success=202,
          action="force_complete"),
    Route("POST", "/os-server-external-events", external_events.create,
          "os_compute_api:os-server-external-events:create"),
    Route("GET", "/os-server-groups", server_groups.index, _GROUPS + "index"),
    Route("POST", "/os-server-groups", server_groups.create, _GROUPS + "create"),
    Route("GET", "/os-server-groups/{id}", server_groups.show, _GROUPS + "show"),
    Route("DELETE", "/os-server-groups/{id}", server_groups.delete, _GROUPS + "delete", success=204),

    # -- networks ---------------------------------------------------------------------------------
    Route("GET", "/os-networks", networks.index, "os_compute_api:os-networks:list", until=35),
    Route("GET", "/os-networks/{id}", networks.show, "os_compute_api:os-networks:show", until=35),
    Route("GET", "/os-tenant-networks", networks.tenant_index, "os_compute_api:os-tenant-networks:list", until=35),
    Route("GET", "/os-tenant-networks/{id}", networks.tenant_show, "os_compute_api:os-tenant-networks:show", until=35),
    Route("GET", "/os-floating-ip-pools", floating_ips.pools, "os_compute_api:os-floating-ip-pools", until=35),
    Route("GET", "/os-floating-ips", floating_ips.index, _FLOATING + "list", until=35),
    Route("POST", "/os-floating-ips", floating_ips.create, _FLOATING + "create", until=35),
    Route("GET", "/os-floating-ips/{id}", floating_ips.show, _FLOATING + "show", until=35),
    Route("DELETE", "/os-floating-ips/{id}", floating_ips.delete, _FLOATING + "delete", until=35, success=202),
    Route("GET", "/os-security-groups", security_groups.index, _SECURITY + "get", until=35),
    Route("POST", "/os-security-groups", security_groups.create, _SECURITY + "create", until=35),
    Route("GET", "/os-security-groups/{id}", security_groups.show, _SECURITY + "show", until=35),
    Route("PUT", "/os-security-groups/{id}", security_groups.update, _SECURITY + "update", until=35),
    Route("DELETE", "/os-security-groups/{id}", security_groups.delete, _SECURITY + "delete", until=35, success=202),
    Route("POST", "/os-security-group-rules", security_groups.create_rule, _SECURITY + "rule:create", until=35),
    Route("DELETE", "/os-security-group-rules/{id}", security_groups.delete_rule, _SECURITY + "rule:delete", until=35,
          success=202),

    # -- volumes (for attachments the handlers check the policy) ---------------------------------
    Route("GET", "/os-volumes", volumes.index, _VOLUMES + "list", until=35),
    Route("POST", "/os-volumes", volumes.create, _VOLUMES + "create", until=35),
    Route("GET", "/os-volumes/detail", volumes.detail, _VOLUMES + "detail", until=35),
    Route("GET", "/os-volumes/{id}", volumes.show, _VOLUMES + "show", until=35),
    Route("DELETE", "/os-volumes/{id}", volumes.delete, _VOLUMES + "delete", until=35, success=202),
    Route("GET", "/os-snapshots", volumes.snapshots, _SNAPSHOTS + "list", until=35),
    Route("POST", "/os-snapshots", volumes.create_snapshot, _SNAPSHOTS + "create", until=35),
    Route("GET", "/os-snapshots/detail", volumes.snapshots_detail, _SNAPSHOTS + "detail", until=35),
    Route("GET", "/os-snapshots/{id}", volumes.show_snapshot, _SNAPSHOTS + "show", until=35),
    Route("DELETE", "/os-snapshots/{id}", volumes.delete_snapshot, _SNAPSHOTS + "delete", until=35, success=202),
    Route("POST", "/os-assisted-volume-snapshots", assisted_snapshots.create, _ASSISTED + "create"),
    Route("DELETE", "/os-assisted-volume-snapshots/{id}", assisted_snapshots.delete, _ASSISTED + "delete", success=204),
    Route("GET", _ATTACHMENTS, volume_attachments.index),
    Route("POST", _ATTACHMENTS, volume_attachments.create, success={1: 200, 101: 202}),
    Route("GET", f"{_ATTACHMENTS}/{{id}}", volume_attachments.show),
    Route("PUT", f"{_ATTACHMENTS}/{{id}}", volume_attachments.update, success=202),
    Route("DELETE", f"{_ATTACHMENTS}/{{id}}", volume_attachments.delete, success=202),
    Route("GET", _SHARES, shares.index, since=97),
    Route("POST", _SHARES, shares.create, since=97, success=201),
    Route("GET", f"{_SHARES}/{{id}}", shares.show, since=97),
    Route("DELETE", f"{_SHARES}/{{id}}", shares.delete, since=97, success=200),

    # -- removed resources ------------------------------------------------------------------------
    *legacy_routes.REMOVED)

_BOOT_PATHS = frozenset({"/servers", "/servers/detail", _SERVER})
_BOOT_ACTIONS = frozenset({"confirmResize", "revertResize", "reboot", "resize", "rebuild", "createImage", "os-start",
                           "os-stop", "trigger_crash_dump"})
_LAST_BOOT = 102


def _boot_routes() -> Iterator[Route]:
    """Yield the routes of os-volumes_boot, an alias of /servers until 2.102, also for servers without volumes."""
    for route in _ROUTES:
        aliased = route.path in _BOOT_PATHS or (route.path == _ACTION and route.action in _BOOT_ACTIONS)
        if aliased and route.since <= _LAST_BOOT:
            path = route.path.replace("/servers", "/os-volumes_boot", 1)
            yield dataclasses.replace(route, path=path, until=min(route.until, _LAST_BOOT))


ROUTES: tuple[Route, ...] = (*_ROUTES, *_boot_routes())


def table() -> tuple[Route, ...]:
    """Return all routes, including those that [api]legacy enables."""
    added = legacy_routes.served()
    return legacy_routes.added_to(ROUTES, added) if added else ROUTES
