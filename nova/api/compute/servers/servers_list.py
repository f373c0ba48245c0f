"""GET /servers and /servers/detail: filters, sort order and pages."""

import contextlib
import re
from typing import Any

import msgspec
from oslo_utils import strutils

from nova import exception
from nova.api.compute.servers import servers_view
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Array, Changing, Field, Object, Query, View, enum
from nova.api.validation.types import LIMIT, LINKS, REGEX, STRING, TIME
from nova.objects.servers import states
from nova.objects.servers.server_request import ServerPage, ServerQuery
from nova.service.fair_pool import FairSemaphore

_encode = msgspec.json.Encoder().encode

# Pages with a limit above this number of servers are long. Each process creates two long pages at a time; further
# long pages wait. A page that takes over a second (slow conductor) gives its slot to a waiting page.
_LONG = 100
_LONG_PAGES = FairSemaphore(2, stalled_after=1.0)

ALL_FILTERS = "os_compute_api:servers:allow_all_filters"

_SORT_KEYS = (
    "access_ip_v4", "access_ip_v6", "auto_disk_config", "availability_zone", "config_drive", "created_at",
    "display_description", "display_name", "host", "hostname", "image_ref", "instance_type_id", "kernel_id", "key_name",
    "launch_index", "launched_at", "locked", "locked_by", "node", "power_state", "progress", "project_id", "ramdisk_id",
    "root_device_name", "task_state", "terminated_at", "updated_at", "user_id", "uuid", "vm_state")
# Sort keys that are ignored before 2.75 and refused from 2.75.
_SORT_IGNORED = (
    "architecture", "cell_name", "cleaned", "default_ephemeral_device", "default_swap_device", "deleted", "deleted_at",
    "disable_terminate", "ephemeral_gb", "ephemeral_key_uuid", "id", "key_data", "launched_on", "memory_mb",
    "os_type", "reservation_id", "root_gb", "shutdown_terminate", "user_data", "vcpus", "vm_mode")
# Maximum number of different sort keys: for each of them the database sorts by two columns.
_MOST_SORT_KEYS = 8

_TEXTS = ("user_id", "project_id", "tenant_id", "launch_index", "image_ref", "image", "vm_state", "task_state", "host",
          "uuid", "sort_dir", "all_tenants", "soft_deleted", "deleted", "status", "marker")
_EXPRESSIONS = (
    "kernel_id", "ramdisk_id", "hostname", "key_name", "power_state", "node", "flavor", "reservation_id", "launched_at",
    "terminated_at", "availability_zone", "name", "display_name", "description", "display_description", "locked_by",
    "root_device_name", "config_drive", "access_ip_v4", "access_ip_v6", "auto_disk_config", "progress", "ip", "ip6",
    "created_at")
# Names of other tables, which are refused as filters.
_JOINED = ("block_device_mapping", "services", "metadata", "system_metadata", "info_cache", "security_groups",
           "pci_devices")
# Maximum number of tags in a filter: each is an expression of the SQL statement, which may have a thousand.
_MOST_TAGS = 100
_TAG_FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")

QUERY = Query({
    **dict.fromkeys((*_TEXTS, *_JOINED), STRING), **dict.fromkeys(_EXPRESSIONS, REGEX),
    "sort_key": Changing({0: enum(*_SORT_KEYS, *_SORT_IGNORED), 75: enum(*_SORT_KEYS)}), "changes-since": TIME,
    "changes-before": Field(TIME, since=66), "limit": LIMIT, "locked": Field(STRING, since=73),
    **dict.fromkeys(_TAG_FILTERS, Field(REGEX, since=26)),
}, strict=75, patterns={"^_": STRING})

# Filters for all users, with their first microversion.
_FOR_ALL = {
    **dict.fromkeys(("reservation_id", "name", "status", "image", "flavor", "ip", "changes-since", "all_tenants"), 0),
    "ip6": 5, **dict.fromkeys(_TAG_FILTERS, 26), "changes-before": 66, "locked": 73, "hostname": 90,
    **dict.fromkeys(("availability_zone", "config_drive", "key_name", "created_at", "launched_at", "terminated_at",
                     "power_state", "task_state", "vm_state", "progress", "user_id"), 83)}
_PAGING = frozenset({"limit", "marker", "sort_key", "sort_dir"})
_OTHERWISE_HANDLED = frozenset({"status", "all_tenants", "changes-since", "changes-before", "deleted", "project_id",
                                "tenant_id", *_PAGING})
# Filters on columns with numbers of at most 9 digits. No server matches a filter with any other value.
_NUMBERS = frozenset({"launch_index", "power_state", "progress"})
_SMALL_NUMBER = re.compile("[0-9]{1,9}")


@accepts(query=QUERY, answer=Object({"servers": Array(servers_view.BRIEF), "servers_links": LINKS}))
def index(req: Request) -> dict[str, Any]:
    """List servers."""
    req.authorize("os_compute_api:servers:index")
    return _answer(req, "servers", servers_view.BRIEF, *_search(req, "os_compute_api:servers:index", brief=True))


@accepts(query=QUERY, answer=Object({"servers": Array(servers_view.DETAIL), "servers_links": LINKS}))
def detail(req: Request) -> dict[str, Any]:
    """List servers with details."""
    req.authorize("os_compute_api:servers:detail")
    limit, _marker = req.page()
    # More long pages in parallel are not faster (only one Python thread computes at a time), and each takes megabytes.
    with _LONG_PAGES.slot(req.ctx.project_id) if limit > _LONG else contextlib.nullcontext():
        page, limit = _search(req, "os_compute_api:servers:detail", brief=False)
        return _answer(req, "servers/detail", servers_view.DETAIL, page, limit)


