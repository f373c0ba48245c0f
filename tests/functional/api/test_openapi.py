"""The OpenAPI documents: generated clients run against the suite, and responses match the documents."""

import importlib
import json
import re
import subprocess
import sys

import pytest

from nova.api import microversion, routes
from tests.functional.client import Client, Failed, wait_for
from tests.functional.documented import undocumented
from tests.functional.refusals import NIL

# A version in each range in which many responses differ.
_SOME = (1, 3, 16, 26, 35, 41, 47, 53, 57, 61, 69, 75, 79, 88, 96, 100, 104)
_ALL = range(microversion.MIN, microversion.MAX + 1)


def _generated(url, version, directory):
    """Generate a client from the document that the API serves; return the name of its package in ``directory``."""
    document = Client(url, version=f"2.{version}").get("/openapi")
    (directory / "document.json").write_text(json.dumps(document))
    (directory / "settings.yaml").write_text("post_hooks: []\nliteral_enums: true\n")
    name = f"client{version}"
    made = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--path", "document.json", "--output-path", name,
         "--meta", "none", "--config", "settings.yaml"],
        cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    said = made.stdout + made.stderr
    assert made.returncode == 0, said
    assert "WARNING" not in said, said  # the generator warns of omitted operations
    functions = {path.stem for path in (directory / name / "api").glob("*/*.py")} - {"__init__"}
    wanted = {one["operationId"] for item in document["paths"].values() for one in item.values()}
    assert len(functions) == len(wanted)
    return name


class _Generated:
    """A caller of the functions of a generated client: ``call("servers", "post_servers", body={...})``."""

    def __init__(self, url, name):
        self._name = name
        client = importlib.import_module(f"{name}.client").Client
        self._client = client(base_url=f"{url}/v2.1", timeout=60, raise_on_unexpected_status=True, headers={
            "X-Auth-Token": "g:generated", "X-User-Id": "g", "X-Project-Id": "generated", "X-Roles": "admin"})

    def model(self, name, value):
        return getattr(importlib.import_module(f"{self._name}.models"), name).from_dict(value)

    def __call__(self, tag, function, **arguments):
        """Return the status, and the parsed response as plain values."""
        module = importlib.import_module(f"{self._name}.api.{tag}.{function}")
        answer = module.sync_detailed(client=self._client, **arguments)
        parsed = answer.parsed.to_dict() if hasattr(answer.parsed, "to_dict") else None
        return int(answer.status_code), parsed


@pytest.fixture(params=[1, *(pytest.param(version, marks=pytest.mark.slow) for version in (35, 75)), 104])
def generated(request, suite, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return _Generated(suite.url, _generated(suite.url, request.param, tmp_path)), request.param


def test_generated_client_creates_stops_and_deletes_a_server(generated, image_id):
    call, version = generated
    body = call.model("PostFlavorsBody", {"flavor": {"name": f"generated-{version}", "ram": 64, "vcpus": 1, "disk": 1}})
    status, made = call("flavors", "post_flavors", body=body)
    flavor = made["flavor"]["id"]
    assert status == 200
    wanted = {"name": "generated", "flavorRef": flavor, "imageRef": image_id, "metadata": {"one": "1"}}
    body = call.model("PostServersBody", {"server": wanted | ({"networks": "none"} if version >= 37 else {})})
    status, made = call("servers", "post_servers", body=body)
    uuid = made["server"]["id"]
    assert status == 202

    def shown():
        return call("servers", "get_servers_server_id", server_id=uuid)[1]["server"]

    wait_for(lambda: shown()["status"] == "ACTIVE")
    assert shown()["metadata"] == {"one": "1"}
    assert ("tags" in shown(), "OS-EXT-SRV-ATTR:hostname" in shown()) == (version >= 26, version >= 3)
    listed = call("servers", "get_servers_detail", name=["generated"])[1]["servers"]
    assert [server["id"] for server in listed] == [uuid]
    stop = call.model("ActionServersServerIdActionOsStop", {"os-stop": None})
    assert call("servers", "action_servers_server_id_action", server_id=uuid, body=stop)[0] == 202
    wait_for(lambda: shown()["status"] == "SHUTOFF")
    status, refused = call("servers", "action_servers_server_id_action", server_id=NIL, body=stop)
    assert (status, refused["itemNotFound"]["code"]) == (404, 404)
    assert call("servers", "delete_servers_server_id", server_id=uuid)[0] == 204
    wait_for(lambda: call("servers", "get_servers_server_id", server_id=uuid)[0] == 404)
    assert call("flavors", "delete_flavors_id", id=flavor)[0] == 202


@pytest.mark.slow
@pytest.mark.parametrize("version", _ALL)
def test_client_generation_succeeds_for_every_microversion(suite, tmp_path, version):
    _generated(suite.url, version, tmp_path)


def test_openapi_document_is_public_and_depends_on_the_version(suite):
    client = Client(suite.url)
    client.session.headers.clear()
    shown = client.get("/openapi", version="2.10")
    assert (shown["info"]["version"], shown["servers"]) == ("2.10", [{"url": f"{suite.url}/v2.1"}])
    with pytest.raises(Failed, match="404"):
        client.post("/openapi", {})


@pytest.mark.parametrize("version", _SOME)
def test_responses_match_the_openapi_document(admin, flavor, image_id, version):
    server = admin.boot(flavor, image_id, metadata={"key": "value"}, tags=["tag"])
    admin.wait(server, "ACTIVE")
    old = Client(admin.url, version="2.35")
    volume = old.post("/os-volumes", {"volume": {"size": 1}})["volume"]["id"]
    known = {"servers": server, "os-volumes_boot": server, "flavors": flavor, "images": image_id, "os-volumes": volume,
             "os-quota-sets": "p", "os-simple-tenant-usage": "p", "os-quota-class-sets": "default"}
    wrong = []
    for route in routes.ROUTES:
        if route.method != "GET" or not route.since <= version <= route.until or getattr(route.handler, "removed", 0):
            continue
        first, *more = re.findall(r"{\w+}", route.path) or [""]
        path = route.path.replace(first, known.get(route.path.split("/")[1], NIL)) if first else route.path
        for name in more:
            path = path.replace(name, {"{key}": "key", "{tag}": "tag"}.get(name, NIL))
        answer = admin.session.get(f"{admin.url}/v2.1{path}", timeout=60,
                                   headers={"OpenStack-API-Version": f"compute 2.{version}"})
        if detail := undocumented(version, "GET", route.path, answer):
            wrong.append(f"{route.path}: {detail}")
    old.delete(f"/os-volumes/{volume}")
    assert wrong == []
