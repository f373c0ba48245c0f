"""Commands for services, hypervisors, availability zones, host aggregates and versions of the API."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from nova.cli import find
from nova.cli.client import NEWEST, Nova
from nova.cli.declare import arg, doing, flag, listing, showing, table, without_none
from nova.cli.errors import NotFound, Refused, UsageError

_SERVICE = arg("service", metavar="SERVICE", help="id of a service, or the host of a nova-compute")
_HYPERVISOR = arg("hypervisor", metavar="HYPERVISOR", help="host name or id of a hypervisor")
# The first minor microversion that identifies services and hypervisors by UUIDs.
_UUIDS = 53


@listing(arg("--host", metavar="HOST", help="list services on this host"),
         arg("--binary", metavar="NAME", help="list services with this binary, such as nova-compute"))
def service_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List services (administrators)."""
    columns = {"Id": "id", "Binary": "binary", "Host": "host", "Zone": "zone", "Status": "status", "State": "state",
               "Updated_at": "updated_at", "Disabled Reason": "disabled_reason"}
    if nova.version >= 11:
        columns["Forced down"] = "forced_down"
    return table(columns, nova.get("/os-services", host=args.host, binary=args.binary)["services"])


def _change(nova: Nova, wanted: str, changes: Mapping[str, Any], action: str) -> Mapping[str, Any]:
    """Update a service and return its new state."""
    service = find.service(nova, wanted)
    if nova.version >= _UUIDS:
        return nova.put(f"/os-services/{service['id']}", dict(changes))["service"]  # type: ignore[no-any-return]
    if changes.get("disabled_reason"):
        action = "disable-log-reason"
    named = {"host": service["host"], "binary": service["binary"]}
    rest = {name: value for name, value in changes.items() if name != "status"}
    return nova.put(f"/os-services/{action}", named | rest)["service"]  # type: ignore[no-any-return]


def _row(service: Mapping[str, Any], columns: Mapping[str, str]) -> Any:
    return table({"ID": "id", "Host": "host", "Binary": "binary", **columns}, [service])


@listing(_SERVICE)
def service_enable(nova: Nova, args: argparse.Namespace) -> Any:
    """Enable a service: the scheduler selects its host again (administrators)."""
    return _row(_change(nova, args.service, {"status": "enabled"}, "enable"), {"Status": "status"})


@listing(_SERVICE, arg("--reason", metavar="TEXT", help="reason, shown by nova service-list"))
def service_disable(nova: Nova, args: argparse.Namespace) -> Any:
    """Disable a service: the scheduler no longer selects its host (administrators)."""
    reason = {"disabled_reason": args.reason} if args.reason else {}
    changed = _change(nova, args.service, {"status": "disabled", **reason}, "disable")
    return _row(changed, {"Status": "status", **({"Disabled Reason": "disabled_reason"} if args.reason else {})})


@listing(_SERVICE, flag("--unset", help="clear the forced-down state"), since=11)
def service_force_down(nova: Nova, args: argparse.Namespace) -> Any:
    """Force a service down regardless of its reports: the host is fenced (administrators)."""
    changed = _change(nova, args.service, {"forced_down": not args.unset}, "force-down")
    return _row(changed, {"Forced down": "forced_down"})


@doing(_SERVICE)
def service_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete a service (administrators). Stop its process first: a running process registers again."""
    nova.delete(f"/os-services/{find.service(nova, args.service)['id']}")


@listing(arg("--matching", metavar="HOST", help="list hypervisors whose host names contain this text"),
         arg("--marker", metavar="ID", since=33, help="last hypervisor of the previous page"),
         arg("--limit", metavar="N", type=int, since=33, help="maximum number of hypervisors"))
def hypervisor_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List hypervisors (administrators)."""
    if args.matching and nova.version < _UUIDS:
        hypervisors = nova.get(f"/os-hypervisors/{find.quoted(args.matching)}/search")["hypervisors"]
    else:
        hypervisors = nova.pages("/os-hypervisors", "hypervisors", limit=args.limit, marker=args.marker,
                                 hypervisor_hostname_pattern=args.matching)
    columns = {"ID": "id", "Hypervisor hostname": "hypervisor_hostname", "State": "state", "Status": "status"}
    return table(columns, sorted(hypervisors, key=lambda hypervisor: str(hypervisor["hypervisor_hostname"])))


