"""Things by name or id. Each function raises NotFound, and names the candidates where a name is not enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova.cli.client import Nova
from nova.cli.errors import CommandError, NotFound, Refused

Thing = Mapping[str, Any]
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_CANDIDATES = 10


def is_id(text: str) -> bool:
    """Whether it may be a uuid."""
    return _UUID.fullmatch(text) is not None


def one_of(kind: str, wanted: str, found: Iterable[Thing], ids: Iterable[str] = ("id",), command: str = "") -> Thing:
    """The one whose id, else whose name is ``wanted``; ``command`` lists what there is."""
    things = list(found)
    for key in (*ids, "name"):
        fitting = [thing for thing in things if str(thing.get(key)) == wanted]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            listed = [f"  {thing['id']}  {thing.get('name', '')}  {thing.get('status') or ''}".rstrip()
                      for thing in fitting[:_CANDIDATES]]
            more = [f"  and {len(fitting) - _CANDIDATES} more"] if len(fitting) > _CANDIDATES else []
            raise NotFound("\n".join((f"There are {len(fitting)} {kind}s with the name {wanted}; use an id:",
                                      *listed, *more)))
    hint = f" {command} shows what there is." if command else ""
    raise NotFound(f"There is no {kind} with the name or id {wanted}.{hint}")


def server(nova: Nova, wanted: str, all_tenants: bool = False) -> Thing:
    """A server as the API shows it, or as it lists it."""
    if is_id(wanted):
        shown = _or_none(lambda: nova.get(f"/servers/{wanted}"))
        if shown is not None:
            return shown["server"]  # type: ignore[no-any-return]
    found = nova.pages("/servers/detail", "servers", name=f"^{re.escape(wanted)}$",
                       all_tenants="1" if all_tenants else None)
    try:
        return one_of("server", wanted, found)
    except NotFound as error:
        if "There is no" not in str(error):
            raise
        hint = "" if all_tenants else " in this project (an administrator names servers of others by id)"
        raise NotFound(f"There is no server with the name or id {wanted}{hint}. "
                       "nova list shows what there is.") from None


def _or_none(ask: Callable[[], Any]) -> Any:
    """What was asked for; None if there is no such thing, or it cannot be an id."""
    try:
        return ask()
    except Refused as error:
        if error.status in (400, 404):
            return None
        raise


def flavor(nova: Nova, wanted: str) -> Thing:
    """Also one that is not public."""
    shown = _or_none(lambda: nova.get(f"/flavors/{quoted(wanted)}"))
    if shown is not None:
        return shown["flavor"]  # type: ignore[no-any-return]
    return one_of("flavor", wanted, nova.pages("/flavors/detail", "flavors", is_public="None"),
                  command="nova flavor-list --all")


def quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def images(nova: Nova) -> list[Thing]:
    """Of the image service; without one, those that the API passes on."""
    if not nova.has("image"):
        return list(nova.get("/images/detail", version=35)["images"])
    found: list[Thing] = []
    query: dict[str, Any] = {"limit": 1000}
    while True:
        answer = nova.ask("image", "GET", "/images", **query)
        found += answer["images"]
        if "next" not in answer:
            return found
        query["marker"] = answer["images"][-1]["id"]


def image(nova: Nova, wanted: str) -> Thing:
    """As images()."""
    if is_id(wanted):
        if nova.has("image"):
            shown = _or_none(lambda: nova.ask("image", "GET", f"/images/{wanted}"))
        else:
            shown = (_or_none(lambda: nova.get(f"/images/{wanted}", version=35)) or {}).get("image")
        if shown is not None:
            return shown  # type: ignore[no-any-return]
    return one_of("image", wanted, images(nova), command="nova image-list")


def networks(nova: Nova) -> list[Thing]:
    """Of the network service; without one, the embedded ones, whose name the API calls label."""
    if nova.has("network"):
        return list(nova.ask("network", "GET", "/networks")["networks"])
    return [{**found, "name": found["label"]} for found in nova.get("/os-tenant-networks", version=35)["networks"]]


def network(nova: Nova, wanted: str) -> Thing:
    """As networks()."""
    return one_of("network", wanted, networks(nova), command="nova network-list")


def volume(nova: Nova, wanted: str) -> Thing:
    """Of the volume service; without one, an embedded volume. An id is taken as it is."""
    if is_id(wanted):
        return {"id": wanted}
    if nova.has("block-storage"):
        found = nova.ask("block-storage", "GET", "/volumes/detail", name=wanted)["volumes"]
    else:
        found = [{**one, "name": one["displayName"], "status": one["status"]}
                 for one in nova.get("/os-volumes/detail", version=35)["volumes"]]
    return one_of("volume", wanted, found)


def aggregate(nova: Nova, wanted: str) -> Thing:
    return one_of("aggregate", wanted, nova.get("/os-aggregates")["aggregates"], ids=("id", "uuid"),
                  command="nova aggregate-list")


def server_group(nova: Nova, wanted: str) -> Thing:
    return one_of("server group", wanted, nova.get("/os-server-groups")["server_groups"],
                  command="nova server-group-list")


def hypervisor(nova: Nova, wanted: str) -> Thing:
    """By id or by its whole host name."""
    found = [{**one, "name": one["hypervisor_hostname"]}
             for one in nova.pages("/os-hypervisors/detail", "hypervisors")]
    return one_of("hypervisor", wanted, found, command="nova hypervisor-list")


def service(nova: Nova, wanted: str, binary: str = "nova-compute") -> Thing:
    """By id, or the one of this binary on a host of this name."""
    found = [{**one, "name": one["host"] if one["binary"] == binary else None}
             for one in nova.get("/os-services")["services"]]
    return one_of("service", wanted, found, command="nova service-list")


def project(nova: Nova, wanted: str | None) -> str:
    """The id of a project: of the identity service if it can be asked, else what was given; None is one's own."""
    if wanted is None:
        own = nova.project_id
        if own is None:
            raise CommandError("Which project? This login has none: name one with --tenant.")
        return own
    if is_id(wanted) or not nova.has("identity"):
        return wanted
    try:
        found = nova.ask("identity", "GET", "/projects", name=wanted)["projects"]
    except Refused:
        return wanted  # who may not ask for names has given an id
    return str(found[0]["id"]) if len(found) == 1 else wanted
