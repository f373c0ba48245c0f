"""extensions: a fixed list for old clients. All of these extensions are part of the API."""

import re
from typing import Any

from nova.api import errors
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Object
from nova.api.validation.types import STRING

_EXTENSIONS = """
NMN=Multinic OS-DCF=DiskConfig OS-EXT-AZ=ExtendedAvailabilityZone OS-EXT-IMG-SIZE=ImageSize OS-EXT-IPS=ExtendedIps
OS-EXT-IPS-MAC=ExtendedIpsMac OS-EXT-SRV-ATTR=ExtendedServerAttributes OS-EXT-STS=ExtendedStatus
OS-FLV-DISABLED=FlavorDisabled OS-FLV-EXT-DATA=FlavorExtraData OS-SCH-HNT=SchedulerHints OS-SRV-USG=ServerUsage
os-access-ips=AccessIPs os-admin-actions os-admin-password os-agents os-aggregates os-assisted-volume-snapshots
os-attach-interfaces os-availability-zone os-baremetal-ext-status=BareMetalExtStatus os-baremetal-nodes=BareMetalNodes
os-block-device-mapping os-block-device-mapping-v2-boot os-cell-capacities os-cells os-certificates os-cloudpipe
os-cloudpipe-update os-config-drive os-console-auth-tokens os-console-output os-consoles os-create-backup
os-create-server-ext=Createserverext os-deferred-delete os-evacuate os-extended-evacuate-find-host
os-extended-floating-ips os-extended-hypervisors os-extended-networks os-extended-quotas os-extended-rescue-with-image
os-extended-services os-extended-services-delete os-extended-status os-extended-volumes os-fixed-ips=FixedIPs
os-flavor-access os-flavor-extra-specs os-flavor-manage os-flavor-rxtx os-flavor-swap os-floating-ip-dns
os-floating-ip-pools os-floating-ips os-floating-ips-bulk os-fping os-hide-server-addresses os-hosts
os-hypervisor-status os-hypervisors os-instance-actions os-instance_usage_audit_log=OSInstanceUsageAuditLog
os-keypairs os-lock-server os-migrate-server os-migrations os-multiple-create os-networks
os-networks-associate=NetworkAssociationSupport os-pause-server os-personality
os-preserve-ephemeral-rebuild=PreserveEphemeralOnRebuild os-quota-class-sets=QuotaClasses os-quota-sets=Quotas
os-rescue os-security-group-default-rules os-security-groups os-server-diagnostics os-server-external-events
os-server-group-quotas os-server-groups os-server-list-multi-status os-server-password os-server-sort-keys
os-server-start-stop os-services os-shelve os-simple-tenant-usage os-suspend-server
os-tenant-networks=OSTenantNetworks os-used-limits os-used-limits-for-admin os-user-data os-user-quotas
os-virtual-interfaces os-volume-attachment-update os-volumes
"""

# Alias -> name. An alias without a name above gets one of the form FlavorAccess for os-flavor-access.
_NAMES = {alias: name or "".join(word[0].upper() + word[1:] for word in alias.removeprefix("os-").split("-"))
          for alias, _, name in (item.partition("=") for item in _EXTENSIONS.split())}
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")

_EXTENSION = Object({"alias": STRING, "name": STRING, "description": STRING, "namespace": STRING, "updated": STRING,
                     "links": Array(Object())})


def _show(alias: str) -> dict[str, Any]:
    name = _NAMES[alias].replace("_", " ")
    return {"alias": alias, "name": name, "description": f"{_WORDS.sub(' ', name).capitalize()}.", "links": [],
            "namespace": "http://docs.openstack.org/compute/ext/fake_xml", "updated": "2014-12-03T00:00:00Z"}


@accepts(answer=Object({"extensions": Array(_EXTENSION)}))
def index(_req: Request) -> dict[str, Any]:
    """List the extensions."""
    return {"extensions": [_show(alias) for alias in _NAMES]}


@accepts(answer=Object({"extension": _EXTENSION}))
def show(req: Request) -> dict[str, Any]:
    """Show an extension."""
    if req.params["id"] not in _NAMES:
        raise errors.RouteNotFound()
    return {"extension": _show(req.params["id"])}
