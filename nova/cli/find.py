"""Lookup of resources by name or id. Functions raise NotFound, with the candidates if a name is ambiguous."""

import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nova.cli.client import LEGACY, Nova
from nova.cli.errors import CommandError, NotFound, Refused

Thing = Mapping[str, Any]
_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_CANDIDATES = 10


def is_id(text: str) -> bool:
    """Return True if the text has the form of a UUID."""
    return _UUID.fullmatch(text) is not None


def by_id_or_name(kind: str, wanted: str, resources: Iterable[Thing], ids: Iterable[str] = ("id",),
                  command: str = "", scope: str = "") -> Thing:
    """Return the resource whose id, else whose name, is ``wanted``. Raises NotFound if no resource or several resources
    match; the message names ``scope`` and the list command."""
    candidates = list(resources)
    for key in (*ids, "name"):
        fitting = [thing for thing in candidates if str(thing.get(key)) == wanted]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            listed = [f"  {thing['id']}  {thing.get('name', '')}  {thing.get('status') or ''}".rstrip()
                      for thing in fitting[:_CANDIDATES]]
            more = [f"  and {len(fitting) - _CANDIDATES} more"] if len(fitting) > _CANDIDATES else []
            raise NotFound("\n".join((f"There are {len(fitting)} {kind}s with the name {wanted}; use an id:",
                                      *listed, *more)))
    hint = f" {command} shows every {kind}." if command else ""
    raise NotFound(f"There is no {kind} with the name or id {wanted}{scope}.{hint}")


def server(nova: Nova, wanted: str, all_tenants: bool = False) -> Thing:
    """Return a server by id or name, in the representation of the API. Raises NotFound."""
    if is_id(wanted) and (existing := existing_server(nova, wanted, (400, 404))) is not None:
        return existing  # type: ignore[no-any-return]
    servers = nova.pages("/servers/detail", "servers", name=f"^{re.escape(wanted)}$",
                         all_tenants="1" if all_tenants else None)
    scope = "" if all_tenants else " in this project (administrators: use the id for servers of other projects)"
    return by_id_or_name("server", wanted, servers, command="nova list", scope=scope)


def server_path(nova: Nova, wanted: str) -> str:
    """Return the path of a server, by id or name, in the Compute API. Raises NotFound."""
    return f"/servers/{server(nova, wanted)['id']}"


def existing_server(nova: Nova, server_id: str, statuses: Collection[int] = (404,)) -> Any:
    """Return the server with this id, or None if it does not exist."""
    return (_or_none(lambda: nova.get(f"/servers/{server_id}"), statuses) or {}).get("server")


def existing_image(nova: Nova, image_id: str, statuses: Collection[int] = (404,)) -> Any:
    """Return the image with this id, or None if it does not exist."""
    if nova.has("image"):
        return _or_none(lambda: nova.ask("image", "GET", f"/images/{image_id}"), statuses)
    return (_or_none(lambda: nova.get(f"/images/{image_id}", version=LEGACY), statuses) or {}).get("image")


def _or_none(request: Callable[[], Any], statuses: Collection[int] = (400, 404)) -> Any:
    """Return the result of ``request``, or None if the response has one of the error ``statuses``."""
    try:
        return request()
    except Refused as error:
        if error.status not in statuses:
            raise
        return None


def flavor(nova: Nova, wanted: str) -> Thing:
    """Return a flavor, public or private, by id or name. Raises NotFound."""
    answer = _or_none(lambda: nova.get(f"/flavors/{quoted(wanted)}"))
    if answer is not None:
        return answer["flavor"]  # type: ignore[no-any-return]
    return by_id_or_name("flavor", wanted, nova.pages("/flavors/detail", "flavors", is_public="None"),
                         command="nova flavor-list --all")


def quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def images(nova: Nova) -> list[Thing]:
    """Return all images from the image service or, if the cloud has none, from the Compute API."""
    if not nova.has("image"):
        return list(nova.get("/images/detail", version=LEGACY)["images"])
    collected: list[Thing] = []
    query: dict[str, Any] = {"limit": 1000}
    while True:
        page = nova.ask("image", "GET", "/images", **query)
        collected += page["images"]
        if "next" not in page:
            return collected
        query["marker"] = page["images"][-1]["id"]


def image(nova: Nova, wanted: str) -> Thing:
    """Return an image by id or name. Raises NotFound."""
    if is_id(wanted) and (existing := existing_image(nova, wanted, (400, 404))) is not None:
        return existing  # type: ignore[no-any-return]
    return by_id_or_name("image", wanted, images(nova), command="nova image-list")


def networks(nova: Nova) -> list[Thing]:
    """Return all networks from the network service or, if the cloud has none, from Nova (whose labels are names)."""
    if nova.has("network"):
        return list(nova.ask("network", "GET", "/networks")["networks"])
    return [{**entry, "name": entry["label"]} for entry in nova.get("/os-tenant-networks", version=LEGACY)["networks"]]


def network(nova: Nova, wanted: str) -> Thing:
    """Return a network by id or name. Raises NotFound."""
    return by_id_or_name("network", wanted, networks(nova), command="nova network-list")


def volume(nova: Nova, wanted: str) -> Thing:
    """Return a volume by id (not verified) or by name, from Cinder or else from Nova. Raises NotFound."""
    if is_id(wanted):
        return {"id": wanted}
    if nova.has("block-storage"):
        volumes = nova.ask("block-storage", "GET", "/volumes/detail", name=wanted)["volumes"]
    else:
        volumes = [{**entry, "name": entry["displayName"], "status": entry["status"]}
                   for entry in nova.get("/os-volumes/detail", version=LEGACY)["volumes"]]
    return by_id_or_name("volume", wanted, volumes)


def aggregate(nova: Nova, wanted: str) -> Thing:
    return by_id_or_name("aggregate", wanted, nova.get("/os-aggregates")["aggregates"], ids=("id", "uuid"),
                         command="nova aggregate-list")


def server_group(nova: Nova, wanted: str) -> Thing:
    return by_id_or_name("server group", wanted, nova.get("/os-server-groups")["server_groups"],
                         command="nova server-group-list")


def hypervisor(nova: Nova, wanted: str) -> Thing:
    """Return a hypervisor by id or full host name. Raises NotFound."""
    hypervisors = [{**node, "name": node["hypervisor_hostname"]}
                   for node in nova.pages("/os-hypervisors/detail", "hypervisors")]
    return by_id_or_name("hypervisor", wanted, hypervisors, command="nova hypervisor-list")


def service(nova: Nova, wanted: str, binary: str = "nova-compute") -> Thing:
    """Return a service by id, or by host for services with this binary. Raises NotFound."""
    services = [{**entry, "name": entry["host"] if entry["binary"] == binary else None}
                for entry in nova.get("/os-services")["services"]]
    return by_id_or_name("service", wanted, services, command="nova service-list")


def project(nova: Nova, wanted: str | None) -> str:
    """Return the id of a project by name; for None, the project of the login. If the identity service is missing or
    refuses the query, ``wanted`` is taken as the id."""
    if wanted is None:
        own = nova.project_id
        if own is None:
            raise CommandError("The login has no project: select one with --tenant.")
        return own
    if is_id(wanted) or not nova.has("identity"):
        return wanted
    try:
        projects = nova.ask("identity", "GET", "/projects", name=wanted)["projects"]
    except Refused:
        return wanted  # a user without permission to list projects must give an id
    return str(projects[0]["id"]) if len(projects) == 1 else wanted
