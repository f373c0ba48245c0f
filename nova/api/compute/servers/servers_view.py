"""The representation of servers, by microversion, as one table."""

from collections.abc import Mapping
from typing import Any

from nova.api.request import Request, iso, iso_precise
from nova.api.validation.fields import ABSENT, Array, Object, Out, View
from nova.api.validation.types import ANY, INTEGER, LINKS, OPEN, STRING, STRING_OR_NULL, TRUTH
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.instance import Instance

# Seconds for which an API process caches the status of all hosts.
_HOSTS_FRESH = 3.0

# Prefixes of image properties that Nova reads; Nova ignores other properties.
_IMAGE_PREFIXES = ("hw_", "img_", "os_", "trait:")
_IMAGE_NAMES = frozenset({
    "architecture", "auto_disk_config", "bdm_v2", "block_device_mapping", "bittorrent", "cache_in_nova",
    "hypervisor_type", "hypervisor_version_requires", "ipxe_boot", "kernel_id", "mappings", "owner_id", "ramdisk_id",
    "root_device_name", "vm_mode", "vmware_disktype", "vmware_image_version", "vmware_linked_clone", "vmware_ostype"})


class ViewContext:
    """The permissions and configuration that decide how servers are shown, read once per request."""

    def __init__(self, req: Request, precise_addresses: bool = True, admin_pass: str | None = None) -> None:
        """``precise_addresses``: show type and MAC address. ``admin_pass``: the server's new password, if shown."""
        self.req, self.version = req, req.version
        self.admin_pass, self.precise_addresses = admin_pass, precise_addresses
        self.extended = req.allowed("os_compute_api:os-extended-server-attributes")
        self.flavor_specs = req.version >= 47 and req.allowed("os_compute_api:servers:show:flavor-extra-specs")
        self.glance = CONF.api.glance_link_prefix.rstrip("/") if CONF.api.glance_link_prefix else None
        self.names = CONF.instance_name_template
        self.host_status = None
        if req.version >= 16:
            rule = "os_compute_api:servers:show:host_status"
            self.host_status = (
                "all" if req.allowed(rule) else "unknown" if req.allowed(f"{rule}:unknown-only") else None)
        self._hosts: dict[str, str] | None = None

    def status_of(self, host: str) -> str:
        if self._hosts is None:
            self._hosts = self.req.clients.cached("host status", _HOSTS_FRESH, self._all_hosts)
        return self._hosts.get(host, "UNKNOWN")

    def _all_hosts(self) -> dict[str, str]:
        services = self.req.clients.services.index(self.req.ctx, binary="nova-compute")
        return {service.host: "DOWN" if service.forced_down else "MAINTENANCE" if service.disabled
                else "UP" if service.up else "UNKNOWN" for service in services}