@showing(_HYPERVISOR)
def hypervisor_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a hypervisor (administrators)."""
    hypervisor = nova.get(f"/os-hypervisors/{find.hypervisor(nova, args.hypervisor)['id']}")["hypervisor"]
    return dict(sorted(_flat(hypervisor)))


def _flat(document: Mapping[str, Any], prefix: str = "") -> Any:
    """Yield (name, value) of all entries; an entry of a nested document is named outer_inner."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", value


@showing(_HYPERVISOR)
def hypervisor_uptime(nova: Nova, args: argparse.Namespace) -> Any:
    """Show the uptime of the host of a hypervisor (administrators)."""
    path = f"/os-hypervisors/{find.hypervisor(nova, args.hypervisor)['id']}"
    # Since 2.88 the hypervisor document contains the uptime.
    hypervisor = nova.get(path if nova.version >= 88 else f"{path}/uptime")["hypervisor"]
    return {name: hypervisor.get(name) for name in ("hypervisor_hostname", "id", "state", "status", "uptime")}


@listing(arg("hostname", metavar="HOST", help="list servers on hypervisors whose host names contain this text"))
def hypervisor_servers(nova: Nova, args: argparse.Namespace) -> Any:
    """List the servers on hypervisors (administrators)."""
    if nova.version < _UUIDS:
        hypervisors = nova.get(f"/os-hypervisors/{find.quoted(args.hostname)}/servers")["hypervisors"]
    else:
        hypervisors = nova.get("/os-hypervisors", hypervisor_hostname_pattern=args.hostname,
                               with_servers="true")["hypervisors"]
    if not hypervisors:
        raise NotFound(f"No hypervisor's host name contains {args.hostname}; nova hypervisor-list lists the names.")
    return ("ID", "Name", "Hypervisor ID", "Hypervisor Hostname"), [
        (server["uuid"], server["name"], hypervisor["id"], hypervisor["hypervisor_hostname"])
        for hypervisor in hypervisors for server in hypervisor.get("servers") or ()]


@showing()
def hypervisor_stats(nova: Nova, _args: argparse.Namespace) -> Any:
    """Show the totals of all hypervisors (administrators; up to version 2.87 of the API)."""
    answer = nova.call("GET", "/os-hypervisors/statistics", version=min(nova.version, 87))
    return dict(sorted(answer["hypervisor_statistics"].items()))


@listing()
def availability_zone_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List availability zones; administrators also see their hosts and services."""
    try:
        zone_infos = nova.get("/os-availability-zone/detail")["availabilityZoneInfo"]
    except Refused as error:
        if error.status != 403:
            raise
        zone_infos = nova.get("/os-availability-zone")["availabilityZoneInfo"]
    rows: list[tuple[str, str]] = []
    for zone in sorted(zone_infos, key=lambda info: str(info["zoneName"])):
        rows.append((zone["zoneName"], "available" if zone["zoneState"]["available"] else "not available"))
        for host, binaries in sorted((zone["hosts"] or {}).items()):
            rows.append((f"|- {host}", ""))
            rows += [(f"| |- {binary}", f"{'enabled' if state['active'] else 'disabled'} "
                      f"{':-)' if state['available'] else 'XXX'} {state['updated_at']}")
                     for binary, state in sorted(binaries.items())]
    return ("Name", "Status"), rows


@listing()
def version_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List the versions of the API and the selected version."""
    print(f"This client supports 2.1 to 2.{NEWEST} and uses 2.{nova.version}.", file=sys.stderr)
    return table({"Id": "id", "Status": "status", "Updated": "updated", "Min Version": "min_version",
                  "Version": "version"}, nova.versions(every=True)["versions"])


# --- aggregates ------------------------------------------------------------------------------------------
_AGGREGATE = arg("aggregate", metavar="AGGREGATE", help="name or id of an aggregate")
_HOST = arg("host", metavar="HOST", help="name of a host")
# The first minor microversion with UUIDs of aggregates.
_AGGREGATE_UUIDS = 41


