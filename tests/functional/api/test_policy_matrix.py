"""Every route, requested with every role, by the project of the resources and by another project, compared with the
policy of upstream Nova. The oracle is oslo.policy with the defaults of tests/data/policy_defaults.json; this Nova's own
policy is not used."""

import contextlib
import json
import os
import re

import pytest
from oslo_config import cfg
from oslo_policy import policy

from nova.api import microversion, routes, versions
from nova.api.legacy import routes as legacy_routes
from nova.conf import CONF
from nova.image.directory import DirectoryStore
from nova.objects.base import new_uuid
from nova.objects.images.image import Image
from tests.functional.client import Client, Failed
from tests.functional.conftest import remove_images
from tests.functional.documented import undocumented
from tests.functional.refusals import KEY, NIL, SHARED
from tests.paths import DATA

_DEFAULTS = json.loads((DATA / "policy_defaults.json").read_text())
# Roles with the roles that Keystone implies.
_ROLES = {
    "admin": "admin,manager,member,reader", "manager": "manager,member,reader", "member": "member,reader",
    "reader": "reader", "service": "service", "nothing": "other",
}
# Rules for parts of a request or response; another rule decides on the operation as a whole.
_PARTS = re.compile(r"^network:|os-extended-server-attributes|os-flavor-extra-specs:index|get_all_tenants|all_projects"
                    r"|allow_all_filters|:show:|:create:|cross_cell|unlock_override|:host$|:host:index|other_project"
                    r"|instance-actions:events|:trusted_certs|attachments:swap|requested_destination"
                    r"|allow_volume_backed|unshelve_to_host")
# The image proxy uses the policy of the image service instead.
_ROUTES = [route for route in routes.ROUTES
           if route.handler is not legacy_routes.no_longer_available and route.handler is not versions.show
           and not route.path.startswith("/images")]
_WITHOUT_RULE = {"GET /flavors": "@", "GET /flavors/detail": "@", "GET /flavors/{}": "@",
                 "POST /servers/{}/action (os-getRDPConsole)": "rule:project_member_or_admin",
                 "GET /os-hypervisors/detail": "rule:context_is_admin",
                 **dict.fromkeys(("POST /os-baremetal-nodes", "DELETE /os-baremetal-nodes/{}",
                                  "POST /os-baremetal-nodes/{}/action (add_interface)",
                                  "POST /os-baremetal-nodes/{}/action (remove_interface)"), "@")}


_LEFT_OUT = SHARED | {("DELETE", "/flavors/{id}")}


def _key(operation):
    method, path, action = re.fullmatch(r"(\S+) (\S+?)/?( \(.*\))?", operation).groups("")
    return f"{method} {re.sub('{[^}]*}', '{}', path)}{action}"


def _gates():
    """Return the rule that allows each operation, by operation."""
    named = {}
    for name, _check, *operations in _DEFAULTS:
        for operation in operations:
            named.setdefault(_key(operation), []).append(name)
    gates = {key: [name for name in names if not _PARTS.search(name)] or names for key, names in named.items()}
    return {**gates, **{operation: [operation] for operation in _WITHOUT_RULE}}


_GATES = _gates()


def _operation(route):
    path = route.path.replace("/os-volumes_boot", "/servers")
    return _key(f"{route.method} {path}" + (f" ({route.action})" if route.action else ""))


@pytest.fixture(scope="module")
def reference():
    """Return a function that returns True if upstream's policy allows the route: ``reference(route, role, own)``."""
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    rules = {name: check for name, check, *_operations in _DEFAULTS}
    enforcer = policy.Enforcer(conf, use_conf=False, rules=policy.Rules.from_dict({**rules, **_WITHOUT_RULE}))

    def allows(route, role, own):
        operation = _operation(route)
        [rule] = _GATES[operation]
        credentials = {"roles": _ROLES[role].split(","), "project_id": "matrix", "user_id": "matrix",
                       "is_admin": role == "admin"}
        owner = "matrix" if own else "owner"
        return enforcer.enforce(rule, {"project_id": owner, "user_id": owner}, credentials)

    return allows


