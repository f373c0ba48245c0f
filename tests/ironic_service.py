"""Ironic for tests: a real one (``RealIronic``, with fake-hardware), or a small stand-in in this process
(``IronicService``). Both have the same interface, and the contract suite of drivers runs against either.

NOVA_TEST_IRONIC names a virtual environment with ``ironic==39.0.0``; unset: the stand-in."""

from __future__ import annotations

import datetime
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import uuid
from typing import Any

import requests

from tests.polling import poll

_HEADERS = {"X-OpenStack-Ironic-API-Version": "1.61"}
# target -> states in which it is accepted, state meanwhile, state at the end
_TRANSITIONS = {
    "active": ({"available"}, "deploying", "active"),
    "rebuild": ({"active", "deploy failed", "error"}, "deploying", "active"),
    "deleted": ({"active", "deploy failed", "error", "rescue", "rescue failed", "wait call-back"}, "deleting",
                "available"),
    "rescue": ({"active", "rescue failed"}, "rescuing", "rescue"),
    "unrescue": ({"rescue", "rescue failed", "unrescue failed"}, "unrescuing", "active")}
_FAILED = {"active": "deploy failed", "rebuild": "deploy failed", "deleted": "error", "rescue": "rescue failed",
           "unrescue": "unrescue failed"}
_POWER = {"power on": "power on", "power off": "power off", "soft power off": "power off", "rebooting": "power on",
          "soft rebooting": "power on"}


