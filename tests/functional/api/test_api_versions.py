"""Requests in every microversion: operations of the microversion respond, all other operations are not found."""

import json

import pytest

from nova.api import microversion, routes
from tests.functional.refusals import HUGE, raw
from tests.functional.refusals import server_fixture as _server  # noqa: F401 (fixture)
from tests.functional.refusals import shelf_fixture as _shelf  # noqa: F401 (fixture)
from tests.paths import DATA

NOVA = "X-OpenStack-Nova-API-Version"
NEW = "OpenStack-API-Version"

_LISTS = [route for route in routes.ROUTES if route.method == "GET" and "{" not in route.path]
# First and last versions of each route, and the versions next to them.
_BORDERS = sorted({version for route in routes.ROUTES for version in (
    route.since - 1, route.since, route.until, route.until + 1)
    if microversion.MIN <= version <= microversion.MAX})


@pytest.mark.parametrize(("version", "code"), [
    ("2.105", 406), ("2.0", 406), ("3.1", 406), ("1.1", 406), ("2." + HUGE, 406),
    ("2", 400), ("2.01", 400), ("abc", 400), ("2.1.1", 400), ("-2.1", 400), ("2.x", 400), ("\N{DIGIT TWO}.1x", 400),
    ("2." + "9" * 5000, 406),
])
def test_unsupported_microversions_are_refused(admin, version, code):
    answer = raw(admin, "GET", "/servers", version=version)
    assert answer.status_code == code, answer.text
    assert version[:100] in next(iter(answer.json().values()))["message"]


def _expected_keys():
    """Return the keys of a server by (version, kind of response), from the API samples for administrators."""
    found = {}
    for kind in ("show", "detail"):
        keys = set()
        for version, came, went in json.loads((DATA / "server_keys.json").read_text())[kind]:
            keys = (keys | set(came)) - set(went)
            if version < 90:
                found[version, kind] = keys
    return found


def test_server_keys_of_every_microversion(admin, server):
    expected = _expected_keys()
    assert len(expected) > 10
    for version in range(microversion.MIN, microversion.MAX + 1):
        answer = raw(admin, "GET", f"/servers/{server}", version=f"2.{version}")
        assert (answer.status_code, answer.headers[NEW], answer.headers[NOVA]) == (
            200, f"compute 2.{version}", f"2.{version}")
        (listed,) = admin.get("/servers/detail", version=f"2.{version}")["servers"]
        for kind, shown in (("show", answer.json()["server"]), ("detail", listed)):
            assert set(shown) == expected.get((version, kind), set(shown)), version


@pytest.mark.parametrize("version", _BORDERS)
def test_list_urls_exist_only_in_their_microversions(admin, version):
    for route in _LISTS:
        answer = raw(admin, "GET", route.path, version=f"2.{version}")
        there = any(other.since <= version <= other.until for other in _LISTS if other.path == route.path)
        if there:
            # 410: removed from the API; 501: requires Ironic.
            assert answer.status_code in (200, 410, 501), f"{route.path} {version} {answer.text}"
            assert answer.headers[NEW] == f"compute 2.{version}"
        else:
            assert (answer.status_code, answer.json()["itemNotFound"]["code"]) == (404, 404)


def test_microversion_headers_and_latest(admin):
    def answered(**headers):
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return admin.session.get(f"{admin.url}/v2.1/servers", headers=sent, timeout=60).headers.get(NEW)

    assert answered() == "compute 2.1"
    assert answered(**{NEW: "compute latest"}) == f"compute 2.{microversion.MAX}"
    assert answered(**{NOVA: "2.7"}) == "compute 2.7"
    assert answered(**{NOVA: "2.7", NEW: "compute 2.9"}) == "compute 2.9"
    assert answered(**{NEW: "identity 3.4, compute 2.11"}) == "compute 2.11"
    assert answered(**{NEW: "identity 3.4"}) == "compute 2.1"


def test_v2_ignores_microversions_and_unknown_fields(admin, server):
    answer = raw(admin, "GET", f"/servers/{server}", prefix="/v2", version="2.96")
    assert (answer.status_code, answer.headers.get(NEW)) == (200, None)
    assert "tags" not in answer.json()["server"]
    body = json.dumps({"server": {"name": " spaced ", "colour": "red"}})
    changed = raw(admin, "PUT", f"/servers/{server}", body, prefix="/v2")
    assert (changed.status_code, changed.json()["server"]["name"]) == (200, "spaced")


def test_version_documents_are_public(admin):
    import requests

    found = requests.get(f"{admin.url}/", timeout=60).json()["versions"]
    assert [(item["id"], item["status"], item["version"]) for item in found] == [
        ("v2.0", "DEPRECATED", ""), ("v2.1", "CURRENT", f"2.{microversion.MAX}")]
    for version in ("2.1", "2.50", f"2.{microversion.MAX}"):
        document = requests.get(f"{admin.url}/openapi.json", headers={NEW: f"compute {version}"}, timeout=60).json()
        assert document["openapi"].startswith("3.1")
        assert "/servers" in "".join(document["paths"])