class Things:
    """The resources of a project, and the paths and bodies of requests that use them."""

    def __init__(self, admin, project, flavor, image_id):
        self.owner = Client(admin.url, project=project, user=project)
        self.admin, self.flavor, self.image_id = admin, flavor, image_id
        old = Client(admin.url, project=project, user=project, version="2.1")
        self.group = self.owner.post("/os-server-groups", {
            "server_group": {"name": "matrix", "policy": "soft-affinity"}})["server_group"]["id"]
        self.wall = old.post("/os-security-groups", {
            "security_group": {"name": f"{project}-wall", "description": "d"}})["security_group"]["id"]
        self.owner.post("/os-keypairs", {"keypair": {"name": "matrix-key", "public_key": KEY, "type": "ssh"}})
        self.server = None
        self.others = {}

    def furnish(self):
        """Create resources other than servers: an image, a volume, and a security group rule."""
        old = {"version": "2.1"}
        image = new_uuid()
        path = os.path.join(CONF.state_path, f"{image}.raw")
        with open(path, "wb") as file:
            file.write(bytes(1024))
        DirectoryStore().add(path, Image(id=image, name="matrix-image", disk_format="raw", visibility="private",
                                         owner=self.owner.project, properties={"key": "value"}))
        rule = self.owner.call("POST", "/os-security-group-rules", {"security_group_rule": {
            "parent_group_id": self.wall, "ip_protocol": "tcp", "from_port": 1, "to_port": 1}}, **old)
        volume = self.owner.call("POST", "/os-volumes", {"volume": {"size": 1, "display_name": "matrix"}}, **old)
        self.others = {"images": image, "os-security-group-rules": rule["security_group_rule"]["id"],
                       "os-volumes": volume["volume"]["id"]}

    def boot(self):
        self.server = self.owner.boot(self.flavor, self.image_id, name="matrix-server", metadata={"key": "value"},
                                      tags=["tag"])
        self.owner.wait(self.server, "ACTIVE")

    def remove(self):
        old = Client(self.admin.url, project=self.owner.project, user=self.owner.project, version="2.1")
        for client, path in ((self.owner, f"/servers/{self.server}"), (self.owner, f"/os-server-groups/{self.group}"),
                             (old, f"/os-security-groups/{self.wall}"), (self.owner, "/os-keypairs/matrix-key")):
            client.session.delete(f"{client.url}/v2.1{path}", timeout=60)
        self.owner.wait_gone(self.server)
        for kind, ident in self.others.items():
            if kind != "os-security-group-rules":  # deleted with its group
                old.call("DELETE", f"/{kind}/{ident}")

    def seen(self):
        """Return everything that a caller without rights might have changed."""
        old = Client(self.admin.url, project=self.owner.project, user=self.owner.project, version="2.1")
        return (self.owner.server(self.server), self.owner.get("/servers/detail"),
                self.owner.get(f"/servers/{self.server}/os-instance-actions"), self.owner.get("/os-server-groups"),
                old.get("/os-security-groups"), self.owner.get("/os-keypairs"), self.owner.get("/flavors/detail"),
                self.owner.get("/os-aggregates"), self.owner.get(f"/os-quota-sets/{self.owner.project}"),
                *(old.get(f"/{kind}/{ident}") for kind, ident in self.others.items()
                  if kind != "os-security-group-rules"))

    def path(self, route):
        at = {"servers": self.server, "os-volumes_boot": self.server, "os-server-groups": self.group,
              "os-security-groups": self.wall, "os-keypairs": "matrix-key", "flavors": self.flavor,
              "os-quota-sets": self.owner.project,
              "os-simple-tenant-usage": self.owner.project, **self.others}
        first, *more = re.findall(r"{\w+}", route.path) or [""]
        path = route.path.replace(first, str(at.get(route.path.split("/")[1], NIL))) if first else route.path
        for name in more:
            path = path.replace(name, {"{key}": "key", "{tag}": "tag"}.get(name, NIL))
        return path

    def body(self, route, version):
        declared = route.spec.body
        if re.search(r"/metadata/{\w+}$", route.path) and declared is not None:
            return {"meta": {"key" if "{key}" in route.path else NIL: "matrix"}}  # the same key as in the path
        return None if declared is None else self._smallest(declared.schema(version), "")

    def _smallest(self, schema, name):
        """Return a minimal value that matches the schema."""
        known = {"flavorRef": self.flavor, "imageRef": self.image_id, "networks": "none", "tag": "tag"}
        if name in known:
            return known[name]
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                rest = {key: value for key, value in schema.items() if key != keyword}
                return self._smallest({**rest, **schema[keyword][0]}, name)
        if "enum" in schema:
            return schema["enum"][0]
        kinds = schema.get("type", "string")
        kind = kinds if isinstance(kinds, str) else "null" if "null" in kinds else kinds[0]
        if kind == "object":
            fields = {key: value for key, value in schema.get("properties", {}).items()
                      if key in schema.get("required", ()) or key == "networks"}
            least = {key: self._smallest(value, key) for key, value in fields.items()}
            if not least and schema.get("minProperties"):
                key, value = next(iter((schema.get("properties") or {"key": {}}).items()))
                least = {key: self._smallest(value, key)}
            return least
        if kind == "array":
            return [self._smallest(schema.get("items", {}), "")] * schema.get("minItems", 0)
        if kind == "string":
            return {"uuid": NIL, "ipv4": "10.0.0.9", "ip": "10.0.0.9", "cidr": "10.0.0.0/24", "base64": "YQ==",
                    "date-time": "2026-01-01T00:00:00Z", "uri": "http://matrix"}.get(
                        schema.get("format"), "matrix"[:schema.get("maxLength", 255)])
        return {"integer": schema.get("minimum", 1), "number": 1, "boolean": True, "null": None}[kind]