class IronicService:
    """``delay``: seconds that a change takes. ``held``: states that do not end. ``failing``: targets whose next change
    fails. ``locked``: nodes that refuse changes. ``calls``: (method, path) of all requests that change something.
    ``max_limit``: maximum number of nodes in one response."""

    def __init__(self) -> None:
        self.delay, self.held, self.failing = 0.05, set[str](), set[str]()
        self.max_limit = 1000
        self.locked, self.calls = set[str](), list[tuple[str, str]]()
        self.consoles: dict[str, Any] = {}
        self.lock = threading.RLock()
        self._nodes: dict[str, dict[str, Any]] = {}
        self._pending: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
        handler = type("Handler", (_Handler,), {"ironic": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add_node(self, resource_class: str = "gold", identity: str = "", **values: Any) -> str:
        """Create an available node. ``identity``: its uuid."""
        identity = identity or str(uuid.uuid4())
        self._nodes[identity] = {
            "uuid": identity, "provision_state": "available", "target_provision_state": None, "power_state": None,
            "target_power_state": None, "last_error": None, "maintenance": False, "retired": False, "traits": [],
            "resource_class": resource_class, "instance_uuid": None, "instance_info": {}, "provision_updated_at": None,
            "properties": {"cpus": 4, "memory_mb": 8192, "local_gb": 100, "cpu_arch": "x86_64"}, **values}
        return identity

    def node(self, identity: str) -> dict[str, Any]:
        with self.lock:
            self._settle()
            return dict(self._nodes[identity])

    def change(self, identity: str, **values: Any) -> None:
        """Change fields of a node as an operator does."""
        self._nodes[identity].update(values)

    def remove_node(self, identity: str) -> None:
        del self._nodes[identity]

    # --- behaviour ---------------------------------------------------------------------------------------
    def _settle(self) -> None:
        """Complete the changes whose time is over."""
        for (identity, field), (until, values) in list(self._pending.items()):
            node = self._nodes.get(identity)
            if node is None or (time.monotonic() >= until and node.get(field) not in self.held):
                del self._pending[identity, field]
                if node is not None:
                    node.update(values)

    def handle(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        with self.lock:
            self._settle()
            if method != "GET":
                self.calls.append((method, path))
            parts = path.strip("/").split("/")[2:]
            if not parts:
                return 200, self._list(query)
            node = self._nodes.get(parts[0])
            if node is None:
                return _fault(404, f"Node {parts[0]} could not be found.")
            if method != "GET" and node["uuid"] in self.locked:
                return _fault(409, f"Node {node['uuid']} is locked by host 127.0.0.1, please retry after the current "
                                   "operation is completed.")
            name = "_".join([method.lower(), *(parts[1:2] if parts[1:2] == ["vifs"] else parts[1:3])])
            return getattr(self, f"do_{name}")(node, body)

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        fields = query.get("fields", "uuid").split(",")
        nodes = [node for identity, node in sorted(self._nodes.items()) if identity > query.get("marker", "")]
        wanted = query.get("instance_uuid")
        nodes = [node for node in nodes if wanted in (None, node["instance_uuid"])]
        limit = min(int(query.get("limit", 1000)), self.max_limit)
        more = {"next": "http://ironic/v1/nodes?marker=…"} if len(nodes) > limit else {}
        return {"nodes": [{name: node[name] for name in fields} for node in nodes[:limit]], **more}

    def do_get(self, node: dict[str, Any], _body: Any) -> tuple[int, Any]:
        return 200, node

    def do_patch(self, node: dict[str, Any], body: list[dict[str, Any]]) -> tuple[int, Any]:
        for change in body:
            owner, _, item = change["path"].strip("/").partition("/")
            value = change.get("value")
            if change["op"] == "remove" and (item not in node[owner] if item else node[owner] is None):
                return _fault(400, f"Couldn't apply patch '{change}'. Reason: can't remove a non-existent object")
            if owner == "instance_uuid" and value is not None:
                if any(other["instance_uuid"] == value for other in self._nodes.values()):
                    return _fault(409, f"Instance {value} is already associated with a node.")
                if node["instance_uuid"]:
                    return _fault(409, f"Node {node['uuid']} is associated with instance {node['instance_uuid']}.")
            if item:
                node[owner] = {**node[owner], item: value}
            else:
                node[owner] = value
        return 200, node

    def do_get_validate(self, _node: dict[str, Any], _body: Any) -> tuple[int, Any]:
        return 200, {name: {"result": True} for name in ("deploy", "power", "storage")}

    def do_put_states_provision(self, node: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        target = body["target"]
        accepted, meanwhile, end = _TRANSITIONS[target]
        if node["provision_state"] not in accepted:
            return _fault(400, f"The requested action \"{target}\" can not be performed on node \"{node['uuid']}\" "
                               f"while it is in state \"{node['provision_state']}\".")
        if target in self.failing:
            self.failing.discard(target)
            values: dict[str, Any] = {"provision_state": _FAILED[target], "last_error": f"{target} does not work"}
        else:
            values = {"provision_state": end, "target_provision_state": None, "last_error": None}
            if target == "deleted":
                values |= {"instance_uuid": None, "instance_info": {}, "power_state": "power off"}
        values["provision_updated_at"] = datetime.datetime.now(datetime.UTC).isoformat()
        node["provision_state"], node["target_provision_state"] = meanwhile, end
        if "configdrive" in body:
            node["instance_info"] = {**node["instance_info"], "configdrive": body["configdrive"]}
        self._pending[node["uuid"], "provision_state"] = time.monotonic() + self.delay, values
        return 202, None

    def do_put_states_power(self, node: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        target = body["target"]
        values: dict[str, Any] = {"power_state": _POWER[target], "target_power_state": None, "last_error": None}
        if target in self.failing:
            self.failing.discard(target)
            values = {"target_power_state": None, "last_error": f"{target} does not work"}
        node["target_power_state"] = _POWER[target]
        self._pending[node["uuid"], "target_power_state"] = time.monotonic() + self.delay, values
        return 202, None

    def do_get_states_console(self, node: dict[str, Any], _body: Any) -> tuple[int, Any]:
        info = self.consoles.get(node["uuid"])
        return 200, {"console_enabled": bool(info and node.get("console")), "console_info": info}

    def do_put_states_console(self, node: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        node["console"] = body["enabled"]
        return 202, None

    def do_get_vifs(self, node: dict[str, Any], _body: Any) -> tuple[int, Any]:
        return 200, {"vifs": [{"id": vif} for vif in node.get("vifs", ())]}

    def do_post_vifs(self, node: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        if body["id"] in node.get("vifs", ()):
            return _fault(409, f"Unable to attach VIF {body['id']} because it is already attached.")
        node["vifs"] = [*node.get("vifs", ()), body["id"]]
        return 204, None

    def do_delete_vifs(self, node: dict[str, Any], _body: Any) -> tuple[int, Any]:
        vif = self.calls[-1][1].rpartition("/")[2]
        if vif not in node.get("vifs", ()):
            return _fault(400, f"Unable to detach VIF {vif} because it is not attached to it.")
        node["vifs"] = [other for other in node["vifs"] if other != vif]
        return 204, None


def _fault(status: int, message: str) -> tuple[int, Any]:
    fault = {"faultcode": "Client", "faultstring": message, "debuginfo": None}
    return status, {"error_message": json.dumps(fault)}


class _Handler(http.server.BaseHTTPRequestHandler):
    ironic: IronicService
    protocol_version = "HTTP/1.1"
    # Without it each response waits for the acknowledgement of its header.
    wbufsize = -1

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        status, answer = self.ironic.handle(self.command, url.path, dict(urllib.parse.parse_qsl(url.query)), body)
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_POST = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_args: Any) -> None: ...


class RealIronic:
    """A real Ironic in one process with SQLite, without authentication, whose nodes are fake-hardware."""

    def __init__(self, venv: str, place: pathlib.Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        config = place / "ironic.conf"
        config.write_text(_CONFIG.format(place=place, port=port))
        binary = os.path.join(venv, "bin")
        subprocess.run([f"{binary}/ironic-dbsync", "--config-file", config, "create_schema"], check=True, timeout=300,
                       capture_output=True)
        with open(place / "ironic.log", "wb") as log:
            self._process = subprocess.Popen([f"{binary}/ironic", "--config-file", config], stdout=log, stderr=log,
                                             start_new_session=True)
        assert poll(self._responds, 120), "Ironic does not respond"

    def _responds(self) -> bool:
        try:
            return bool(requests.get(f"{self.url}/v1/drivers", timeout=10).json()["drivers"])
        except (requests.RequestException, ValueError, KeyError):
            return False

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        for _ in range(100):
            response = requests.request(method, f"{self.url}/v1{path}", json=body, headers=_HEADERS, timeout=60)
            if response.status_code != 409:
                assert response.status_code < 400, response.text
                return response.json() if response.content else None
            time.sleep(0.1)
        raise AssertionError(response.text)

    def add_node(self, resource_class: str = "gold", identity: str = "", traits: list[str] | None = None) -> str:
        identity = str(self._call("POST", "/nodes", {
            "driver": "fake-hardware", "resource_class": resource_class, "uuid": identity or str(uuid.uuid4()),
            "properties": {"cpus": 4, "memory_mb": 8192, "local_gb": 100, "cpu_arch": "x86_64"}})["uuid"])
        if traits:
            self._call("PUT", f"/nodes/{identity}/traits", {"traits": traits})
        for target, state in (("manage", "manageable"), ("provide", "available")):
            self._call("PUT", f"/nodes/{identity}/states/provision", {"target": target})
            assert poll(lambda state=state: self.node(identity)["provision_state"] == state, 60), state
        return identity

    def node(self, identity: str) -> dict[str, Any]:
        node: dict[str, Any] = self._call("GET", f"/nodes/{identity}")
        return node

    def change(self, identity: str, **values: Any) -> None:
        self._call("PATCH", f"/nodes/{identity}", [
            {"op": "add", "path": f"/{name}", "value": value} for name, value in values.items()])

    def remove_node(self, identity: str) -> None:
        self._call("DELETE", f"/nodes/{identity}")


_CONFIG = """[DEFAULT]
auth_strategy=noauth
rpc_transport=none
host=127.0.0.1
my_ip=127.0.0.1
enabled_hardware_types=fake-hardware
enabled_deploy_interfaces=fake
enabled_network_interfaces=noop
enabled_boot_interfaces=fake
enabled_management_interfaces=fake
enabled_power_interfaces=fake
enabled_console_interfaces=fake,no-console
enabled_raid_interfaces=fake,no-raid
enabled_vendor_interfaces=fake,no-vendor
enabled_inspect_interfaces=fake
enabled_rescue_interfaces=fake,no-rescue
enabled_storage_interfaces=fake,noop
enabled_bios_interfaces=fake,no-bios
enabled_firmware_interfaces=fake,no-firmware
[api]
host_ip=127.0.0.1
port={port}
[conductor]
automated_clean=False
[database]
connection=sqlite:///{place}/ironic.sqlite
"""


def start_ironic(place: pathlib.Path) -> IronicService | RealIronic:
    """Start a real Ironic if NOVA_TEST_IRONIC names one, else the stand-in."""
    venv = os.environ.get("NOVA_TEST_IRONIC")
    return RealIronic(venv, place) if venv else IronicService()
