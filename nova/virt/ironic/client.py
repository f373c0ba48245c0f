"""A client of Ironic's API (v1)."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import requests

from nova import context, exception
from nova.conf import CONF
from nova.objects.hosts.node import NODES
from nova.operations.framework.guest_driver import InProgress
from nova.service_clients import ServiceClient, Unreachable, decode_response

T = TypeVar("T")

GROUP = "ironic"
# API versions: 1.61 shows retired nodes, 1.82 filters by shard.
_VERSION, _VERSION_OF_SHARDS = "1.61", "1.82"
_PAGE = 1000

POWER_ON, POWER_OFF = "power on", "power off"


class Node(msgspec.Struct, kw_only=True):
    """The fields of a node that the driver reads. Lists of nodes have no ``instance_info``."""

    uuid: str
    provision_state: str | None = None
    target_provision_state: str | None = None
    provision_updated_at: str | None = None
    power_state: str | None = None
    target_power_state: str | None = None
    last_error: str | None = None
    maintenance: bool = False
    retired: bool = False
    resource_class: str | None = None
    properties: dict[str, Any] = {}
    traits: list[str] = []
    instance_uuid: str | None = None
    instance_info: dict[str, Any] = {}


class _Page(msgspec.Struct, kw_only=True):
    """A page of a list of nodes. ``next``: URL of the next page, or None."""

    nodes: list[Node]
    next: str | None = None


_FIELDS = ",".join(name for name in Node.__struct_fields__ if name != "instance_info")


class Ironic:
    """Requests to Ironic with the credentials of Nova. Errors: HypervisorUnavailable (no response), InProgress (Ironic
    has locked the node for another request), NotFound, Conflict and InvalidInput with the message of Ironic."""

    def __init__(self) -> None:
        self._client = ServiceClient(GROUP, {"service_type": "baremetal"}, versions=("/v1",))

    def nodes(self) -> list[Node]:
        """Return all nodes of the configured conductor group and shard."""
        wanted: dict[str, Any] = {"fields": _FIELDS, "limit": _PAGE}
        for name in ("conductor_group", "shard"):
            if (value := getattr(CONF.ironic, name)) is not None:
                wanted[name] = value
        nodes: list[Node] = []
        while True:
            page = self._read("/v1/nodes", "", _Page, wanted)
            nodes += page.nodes
            # Ironic may shorten pages ([api]max_limit of Ironic). Conductors refuse a report of more than NODES nodes.
            if not page.next or not page.nodes or len(nodes) > NODES:
                return nodes
            wanted["marker"] = page.nodes[-1].uuid

    def node(self, uuid: str) -> Node:
        """Return a node. Raises NotFound."""
        return self._read(f"/v1/nodes/{uuid}", "", Node)

    def node_of(self, instance_uuid: str) -> Node | None:
        """Return the node of an instance, or None."""
        wanted = {"instance_uuid": instance_uuid, "fields": _FIELDS}
        nodes = self._read("/v1/nodes", "nodes", list[Node], wanted)
        return nodes[0] if nodes else None

    def update(self, uuid: str, values: Mapping[str, Any]) -> Node:
        """Set fields of a node by path, such as "/instance_info/root_gb"; the value None removes a field."""
        patch = [{"op": "remove", "path": path} if value is None else {"op": "add", "path": path, "value": value}
                 for path, value in values.items()]
        response = self._request("PATCH", f"/v1/nodes/{uuid}", json=patch)
        return _decoded(response, Node)

    def invalid_interfaces(self, uuid: str) -> dict[str, str]:
        """Return the driver interfaces of a node that fail Ironic's validation, with the reasons."""
        results = self._read(f"/v1/nodes/{uuid}/validate", "", dict[str, Any])
        return {name: str(results[name].get("reason") or "not supported") for name in ("deploy", "power", "storage")
                if isinstance(results.get(name), dict) and not results[name].get("result")}

    def provision(self, uuid: str, target: str, **more: Any) -> None:
        """Start a transition of the node. ``target``: active, deleted, rebuild, rescue or unrescue."""
        self._request("PUT", f"/v1/nodes/{uuid}/states/provision", json={"target": target, **more})

    def set_power(self, uuid: str, target: str, timeout: int = 0) -> None:
        """Start a change of the power state. ``timeout``: seconds that a soft change may take (0: Ironic's default)."""
        more = {"timeout": timeout} if timeout else {}
        self._request("PUT", f"/v1/nodes/{uuid}/states/power", json={"target": target, **more})

    def set_console(self, uuid: str, enabled: bool) -> None:
        self._request("PUT", f"/v1/nodes/{uuid}/states/console", json={"enabled": enabled})

    def console(self, uuid: str) -> dict[str, Any]:
        """Return ``console_enabled`` and ``console_info`` of a node."""
        return self._read(f"/v1/nodes/{uuid}/states/console", "", dict[str, Any])

    def vifs(self, uuid: str) -> set[str]:
        """Return the ids of the virtual interfaces that are attached to a node."""
        return {str(vif.get("id")) for vif in self._read(f"/v1/nodes/{uuid}/vifs", "vifs", list[dict[str, Any]])}

    def attach_vif(self, uuid: str, vif_id: str) -> None:
        self._request("POST", f"/v1/nodes/{uuid}/vifs", json={"id": vif_id})

    def detach_vif(self, uuid: str, vif_id: str) -> None:
        self._request("DELETE", f"/v1/nodes/{uuid}/vifs/{vif_id}")

    # --- requests ------------------------------------------------------------------------------------
    def _read(self, path: str, key: str, shape: type[T], params: Mapping[str, Any] | None = None) -> T:
        return _decoded(self._request("GET", path, params=params), shape, key)

    def _request(self, method: str, path: str, **more: Any) -> requests.Response:
        version = _VERSION if CONF.ironic.shard is None else _VERSION_OF_SHARDS
        try:
            response = self._client.request(context.admin(), method, path, waits=False, headers={
                "X-OpenStack-Ironic-API-Version": version}, **more)
        except Unreachable as error:
            raise exception.HypervisorUnavailable(reason=f"Ironic does not respond: {error}") from error
        if response.status_code >= 400:
            raise _error(response)
        return response


def in_progress(reason: str) -> InProgress:
    """Return the error that makes nova-compute call the verb again after [ironic]api_retry_interval."""
    return InProgress(reason=reason, seconds=CONF.ironic.api_retry_interval)


def _decoded(response: requests.Response, shape: type[T], key: str = "") -> T:
    """Return the body of a response, or its value under ``key``."""
    try:
        return msgspec.convert(decode_response(response, shape, key), shape)
    except Unreachable as error:
        raise exception.HypervisorUnavailable(reason=f"Ironic: {error}") from error


def _error(response: requests.Response) -> exception.NovaException:
    """Return the error for a response with an error status."""
    message, status = _fault(response), response.status_code
    if status == 409:
        return in_progress(message) if "locked" in message else exception.Conflict(f"Ironic: {message}")
    if status == 404:
        return exception.NotFound(f"Ironic: {message}")
    if status in (502, 503, 504):
        return exception.HypervisorUnavailable(reason=f"Ironic: {message}")
    if status < 500 and status not in (401, 403):
        return exception.InvalidInput(reason=f"Ironic: {message}")
    return exception.BareMetalError(reason=message)


def _fault(response: requests.Response) -> str:
    """Return the message of an error of Ironic: {"error_message": {"faultstring": ...}}, perhaps JSON within JSON."""
    try:
        fault = response.json()["error_message"]
        fault = json.loads(fault) if isinstance(fault, str) else fault
        return str(fault["faultstring"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"