@pytest.fixture
def owners(suite, image_id):
    """Return the resources of the requesting project "matrix" and of the project "owner"."""
    admin = Client(suite.url)
    flavor = admin.flavor()
    made = {project: Things(admin, project, flavor, image_id) for project in ("matrix", "owner")}
    for things in made.values():
        things.boot()
    yield made
    for things in made.values():
        things.remove()
    remove_images(image_id)


def _ask(url, things, route, **identity):
    client = Client(url, **identity)
    version = min(route.until, microversion.MAX)
    body = things.body(route, version)
    return client.session.request(
        route.method, f"{url}/v2.1{things.path(route)}", timeout=60,
        json={route.action: None} if body is None and route.action else body,
        headers={"OpenStack-API-Version": f"compute 2.{version}"})


def _is_anothers(route):
    """Return True if the path names a resource of a project."""
    return "{" in route.path and route.path.split("/")[1] in (
        "servers", "os-volumes_boot", "os-server-groups", "os-security-groups", "images", "os-volumes",
        "os-security-group-rules")


@pytest.mark.parametrize("role", _ROLES)
def test_forbidden_operations_are_refused_without_changes(suite, owners, reference, role):
    things = owners["matrix"]
    before, wrong, asked = things.seen(), [], 0
    for route in _ROUTES:
        if reference(route, role, own=True):
            continue
        asked += 1
        answer = _ask(suite.url, things, route, project="matrix", user="matrix", roles=_ROLES[role])
        if answer.status_code != 403:
            wrong.append((_operation(route), answer.status_code, answer.text[:200]))
    assert wrong == []
    assert things.seen() == before
    assert bool(asked) == (role != "admin")


@pytest.mark.parametrize("role", [role for role in _ROLES if role != "admin"])
def test_resources_of_another_project_are_hidden_and_unchanged(suite, owners, role):
    things = owners["owner"]
    things.furnish()
    before, wrong, asked = things.seen(), [], set()
    for route in routes.ROUTES:
        if not _is_anothers(route) or route.handler is legacy_routes.no_longer_available:
            continue
        asked.add(route.path.split("/")[1])
        answer = _ask(suite.url, things, route, project="matrix", user="matrix", roles=_ROLES[role])
        if answer.status_code not in (403, 404):
            wrong.append((_operation(route), answer.status_code, answer.text[:200]))
    assert wrong == []
    assert things.seen() == before
    assert asked >= things.others.keys()


@pytest.mark.parametrize("role", _ROLES)
def test_allowed_operations_are_not_refused(suite, owners, reference, role):
    things = owners["matrix"]
    wrong = []
    for route in _ROUTES:
        if not reference(route, role, own=True) or (route.method, route.path) in _LEFT_OUT:
            continue
        answer = _ask(suite.url, things, route, project="matrix", user="matrix", roles=_ROLES[role])
        if answer.status_code in (401, 403) or (answer.status_code >= 500 and answer.status_code != 501):
            wrong.append((_operation(route), answer.status_code, answer.text[:200]))
        if detail := undocumented(route.until, route.method, route.path, answer, route.action):
            wrong.append((_operation(route), "is not as documented", detail))
        if answer.ok and route.method != "GET" and route.path.startswith(("/servers/", "/os-volumes_boot/")):
            with contextlib.suppress(Failed):  # already deleted
                things.owner.delete(f"/servers/{things.server}")
            things.owner.wait_gone(things.server)
            things.boot()
    assert wrong == []