def _detail(nova: Nova, aggregate: Mapping[str, Any]) -> Any:
    columns = ("Id", "Name", "Availability Zone", "Hosts", "Metadata")
    row = (aggregate["id"], aggregate["name"], aggregate["availability_zone"], _quoted(aggregate["hosts"]),
           _quoted(f"{name}={value}" for name, value in sorted(aggregate["metadata"].items())))
    if nova.version < _AGGREGATE_UUIDS:
        return columns, [row]
    return (*columns, "UUID"), [(*row, aggregate["uuid"])]


def _quoted(words: Any) -> str:
    return ", ".join(f"'{word}'" for word in words)


@listing()
def aggregate_list(nova: Nova, _args: argparse.Namespace) -> Any:
    """List aggregates (administrators)."""
    columns = {"Id": "id", "Name": "name", "Availability Zone": "availability_zone"}
    if nova.version >= _AGGREGATE_UUIDS:
        columns["UUID"] = "uuid"
    return table(columns, nova.get("/os-aggregates")["aggregates"])


@listing(_AGGREGATE)
def aggregate_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show an aggregate (administrators)."""
    return _detail(nova, find.aggregate(nova, args.aggregate))


@listing(arg("name", metavar="NAME"), arg("availability_zone", metavar="ZONE", nargs="?", help="zone of the hosts"))
def aggregate_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create an aggregate (administrators)."""
    wanted = {"name": args.name, "availability_zone": args.availability_zone}
    made = nova.post("/os-aggregates", {"aggregate": wanted})["aggregate"]
    # the response of the creation lacks hosts and metadata
    return _detail(nova, nova.get(f"/os-aggregates/{made['id']}")["aggregate"])


@doing(_AGGREGATE)
def aggregate_delete(nova: Nova, args: argparse.Namespace) -> None:
    """Delete an aggregate (administrators)."""
    aggregate = find.aggregate(nova, args.aggregate)
    nova.delete(f"/os-aggregates/{aggregate['id']}")
    print(f"Aggregate {aggregate['id']} has been successfully deleted.")


@listing(_AGGREGATE, arg("--name", metavar="NAME", help="the new name"),
         arg("--availability-zone", metavar="ZONE", help="availability zone of the hosts"))
def aggregate_update(nova: Nova, args: argparse.Namespace) -> Any:
    """Update the name or the availability zone of an aggregate (administrators)."""
    changes = without_none({"name": args.name, "availability_zone": args.availability_zone})
    if not changes:
        raise UsageError("Nothing to change: specify --name or --availability-zone")
    path = f"/os-aggregates/{find.aggregate(nova, args.aggregate)['id']}"
    return _detail(nova, nova.put(path, {"aggregate": changes})["aggregate"])


def _act(nova: Nova, args: argparse.Namespace, action: str, value: Mapping[str, Any]) -> Any:
    path = f"/os-aggregates/{find.aggregate(nova, args.aggregate)['id']}/action"
    return _detail(nova, nova.post(path, {action: value})["aggregate"])


@listing(_AGGREGATE, arg("metadata", metavar="KEY=VALUE", nargs="+", help="metadata to set, or KEY to delete it"))
def aggregate_set_metadata(nova: Nova, args: argparse.Namespace) -> Any:
    """Set or delete metadata of an aggregate (administrators)."""
    pairs = [word.partition("=") for word in args.metadata]
    return _act(nova, args, "set_metadata",
                {"metadata": {key: value if equals else None for key, equals, value in pairs}})


@doing(_AGGREGATE, arg("images", metavar="IMAGE", nargs="+", help="names or ids of images"), since=81)
def aggregate_cache_images(nova: Nova, args: argparse.Namespace) -> None:
    """Cache images on the hosts of an aggregate, so that later boots need no download (administrators)."""
    path = f"/os-aggregates/{find.aggregate(nova, args.aggregate)['id']}/images"
    nova.post(path, {"cache": [{"id": find.image(nova, image)["id"]} for image in args.images]})


@listing(_AGGREGATE, _HOST)
def aggregate_add_host(nova: Nova, args: argparse.Namespace) -> Any:
    """Add a host to an aggregate (administrators)."""
    return _act(nova, args, "add_host", {"host": args.host})


@listing(_AGGREGATE, _HOST)
def aggregate_remove_host(nova: Nova, args: argparse.Namespace) -> Any:
    """Remove a host from an aggregate (administrators)."""
    return _act(nova, args, "remove_host", {"host": args.host})