def addresses(server: Instance, precise: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the addresses by network; ``precise`` adds the type and the MAC address."""
    shown: dict[str, list[dict[str, Any]]] = {}
    if server.vm_state == states.BUILDING:
        return shown
    for vif in server.network_info:
        listed = [("fixed", fixed.version, fixed.address) for fixed in vif.fixed_ips]
        if vif.floating:
            listed.append(("floating", 4, vif.floating))
        for kind, version, address in listed:
            item: dict[str, Any] = {"version": version, "addr": address}
            if precise:
                item |= {"OS-EXT-IPS:type": kind, "OS-EXT-IPS-MAC:mac_addr": vif.mac}
            shown.setdefault(vif.label, []).append(item)
    return shown


def _image(server: Instance, view: ViewContext) -> Any:
    if not server.image_ref:
        return ""
    link = view.req.bookmark("images", server.image_ref)
    if view.glance:
        link["href"] = f"{view.glance}/images/{server.image_ref}"
    shown: dict[str, Any] = {"id": server.image_ref, "links": [link]}
    if view.version >= 98:
        properties = server.image.properties if server.image else {}
        shown["properties"] = {name: value for name, value in properties.items()
                               if name in _IMAGE_NAMES or name.startswith(_IMAGE_PREFIXES)}
    return shown


def _flavor(server: Instance, view: ViewContext) -> dict[str, Any]:
    flavor = server.flavor
    if view.version < 47:
        return {"id": flavor.flavorid, "links": [view.req.bookmark("flavors", flavor.flavorid)]}
    shown: dict[str, Any] = {"vcpus": flavor.vcpus, "ram": flavor.memory_mb, "disk": flavor.root_gb,
                             "ephemeral": flavor.ephemeral_gb, "swap": flavor.swap, "original_name": flavor.name}
    if view.flavor_specs:
        shown["extra_specs"] = flavor.extra_specs
    return shown


def _fault(server: Instance, view: ViewContext) -> Any:
    fault = server.fault
    if fault is None or server.status not in ("ERROR", "DELETED"):
        return ABSENT
    shown: dict[str, Any] = {"code": fault.code, "created": iso(fault.created), "message": fault.message}
    # Details of a fault can contain internals such as tracebacks, so only administrators see them.
    if fault.details and view.req.ctx.is_admin:
        shown["details"] = fault.details
    return shown


def _host_status(server: Instance, view: ViewContext) -> Any:
    if view.host_status is None:
        return ABSENT
    status = view.status_of(server.host) if server.host else ""
    return status if view.host_status == "all" or status == "UNKNOWN" else ABSENT


def _volumes(server: Instance, view: ViewContext) -> list[dict[str, Any]]:
    if view.version < 3:
        return [{"id": disk.volume_id} for disk in server.volumes]
    return [{"id": disk.volume_id, "delete_on_termination": disk.delete_on_termination} for disk in server.volumes]


def _extended(attribute: str) -> Any:
    """Return a field that requires the policy os-extended-server-attributes."""
    return lambda server, view: getattr(server, attribute) if view.extended else ABSENT


# Name, type, getter, and first version of the field in show, in detail and in the response to PUT (None: never).
_TABLE: tuple[tuple[str, Any, Any, int, int | None, int | None], ...] = (
    ("id", STRING, "uuid", 1, 1, 1),
    ("name", STRING, "display_name", 1, 1, 1),
    ("status", STRING, "status", 1, 1, 1),
    ("tenant_id", STRING, "project_id", 1, 1, 1),
    ("user_id", STRING, "user_id", 1, 1, 1),
    ("metadata", OPEN, "metadata", 1, 1, 1),
    ("hostId", STRING, "host_id", 1, 1, 1),
    ("image", ANY, _image, 1, 1, 1),
    ("flavor", OPEN, _flavor, 1, 1, 1),
    ("created", STRING, lambda server, _view: iso(server.created_at), 1, 1, 1),
    ("updated", STRING, lambda server, _view: iso(server.updated_at or server.created_at), 1, 1, 1),
    ("addresses", OPEN, lambda server, view: addresses(server, view.precise_addresses), 1, 1, 1),
    ("accessIPv4", STRING, lambda server, _view: server.access_ip_v4 or "", 1, 1, 1),
    ("accessIPv6", STRING, lambda server, _view: server.access_ip_v6 or "", 1, 1, 1),
    ("links", LINKS, lambda server, view: view.req.links("servers", server.uuid), 1, 1, 1),
    ("OS-DCF:diskConfig", STRING, "disk_config", 1, 1, 1),
    ("progress", INTEGER,
     lambda server, _view: server.progress if server.status in states.PROGRESS_STATUSES else ABSENT, 1, 1, 1),
    ("fault", OPEN, _fault, 1, 1, 1),
    ("OS-EXT-AZ:availability_zone", STRING, lambda server, _view: server.availability_zone or "", 1, 1, 75),
    ("config_drive", STRING, lambda server, _view: "True" if server.config_drive else "", 1, 1, 75),
    ("key_name", STRING_OR_NULL, lambda server, _view: server.key.name if server.key else None, 1, 1, 75),
    ("OS-SRV-USG:launched_at", STRING_OR_NULL, lambda server, _view: iso_precise(server.launched_at), 1, 1, 75),
    ("OS-SRV-USG:terminated_at", STRING_OR_NULL, lambda server, _view: iso_precise(server.terminated_at), 1, 1, 75),
    ("security_groups", Array(Object({"name": STRING})),
     lambda server, _view: [{"name": name} for name in server.security_groups] or ABSENT, 1, 1, 75),
    ("OS-EXT-STS:task_state", STRING_OR_NULL, "task_state", 1, 1, 75),
    ("OS-EXT-STS:vm_state", STRING, "vm_state", 1, 1, 75),
    ("OS-EXT-STS:power_state", INTEGER, "power_state", 1, 1, 75),
    ("os-extended-volumes:volumes_attached", Array(OPEN), _volumes, 1, 1, 75),
    ("OS-EXT-SRV-ATTR:host", STRING_OR_NULL, _extended("host"), 1, 1, 75),
    ("OS-EXT-SRV-ATTR:hypervisor_hostname", STRING_OR_NULL, _extended("node"), 1, 1, 75),
    ("OS-EXT-SRV-ATTR:instance_name", STRING,
     lambda server, view: server.name_by(view.names) if view.extended else ABSENT, 1, 1, 75),
    ("OS-EXT-SRV-ATTR:reservation_id", STRING, _extended("reservation_id"), 3, 3, 75),
    ("OS-EXT-SRV-ATTR:launch_index", INTEGER, _extended("launch_index"), 3, 3, 75),
    ("OS-EXT-SRV-ATTR:hostname", STRING,
     lambda server, view: server.hostname if view.version >= 90 or view.extended else ABSENT, 3, 3, 75),
    ("OS-EXT-SRV-ATTR:kernel_id", STRING, _extended("kernel_id"), 3, 3, 75),
    ("OS-EXT-SRV-ATTR:ramdisk_id", STRING, _extended("ramdisk_id"), 3, 3, 75),
    ("OS-EXT-SRV-ATTR:root_device_name", STRING_OR_NULL, _extended("root_device_name"), 3, 3, 75),
    ("OS-EXT-SRV-ATTR:user_data", STRING_OR_NULL, _extended("user_data"), 3, 3, 75),
    ("locked", TRUTH, "locked", 9, 9, 9),
    ("host_status", STRING, _host_status, 16, 16, 75),
    ("description", STRING_OR_NULL, "display_description", 19, 19, 19),
    ("tags", Array(STRING), "tags", 26, 26, 26),
    ("trusted_image_certificates", Array(STRING, null=True), "trusted_certs", 63, 63, 63),
    ("server_groups", Array(STRING),
     lambda server, _view: [server.server_group] if server.server_group else [], 71, None, 71),
    ("locked_reason", STRING_OR_NULL, "locked_reason", 73, 73, 73),
    ("pinned_availability_zone", STRING_OR_NULL, "pinned_availability_zone", 96, 96, 96),
    ("scheduler_hints", OPEN, "scheduler_hints", 100, 100, 100))


def _keys(column: int, changes: Mapping[str, int | None] | None = None) -> list[Out]:
    """Return the keys of a view. ``column``: 0 show, 1 detail, 2 PUT; ``changes``: replaced versions by key."""
    rows = [(row[:3], (changes or {}).get(row[0], row[3:][column])) for row in _TABLE]
    return [Out(*key, since=since) for key, since in rows if since is not None]


SHOW, DETAIL, UPDATE = View(_keys(0)), View(_keys(1)), View(_keys(2))
# The response to rebuild differs from that to PUT in these fields.
REBUILD = View([*_keys(2, {"key_name": 54, "OS-EXT-SRV-ATTR:user_data": None}),
                Out("user_data", STRING_OR_NULL, "user_data", since=57),
                Out("adminPass", STRING, lambda _server, view: view.admin_pass or ABSENT)])
BRIEF = View([Out("id", STRING, "uuid"), Out("name", STRING, "display_name"),
              Out("links", LINKS, lambda server, view: view.req.links("servers", server.uuid))])
