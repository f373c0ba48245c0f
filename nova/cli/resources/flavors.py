"""Commands for flavors, extra specs and access lists."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from nova.cli import find
from nova.cli.client import Nova
from nova.cli.declare import arg, doing, flag, listing, showing, truth
from nova.cli.errors import CommandError, UsageError
from nova.cli.resources.servers import change_items

FLAVOR = arg("flavor", metavar="FLAVOR", help="name or id of a flavor")
_COLUMNS = {"ID": "id", "Name": "name", "Memory_MiB": "ram", "Disk": "disk", "Ephemeral": "OS-FLV-EXT-DATA:ephemeral",
            "Swap": "swap", "VCPUs": "vcpus", "RXTX_Factor": "rxtx_factor", "Is_Public": "os-flavor-access:is_public"}
# The newest minor microversion that has rxtx_factor.
_LAST_RXTX = 101


def _table(flavors: Sequence[Mapping[str, Any]], extra_specs: bool = False) -> Any:
    columns = _COLUMNS | ({"extra_specs": "extra_specs"} if extra_specs else {}) | {"Description": "description"}
    if not any("rxtx_factor" in flavor for flavor in flavors):
        del columns["RXTX_Factor"]
    return tuple(columns), [tuple(_value(flavor, name) for name in columns.values()) for flavor in flavors]


def _value(flavor: Mapping[str, Any], name: str) -> Any:
    value = flavor.get(name)
    return 0 if name == "swap" and value == "" else value


@listing(flag("--extra-specs", help="also show extra specs"), flag("--all", help="also list private flavors"),
         arg("--marker", metavar="ID", help="last flavor of the previous page"),
         arg("--limit", metavar="N", type=int, help="maximum number of flavors"),
         arg("--min-disk", metavar="GIB"), arg("--min-ram", metavar="MIB"),
         arg("--sort-key", metavar="KEY"), arg("--sort-dir", choices=("asc", "desc")))
def flavor_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List flavors."""
    flavors = list(nova.pages(
        "/flavors/detail", "flavors", limit=args.limit, marker=args.marker, minDisk=args.min_disk, minRam=args.min_ram,
        sort_key=args.sort_key, sort_dir=args.sort_dir, is_public="None" if args.all else None))
    return _table([_with_specs(nova, flavor) for flavor in flavors] if args.extra_specs else flavors, args.extra_specs)


def _with_specs(nova: Nova, flavor: Mapping[str, Any]) -> Mapping[str, Any]:
    if "extra_specs" in flavor:  # since 2.61 flavors contain their extra specs
        return flavor
    return {**flavor, "extra_specs": nova.get(f"/flavors/{flavor['id']}/os-extra_specs")["extra_specs"]}


@showing(FLAVOR)
def flavor_show(nova: Nova, args: argparse.Namespace) -> Any:
    """Show a flavor."""
    flavor = _with_specs(nova, find.flavor(nova, args.flavor))
    return {name: _value(flavor, name) for name in sorted(flavor) if name != "links"}


@listing(arg("name", metavar="NAME"), arg("id", metavar="ID", help="id of the flavor; auto: a new UUID"),
         arg("ram", metavar="RAM", type=int, help="memory in MiB"),
         arg("disk", metavar="DISK", type=int, help="size of the root disk in GiB"),
         arg("vcpus", metavar="VCPUS", type=int), arg("--ephemeral", type=int, metavar="GIB", default=0),
         arg("--swap", type=int, metavar="MIB", default=0),
         arg("--rxtx-factor", type=float, metavar="FACTOR", help="RX/TX factor; up to API version 2.101"),
         arg("--is-public", type=truth, metavar="BOOLEAN", default=True, help="visible to all projects (default: yes)"),
         arg("--description", metavar="TEXT", since=55))
def flavor_create(nova: Nova, args: argparse.Namespace) -> Any:
    """Create a flavor (administrators)."""
    flavor = {"name": args.name, "id": None if args.id == "auto" else args.id, "ram": args.ram, "disk": args.disk,
              "vcpus": args.vcpus, "OS-FLV-EXT-DATA:ephemeral": args.ephemeral, "swap": args.swap,
              "os-flavor-access:is_public": args.is_public}
    if args.rxtx_factor is not None:
        if nova.version > _LAST_RXTX:
            raise UsageError(f"--rxtx-factor was removed in 2.{_LAST_RXTX + 1} of the API "
                             "(use --os-compute-api-version 2.101)")
        flavor["rxtx_factor"] = args.rxtx_factor
    if args.description is not None:
        flavor["description"] = args.description
    return _table([nova.post("/flavors", {"flavor": flavor})["flavor"]])


@listing(FLAVOR)
def flavor_delete(nova: Nova, args: argparse.Namespace) -> Any:
    """Delete a flavor (administrators)."""
    flavor = find.flavor(nova, args.flavor)
    nova.delete(f"/flavors/{flavor['id']}")
    return _table([flavor])


@listing(FLAVOR, arg("description", metavar="DESCRIPTION", help='new description; "" removes it'), since=55)
def flavor_update(nova: Nova, args: argparse.Namespace) -> Any:
    """Update the description of a flavor (administrators)."""
    body = {"flavor": {"description": args.description or None}}
    return _table([nova.put(f"/flavors/{find.flavor(nova, args.flavor)['id']}", body)["flavor"]])


@doing(FLAVOR, arg("action", choices=("set", "unset")),
       arg("specs", metavar="KEY=VALUE", nargs="+", help="extra specs to set or unset; unset needs only KEY"))
def flavor_key(nova: Nova, args: argparse.Namespace) -> None:
    """Set or unset extra specs of a flavor (administrators)."""
    change_items(nova, f"/flavors/{find.flavor(nova, args.flavor)['id']}/os-extra_specs", "extra_specs", args.action,
                 args.specs)


_ACCESS = ("Flavor_ID", "Tenant_ID")


@listing(arg("--flavor", metavar="FLAVOR", required=True, help="name or id of a flavor"))
def flavor_access_list(nova: Nova, args: argparse.Namespace) -> Any:
    """List the projects with access to a private flavor (administrators)."""
    flavor = find.flavor(nova, args.flavor)
    if flavor["os-flavor-access:is_public"]:
        raise CommandError(f"Flavor {flavor['name']} is public: all projects have access.")
    return _access(nova.get(f"/flavors/{flavor['id']}/os-flavor-access"))


def _access(answer: Any) -> Any:
    return _ACCESS, [(entry["flavor_id"], entry["tenant_id"]) for entry in answer["flavor_access"]]


def _change_access(nova: Nova, args: argparse.Namespace, action: str) -> Any:
    path = f"/flavors/{find.flavor(nova, args.flavor)['id']}/action"
    return _access(nova.post(path, {action: {"tenant": find.project(nova, args.tenant)}}))


@listing(FLAVOR, arg("tenant", metavar="PROJECT"))
def flavor_access_add(nova: Nova, args: argparse.Namespace) -> Any:
    """Grant a project access to a flavor (administrators)."""
    return _change_access(nova, args, "addTenantAccess")


@listing(FLAVOR, arg("tenant", metavar="PROJECT"))
def flavor_access_remove(nova: Nova, args: argparse.Namespace) -> Any:
    """Revoke the access of a project to a flavor (administrators)."""
    return _change_access(nova, args, "removeTenantAccess")
