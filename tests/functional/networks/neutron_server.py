"""A small in-memory network service with Neutron's API: networks, subnets, ports and security groups.

Tokens are "user:project", as the tests' clients send them; a request without a token comes from Nova itself.
"""

import contextlib
import http.server
import json
import threading
import urllib.parse
import uuid

_SINGULAR = {
    "floatingips": "floatingip", "ports": "port", "networks": "network", "subnets": "subnet",
    "security-groups": "security_group", "security-group-rules": "security_group_rule"}


class NeutronServer:
    """A server with injected faults.

    ``faults``: statuses of the next responses, by (method, kind); "bindings" is the kind of the bindings of ports. A
    negative status is returned as a positive number, after the request was executed. ``twists``: functions that replace
    the next successful responses, by (method, kind).
    """

    def __init__(self):
        self.lock = threading.RLock()
        self.rows = {kind: {} for kind in _SINGULAR}
        self.faults = {}
        self.twists = {}
        self.calls = []
        # Aliases of the enabled extensions; the bodies of all updates of ports, and their tokens.
        self.extensions, self.changes, self.tokens = [], [], []
        # Maximum number of rows in a response (option pagination_max_limit); free ports in the quota of all projects.
        self.page, self.free_ports = None, None
        self.policies = {}  # kinds of the rules of QoS policies, by id
        # True: Nova's account is no administrator.
        self.demoted = False
        # The inactive bindings of ports, by port and host.
        self.bindings = {}
        handler = type("Handler", (_Handler,), {"neutron": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self):
        self._http.shutdown()
        self._http.server_close()

    # --- for tests -----------------------------------------------------------------------------------
    def network(self, name="net", project="p", shared=False, cidr="10.50.0.0/24", **values):
        """Create a network with a subnet (``cidr`` None: without a subnet) and return its id."""
        made = self._add("networks", name=name, tenant_id=project, shared=shared, mtu=1442, subnets=[], **values)
        if cidr:
            subnet = self._add("subnets", network_id=made["id"], cidr=cidr, enable_dhcp=True, dns_nameservers=[],
                               gateway_ip=cidr.rpartition(".")[0] + ".1", ipv6_address_mode=None)
            made["subnets"].append(subnet["id"])
        return made["id"]

    def port(self, network, project="p", **values):
        """Create a port on behalf of a user."""
        return self._create_port({"network_id": network, "tenant_id": project, **values})

    def ports(self, **query):
        with self.lock:
            return [dict(port) for port in self.rows["ports"].values()
                    if all(port.get(name) == value for name, value in query.items())]

    # --- rows ------------------------------------------------------------------------------------------
    def _add(self, kind, **values):
        with self.lock:
            row = {"id": str(uuid.uuid4()), **values}
            self.rows[kind][row["id"]] = row
            return row

    def _create(self, kind, wanted, project):
        if kind == "ports":
            return self._create_port(wanted)
        if kind == "security-groups":
            return self._add(kind, tenant_id=project, **wanted)
        if kind == "floatingips":
            taken = {row["floating_ip_address"] for row in self.rows[kind].values()}
            free = [address for number in (7, 8) if (address := f"203.0.113.{number}") not in taken]
            if not free:
                raise _Refused(409, "IpAddressGenerationFailure", "No more IP addresses available on the network.")
            return self._add(kind, **{"port_id": None, "fixed_ip_address": None, "tenant_id": project, **wanted,
                                      "floating_ip_address": free[0]})
        if kind == "security-group-rules":
            if wanted["security_group_id"] not in self.rows["security-groups"]:
                raise _Refused(404, "SecurityGroupNotFound", "Security group does not exist")
            if any({**row, **wanted} == row for row in self.rows[kind].values()):
                raise _Refused(409, "SecurityGroupRuleExists", "Security group rule already exists.")
            return self._add(kind, **{"port_range_min": None, "port_range_max": None, "remote_ip_prefix": None,
                                      "remote_group_id": None, "tenant_id": project, **wanted})
        made = self._add(kind, **{"tenant_id": project, "shared": False, "subnets": [], **wanted})
        if kind == "subnets":
            self.rows["networks"][wanted["network_id"]]["subnets"].append(made["id"])
        return made

    def _create_port(self, wanted):
        network = self.rows["networks"][wanted["network_id"]]
        subnet = self.rows["subnets"][network["subnets"][0]]
        taken = {fixed["ip_address"] for port in self.ports(network_id=network["id"]) for fixed in port["fixed_ips"]}
        prefix = subnet["cidr"].rpartition(".")[0]
        address = (wanted.get("fixed_ips") or [{}])[0].get("ip_address") or next(
            free for number in range(2, 255) if (free := f"{prefix}.{number}") not in taken)
        if address in taken:
            raise _Refused(409, "IpAddressAlreadyAllocated", f"IP address {address} already allocated")
        number = len(self.calls) + len(self.rows["ports"])
        return self._add("ports", **{
            "device_id": "", "device_owner": "", "status": "DOWN", "admin_state_up": True, "revision_number": 1,
            "security_groups": [], "binding:host_id": "", "binding:vif_type": "unbound", "binding:vif_details": {},
            "binding:vnic_type": "normal", "binding:profile": {}, **wanted,
            "mac_address": f"fa:16:3e:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
            "fixed_ips": [{"subnet_id": subnet["id"], "ip_address": address}]})

    def _update_port(self, port, changes, revision):
        if revision and revision != f"revision_number={port['revision_number']}":
            raise _Refused(412, "RevisionNumberConstraintFailed", "Constrained to another revision")
        if "dns_name" in changes and "dns-integration" not in self.extensions:
            raise _Refused(400, "HTTPBadRequest", "Unrecognized attribute(s) 'dns_name'")
        port.update(changes, revision_number=port["revision_number"] + 1)
        host = port["binding:host_id"]
        if "binding:host_id" in changes:
            port["status"] = "DOWN"
            port["binding:vif_type"] = "ovs" if host and not host.startswith("bad") else (
                "binding_failed" if host else "unbound")
            port["binding:vif_details"] = {"bridge_name": "br-int", "port_filter": True} if host else {}
        return port

    def _with_rules(self, kind, row):
        """Return a row of the API, a security group with its rules."""
        if kind != "security-groups":
            return row
        rules = [rule for rule in self.rows["security-group-rules"].values() if rule["security_group_id"] == row["id"]]
        return {**row, "security_group_rules": rules}

    def _visible(self, kind, project):
        return [row for row in self.rows[kind].values()
                if project is None or row.get("shared") or row.get("router:external")
                or row.get("tenant_id", project) == project]

    def _answer_binding(self, method, port, host, verb, body):
        """Return (status, body) of a request about the bindings of a port (extension binding-extended)."""
        inactive = self.bindings.setdefault(port["id"], {})
        active = {"host": port["binding:host_id"], "vif_type": port["binding:vif_type"],
                  "vif_details": port["binding:vif_details"], "profile": port["binding:profile"]}
        if method == "POST":
            wanted = body["binding"]
            if wanted["host"] in (active["host"], *inactive):
                raise _Refused(409, "PortBindingAlreadyExists", "Binding exists already")
            bad = wanted["host"].startswith("bad")
            inactive[wanted["host"]] = {**wanted, "vif_type": "binding_failed" if bad else "ovs",
                                        "vif_details": {} if bad else {"bridge_name": "br-int", "port_filter": True}}
            return 201, {"binding": inactive[wanted["host"]]}
        if host == active["host"] and verb == "activate":
            raise _Refused(409, "PortBindingAlreadyActive", "Binding is active already")
        if host not in inactive:
            raise _Refused(404, "PortBindingNotFound", "Binding could not be found")
        if method == "DELETE":
            del inactive[host]
            return 204, None
        if verb == "activate":
            made, inactive[active["host"]] = inactive.pop(host), active
            port.update({"binding:host_id": host, **{f"binding:{name}": made[name] for name in (
                "vif_type", "vif_details", "profile")}})
            return 200, {"binding": made}
        return 200, {"binding": inactive[host]}

    # --- requests ----------------------------------------------------------------------------------
    def _list(self, kind, project, query):
        limit, marker = (query.pop(name, [None])[0] for name in ("limit", "marker"))
        rows = [self._with_rules(kind, row) for row in self._visible(kind, project)
                if all(any(_matches(row, name, value) for value in values) for name, values in query.items())]
        first = [row["id"] for row in rows].index(marker) + 1 if marker else 0
        most = min(int(limit or 10**9), self.page or 10**9)
        key = kind.replace("-", "_")
        more = {f"{key}_links": [{"rel": "next", "href": "-"}]} if len(rows) > first + most else {}
        return {key: rows[first:first + most], **more}

    def answer(self, method, kind, row_id, rest, query, body, headers):
        """Return (status, body) of the response."""
        if kind == "extensions":
            return 200, {"extensions": [{"alias": alias, "name": alias} for alias in self.extensions]}
        if kind == "auto-allocated-topology" and "auto-allocated-topology" in self.extensions:
            networks = [row["id"] for row in self.rows["networks"].values() if row["name"] == "auto"]
            return 200, {"auto_allocated_topology": {
                "id": networks[0] if networks else self.network("auto", project=row_id), "tenant_id": row_id}}
        if kind == "quotas" and "quota_details" in self.extensions:
            limit = -1 if self.free_ports is None else len(self.ports(tenant_id=row_id)) + self.free_ports
            return 200, {"quota": {"port": {"limit": limit, "used": len(self.ports(tenant_id=row_id)), "reserved": 0}}}
        if kind == "qos":
            return 200, {"policy": {"id": rest[0], "rules": [{"type": kind} for kind in self.policies[rest[0]]]}}
        if kind not in _SINGULAR:
            raise _Refused(404, "HTTPNotFound", "The resource could not be found.")
        token = headers.get("X-Auth-Token")
        project = token.partition(":")[2] if token else "service" if self.demoted else None
        with self.lock:
            self.calls.append((method, kind, token))
            name = _SINGULAR[kind]
            if method == "POST" and not rest:
                return 201, {name: self._create(kind, body[name], project)}
            if row_id is None:
                return 200, self._list(kind, project, query)
            row_id = row_id.lower()  # MySQL ignores case
            row = next((row for row in self._visible(kind, project) if row["id"] == row_id), None)
            if row is None:
                raise _Refused(404, f"{name.title()}NotFound", f"{name.title()} {row_id} could not be found.")
            if rest:
                return self._answer_binding(method, row, *(*rest[1:], None, None)[:2], body)
            if method == "DELETE":
                if kind == "security-groups" and any(row_id in port["security_groups"] for port in self.ports()):
                    raise _Refused(409, "SecurityGroupInUse", f"Security Group {row_id} in use.")
                del self.rows[kind][row_id]
                self.bindings.pop(row_id, None)
                return 204, None
            if method == "PUT":
                self.changes.append(body[name])
                self.tokens.append(token)
                if kind == "ports":
                    row = self._update_port(row, body[name], headers.get("If-Match"))
                else:
                    row.update(body[name])
            hidden = {"resource_request", "provider:physical_network"} if token else ()
            return 200, {name: {field: value for field, value in self._with_rules(kind, row).items()
                                if field not in hidden}}


class _Refused(Exception):
    pass


def _matches(row, name, value):
    if name == "fields":
        return True
    if name == "fixed_ips":
        return value.removeprefix("ip_address=") in [fixed["ip_address"] for fixed in row["fixed_ips"]]
    if name == "shared":
        return str(bool(row.get("shared"))).lower() == value.lower()
    return str(row.get(name)) == value


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    neutron = None

    def _serve(self):
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.strip("/").split("/")[1:]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        kind, row_id, *rest = (*parts, None, None)[:max(2, len(parts))]
        fault_key = (self.command, "bindings" if rest else kind)
        faults = self.neutron.faults.get(fault_key, [])
        fault = faults.pop(0) if faults else None
        try:
            if fault and fault > 0:
                raise _Refused(fault, "Broken", "It is broken.")
            status, answer = self.neutron.answer(self.command, kind, row_id, rest, urllib.parse.parse_qs(url.query),
                                                 body, self.headers)
            if fault:
                raise _Refused(-fault, "Broken", "It is broken, and done.")
            twists = self.neutron.twists.get(fault_key)
            answer = twists.pop(0)(answer) if twists else answer
        except _Refused as refused:
            status, error, message = refused.args
            answer = {"NeutronError": {"type": error, "message": message, "detail": ""}}
        self.send_response(status)
        text = json.dumps(answer).encode() if answer is not None else b""
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_args):
        """Log nothing."""