def _answer(req: Request, path: str, view: View, page: ServerPage, limit: int) -> dict[str, Any]:
    context, servers = servers_view.ViewContext(req), page.servers
    # Encode each server right after rendering: a thousand rendered servers take five times the memory of the response.
    answer = {"servers": [msgspec.Raw(_encode(view.render(server, context))) for server in servers]}
    return req.with_next(answer, "servers_links", path, servers, limit, "uuid", cut_at=page.marker)


def _search(req: Request, policy: str, brief: bool) -> tuple[ServerPage, int]:
    limit, marker = req.page()
    query = server_query(req, policy)
    if query is None or limit == 0:
        return ServerPage(servers=[]), limit
    query.limit, query.marker, query.brief = limit, marker, brief
    return req.clients.servers.page(req.ctx, query), limit


def server_query(req: Request, policy: str) -> ServerQuery | None:
    """Return the query of the request; None: no server can match."""
    # Filters of administrators are ignored for other callers.
    given = {name: values for name, values in req.query.items() if name not in _PAGING}
    if not req.allowed(ALL_FILTERS):
        given = {name: values for name, values in given.items() if _FOR_ALL.get(name, 1000) <= req.version}
    for name in given:
        if name in _JOINED or name.startswith("_"):
            raise exception.InvalidInput(f"Invalid filter field: {name}.")
    query = ServerQuery(project_id=_project(req, given, policy), sort=_sort(req))
    query.changes_since, query.changes_before = req.changes()
    if query.changes_since or query.changes_before:
        query.deleted = None
    if "deleted" in given:
        query.deleted = strutils.bool_from_string(given["deleted"][-1])
    for name, values in given.items():
        if name in _NUMBERS and not _SMALL_NUMBER.fullmatch(values[-1]):
            return None
        if name not in _OTHERWISE_HANDLED:
            query.filters[name] = req.expression(name) if name in _EXPRESSIONS else _value(name, values)
    return query if "status" not in given or _by_status(req, query, given["status"]) else None


def _project(req: Request, given: dict[str, list[str]], policy: str) -> str | None:
    """Return the project whose servers are listed, or None for all projects."""
    if "all_tenants" not in given or not _truth("all_tenants", given["all_tenants"][-1] or "1"):
        return req.ctx.project_id
    req.authorize(f"{policy}:get_all_tenants")
    wanted = given.get("project_id") or given.get("tenant_id")
    return wanted[-1] if wanted else None


def _by_status(req: Request, query: ServerQuery, statuses: list[str]) -> bool:
    """Filter the query by the vm_states and task_states of API statuses. Return False if no server can have them."""
    vm_states: list[str] = []
    task_states: list[str] = []
    by_default = False
    for status in statuses:
        of_status, tasks_of_status = states.states_of(status)
        if of_status:
            vm_states += [state for state in of_status if state not in vm_states]
            task_states += [state for state in tasks_of_status if state not in task_states]
            by_default = by_default or not tasks_of_status
    if not vm_states:
        if req.version >= 38:
            raise exception.InvalidInput("Invalid status value")
        return False
    if states.DELETED in vm_states:
        if not req.ctx.is_admin:
            raise exception.Forbidden("Only administrators may list deleted instances")
        query.deleted = True
    query.filters["vm_state"] = vm_states
    if not by_default:
        query.filters["task_state"] = task_states
    return True


def _value(name: str, values: list[str]) -> Any:
    if name in _TAG_FILTERS:
        tags = list(dict.fromkeys(tag for value in values for tag in value.split(",")))
        if len(tags) > _MOST_TAGS:
            raise exception.InvalidInput(
                f"Invalid input for query parameters {name}. There are more than {_MOST_TAGS} tags.")
        return tags
    if name == "locked":
        return _truth(name, values[-1])
    return strutils.bool_from_string(values[-1]) if name == "soft_deleted" else values[-1]


def _truth(name: str, value: str) -> bool:
    try:
        return strutils.bool_from_string(value, strict=True)
    except ValueError:
        raise exception.InvalidInput(
            f"Invalid input for query parameters {name}. Value: {value}. It must be a boolean.") from None


def _sort(req: Request) -> list[tuple[str, str]]:
    """Return (column, direction) pairs, each column once; [] is the default order."""
    keys, directions = req.query.get("sort_key", []), req.query.get("sort_dir", [])
    if len(directions) > max(len(keys), 1):
        raise exception.InvalidInput("Sort direction size exceeds sort key size")
    for direction in directions:
        if direction not in ("asc", "desc"):
            raise exception.InvalidInput("Unknown sort direction, must be 'desc' or 'asc'")
    first = directions[0] if directions else "desc"
    directions = directions + [first] * (len(keys) - len(directions))
    ignored = {*_SORT_IGNORED, *(("locked",) if req.version < 73 else ())}
    sort: dict[str, str] = {}
    for key, direction in zip(keys, directions, strict=False):
        if key not in ignored:
            sort.setdefault(key, direction)  # A repeated key has no effect.
    if len(sort) > _MOST_SORT_KEYS:
        raise exception.InvalidInput(f"Invalid input for query parameters sort_key. There are {len(sort)} different "
                                     f"keys, at most {_MOST_SORT_KEYS} are possible.")
    admin = req.allowed(ALL_FILTERS)
    for key in sort:
        if key in ("host", "node") and not admin:
            raise exception.Forbidden(f"Only administrators can sort servers by {key}")
    if sort or directions:
        sort.setdefault("created_at", first)
    return list(sort.items())
