"""Versions, headers, bodies and errors that all operations share."""

import concurrent.futures

import pytest

from nova import exception
from nova.api import microversion, openapi, routes, versions
from nova.conf import CONF
from nova.objects.accounts.keypair import Keypair

BOTH = ("x-openstack-request-id", "x-compute-request-id")


class Keys:
    """Key pairs in memory."""

    def __init__(self):
        self.kept = {}
        self.fail = None
        self.ctx = None

    def index(self, ctx, user_id, limit=None, marker=None):
        self.ctx = ctx
        if self.fail:
            raise self.fail
        return list(self.kept.values())

    def get(self, ctx, user_id, name):
        if name not in self.kept:
            raise exception.KeypairNotFound(name=name, user_id=user_id)
        return self.kept[name]

    def create(self, ctx, keypair, imported):
        self.kept[keypair.name] = keypair
        return keypair


@pytest.fixture
def keys(api):
    api.behind.keypairs = Keys()
    return api.behind.keypairs


# -- version documents ------------------------------------------------------------------------------
def test_root_document_lists_v2_0_and_v2_1(api):
    answer = api.get("/")
    assert answer.status == 200
    assert [item["id"] for item in answer.json["versions"]] == ["v2.0", "v2.1"]
    assert answer.json["versions"][1] == {
        "id": "v2.1", "status": "CURRENT", "version": "2.104", "min_version": "2.1",
        "updated": "2013-07-23T11:33:21Z", "links": [{"rel": "self", "href": "http://api:8774/v2.1/"}]}


@pytest.mark.parametrize(("path", "ident", "status"), [
    ("/v2.1", "v2.1", "CURRENT"), ("/v2.1/", "v2.1", "CURRENT"), ("/v2", "v2.0", "DEPRECATED"),
    ("/v2/", "v2.0", "DEPRECATED")])
def test_version_document_has_status_and_links(api, path, ident, status):
    document = api.get(path).json["version"]
    assert (document["id"], document["status"]) == (ident, status)
    assert [link["rel"] for link in document["links"]] == ["self", "describedby"]


def test_unversioned_paths_return_300_with_the_versions(api):
    answer = api.get("/nothing/here")
    assert answer.status == 300
    assert [choice["links"][0]["href"] for choice in answer.json["choices"]] == [
        "http://api:8774/v2/nothing/here", "http://api:8774/v2.1/nothing/here"]


def test_compute_link_prefix_replaces_the_host_of_links(api):
    CONF.set_override("compute_link_prefix", "https://cloud/compute/", group="api")
    try:
        assert api.get("/v2.1").json["version"]["links"][0]["href"] == "https://cloud/compute/v2.1/"
    finally:
        CONF.clear_override("compute_link_prefix", group="api")


def linked(api, address, **headers):
    answer = api.get("/v2.1", headers=headers, address=address)
    return answer.json["version"]["links"][0]["href"] if answer.status == 200 else answer.error


def test_links_use_forwarded_headers_of_trusted_proxies_only(api):
    CONF.set_override("trusted_proxies", ["10.0.0.0/24", "2001:db8::5"], group="api")
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "cloud.example:443"}
    try:
        for proxy in ("10.0.0.7", "2001:db8::5", "::ffff:10.0.0.7"):
            assert linked(api, proxy, **said) == "https://cloud.example:443/v2.1/"
        for stranger in ("10.0.1.7", "2001:db8::6", "", "nonsense"):
            assert linked(api, stranger, **said) == "http://api:8774/v2.1/"
        twice = {"X-Forwarded-Proto": "javascript, https", "X-Forwarded-Host": "evil, cloud"}
        assert linked(api, "10.0.0.7", **twice) == "https://cloud/v2.1/", "a forwarded header of the client was trusted"
    finally:
        CONF.clear_override("trusted_proxies", group="api")
    assert linked(api, "10.0.0.7", **said) == "http://api:8774/v2.1/"


@pytest.mark.parametrize("scheme", ["javascript", "javascript:alert(1)//", "", "ftp"])
def test_links_ignore_a_forwarded_scheme_other_than_http_or_https(api, scheme):
    CONF.set_override("trusted_proxies", ["10.0.0.7"], group="api")
    try:
        assert linked(api, "10.0.0.7", **{"X-Forwarded-Proto": scheme}) == "http://api:8774/v2.1/"
    finally:
        CONF.clear_override("trusted_proxies", group="api")


@pytest.mark.parametrize("host", ["a b", "a/b", "a@b", "<script>", "a:b", "[::1", "a:123456", "x" * 256])
def test_malformed_host_header_is_refused(api, host):
    assert linked(api, "10.0.0.7", Host=host) == ("badRequest", 400, "The header Host is malformed.")


@pytest.mark.parametrize("host", ["api", "api.example:8774", "10.1.2.3:80", "[2001:db8::1]:8774", "my_host"])
def test_host_header_accepts_names_and_addresses(api, host):
    assert linked(api, "10.0.0.7", Host=host) == f"http://{host}/v2.1/"


# -- microversions ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("headers", "version"), [
    ({}, "2.1"),
    ({"OpenStack-API-Version": "compute 2.47"}, "2.47"),
    ({"OpenStack-API-Version": "compute latest"}, "2.104"),
    ({"X-OpenStack-Nova-API-Version": "2.9"}, "2.9"),
    ({"OpenStack-API-Version": "compute 2.47", "X-OpenStack-Nova-API-Version": "2.9"}, "2.47"),
    ({"OpenStack-API-Version": "identity 3.1, compute 2.47"}, "2.47"),
    ({"OpenStack-API-Version": "volume 3.50"}, "2.1"),
])
def test_requested_microversion_is_returned_in_the_headers(api, keys, headers, version):
    answer = api.get("/v2.1/os-keypairs", headers=headers)
    assert answer.status == 200
    assert answer.headers["openstack-api-version"] == f"compute {version}"
    assert answer.headers["x-openstack-nova-api-version"] == version
    assert answer.headers["vary"] == "OpenStack-API-Version, X-OpenStack-Nova-API-Version"


@pytest.mark.parametrize("version", ["2", "2.01", "abc", "v2.1", "2.1.1", "-2.1"])
def test_malformed_microversion_returns_400(api, version):
    assert api.get("/v2.1/os-keypairs", version=version).error == (
        "badRequest", 400,
        f"API Version String {version} is of invalid format. Must be of format MajorNum.MinorNum.")


@pytest.mark.parametrize("version", ["2.105", "2.0", "3.0", "1.1"])
def test_unsupported_microversion_returns_406(api, version):
    assert api.get("/v2.1/os-keypairs", version=version).error == (
        "computeFault", 406,
        f"Version {version} is not supported by the API. Minimum is 2.1 and maximum is 2.104.")


def test_operation_of_a_later_microversion_returns_404(api):
    answer = api.get("/v2.1/servers/id/tags", version="2.25")
    assert answer.error == ("itemNotFound", 404, "The resource could not be found.")
    assert answer.headers["openstack-api-version"] == "compute 2.25"


# -- /v2 --------------------------------------------------------------------------------------------
def test_v2_has_no_microversions(api, keys):
    answer = api.get("/v2/os-keypairs", version="2.999")
    assert answer.status == 200
    assert not {"vary", "openstack-api-version", "x-openstack-nova-api-version"} & set(answer.headers)


def test_v2_drops_unknown_keys_and_spaces_around_names(api, keys):
    body = {"keypair": {"name": " a ", "junk": 1, "type": "x509", "public_key": _KEY}, "more": 2}
    assert api.post("/v2/os-keypairs", body).status == 200
    assert list(keys.kept) == ["a"]


# -- urls -------------------------------------------------------------------------------------------
def test_url_may_contain_the_project_id_of_the_token(api, keys):
    assert api.get("/v2.1/0123abcd/os-keypairs", headers={"X-Project-Id": "0123abcd"}).status == 200


def test_url_with_another_project_id_returns_400(api, keys):
    assert api.get("/v2.1/0123abcd/os-keypairs", headers={"X-Project-Id": "ffff"}).error == (
        "badRequest", 400,
        "Malformed request URL: URL's project_id '0123abcd' doesn't match Context's project_id 'ffff'")


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/v2.1/nothing"), ("PUT", "/v2.1/os-keypairs"), ("PATCH", "/v2.1/os-keypairs"),
    ("GET", "/v2.1/os-keypairs/a/b"), ("GET", "/v2.1/os-keypairs/")])
def test_unknown_url_returns_a_plain_text_404(api, method, path):
    answer = api(method, path)
    assert answer.status == 404
    assert answer.headers["content-type"].startswith("text/plain")
    assert "openstack-api-version" not in answer.headers
    assert "itemNotFound" not in api(method, path, headers={"Accept": "application/json"}).json


def test_removed_apis_return_410_in_every_microversion(api):
    for version in ("2.1", "2.104"):
        key, code, _message = api.get("/v2.1/os-cells/detail", version=version).error
        assert (key, code) == ("computeFault", 410)


# -- request ids ------------------------------------------------------------------------------------
def test_every_response_has_a_unique_request_id(api, keys):
    answers = [api.get("/v2.1/os-keypairs"), api.get("/v2.1/os-keypairs/none"), api.get("/v2.1/nothing")]
    ids = [answer.headers[BOTH[0]] for answer in answers]
    assert len(set(ids)) == 3
    assert all(answer.headers[BOTH[1]] == answer.headers[BOTH[0]] for answer in answers)


@pytest.mark.parametrize(("sent", "kept"), [
    ("req-11111111-2222-3333-4444-555555555555", True), ("req-junk", False), ("x\ny", False)])
def test_well_formed_global_request_id_is_passed_to_the_conductor(api, keys, sent, kept):
    api.get("/v2.1/os-keypairs", headers={"X-OpenStack-Request-ID": sent})
    assert (keys.ctx.global_request_id == sent) == kept


# -- bodies -----------------------------------------------------------------------------------------
_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ9ZmbDqe+Fz0s9kP3v5m1LzN0Wl8m2Yv1Xy2r0QhQ1A"


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100000, b"nonsense"])
def test_a_body_that_is_not_json_is_refused(api, keys, raw):
    assert api.post("/v2.1/os-keypairs", raw=raw).error == ("badRequest", 400, "Malformed request body")


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_must_be_an_object(api, keys, body):
    assert api.post("/v2.1/os-keypairs", body).status == 400


def test_body_above_the_size_limit_returns_413(api, keys):
    assert api.post("/v2.1/os-keypairs", raw=b"x" * 1024 * 1024).error == (
        "overLimit", 413, "Request is too large.")


@pytest.mark.parametrize("kind", ["application/xml", "application/x-www-form-urlencoded"])
def test_unsupported_content_types_return_415(api, keys, kind):
    answer = api.post("/v2.1/os-keypairs", {}, headers={"Content-Type": kind})
    assert answer.error == ("badMediaType", 415, "Unsupported Content-Type")


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/plain",
                                  "application/vnd.openstack.compute+json"])
def test_accepted_content_types_are_parsed_as_json(api, keys, kind):
    body = {"keypair": {"name": "a", "public_key": _KEY}}
    assert api.post("/v2.1/os-keypairs", body, headers={"Content-Type": kind}).status == 200


@pytest.mark.parametrize(("keypair", "message"), [
    ({"name": "a", "junk": 1}, "Invalid input for field/attribute keypair. Value: {'name': 'a', 'junk': 1}. "
                               "Additional properties are not allowed ('junk' was unexpected)"),
    ({}, "Invalid input for field/attribute keypair. Value: {}. 'name' is a required property"),
    ({"name": " a"}, "Invalid input for field/attribute name. Value:  a. An invalid 'name' value was provided. "
                     "The name must be: printable characters. Can not start or end with whitespace."),
    ({"name": 5}, "Invalid input for field/attribute name. Value: 5. 5 is not of type 'string'"),
])
def test_validation_error_contains_field_and_reason(api, keys, keypair, message):
    assert api.post("/v2.1/os-keypairs", {"keypair": keypair}).error == ("badRequest", 400, message)


def test_validation_error_of_a_long_value_is_truncated(api, keys):
    body = {"keypair": {"name": "a" * 100000}}
    assert len(api.post("/v2.1/os-keypairs", body).error[2]) < 5000


# -- query ------------------------------------------------------------------------------------------
def test_unknown_query_parameters_are_refused_from_2_75(api, keys):
    assert api.get("/v2.1/os-keypairs?junk=1", version="2.74").status == 200
    assert api.get("/v2.1/os-keypairs?junk=1", version="2.75").error == (
        "badRequest", 400, "Additional properties are not allowed ('junk' was unexpected)")


@pytest.mark.parametrize("limit", ["-1", "a", ""])
def test_invalid_limit_parameter_is_refused(api, keys, limit):
    key, code, message = api.get(f"/v2.1/os-keypairs?limit={limit}", version="2.35").error
    assert (key, code) == ("badRequest", 400)
    assert message.startswith("Invalid input for query parameters limit. Value:")


def test_query_with_invalid_utf8_is_refused(api, keys):
    assert api.get("/v2.1/os-keypairs?user_id=%ff", version="2.10").status == 400


def test_full_page_of_keypairs_has_a_next_link(api, keys):
    keys.kept = {name: Keypair(user_id="u", name=name, public_key="k") for name in ("a", "b c")}
    answer = api.get("/v2.1/os-keypairs?limit=2&marker=z&user_id=u", version="2.35")
    assert answer.json["keypairs_links"] == [{
        "rel": "next", "href": "http://api:8774/v2.1/os-keypairs?limit=2&marker=b+c&user_id=u"}]
    assert "keypairs_links" not in api.get("/v2.1/os-keypairs?limit=3", version="2.35").json


# -- errors -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("error", "expected"), [
    (exception.Conflict("no"), ("conflictingRequest", 409, "no")),
    (exception.QuotaLimit("too many"), ("forbidden", 403, "too many")),
    (exception.ServiceUnavailable(), ("serviceUnavailable", 503, "Service is unavailable at this time.")),
    (exception.NotImplementedHere(what="fly"), ("notImplemented", 501, "Unable to fly: not supported by the driver.")),
])
def test_error_of_the_conductor_keeps_status_and_message(api, keys, error, expected):
    keys.fail = error
    answer = api.get("/v2.1/os-keypairs")
    assert answer.error == expected
    assert ("retry-after" in answer.headers) == (answer.error[1] == 503)


@pytest.mark.parametrize("error", [ValueError("secret"), exception.InternalError(where="secret"), KeyError("secret")])
def test_unexpected_error_is_a_500_without_details(api, keys, error):
    keys.fail = error
    answer = api.get("/v2.1/os-keypairs")
    key, code, message = answer.error
    assert (key, code) == ("computeFault", 500)
    assert message.startswith("Unexpected API Error. ")
    assert message.endswith(f"<class '{type(error).__module__}.{type(error).__name__}'>")
    assert "secret" not in answer.text
    assert BOTH[0] in answer.headers


# -- policy -----------------------------------------------------------------------------------------
def test_forbidden_operation_returns_403_with_the_policy_rule(api, keys):
    answer = api.get("/v2.1/os-keypairs?user_id=other", version="2.10", roles="member")
    assert answer.error == (
        "forbidden", 403, "Policy doesn't allow os_compute_api:os-keypairs:index to be performed.")


def test_token_without_a_project_scope_is_refused(api, keys):
    CONF.set_override("auth_strategy", "keystone", group="api")
    headers = {"X-Identity-Status": "Confirmed", "X-User-Id": "u", "X-Roles": "admin,member,reader"}
    assert api.get("/v2.1/os-keypairs", headers={**headers, "OpenStack-System-Scope": "all"}).status == 403
    assert api.get("/v2.1/os-keypairs", headers={**headers, "X-Project-Id": "p"}).status == 200
    assert api.get("/v2.1/os-keypairs", headers={"X-User-Id": "u", "X-Project-Id": "p"}).error[:2] == (
        "unauthorized", 401)


def test_every_operation_without_a_token_returns_401(api):
    CONF.set_override("auth_strategy", "keystone", group="api")
    answers = {(route.method, route.path): api(route.method, f"/v2.1{route.path}", {route.action or "x": None}).status
               for route in routes.ROUTES if route.handler is not versions.show}
    assert len(answers) > 100
    assert {route: status for route, status in answers.items() if status != 401} == {}


def test_policy_file_overrides_the_defaults(api, keys, policy_file):
    policy_file('"os_compute_api:os-keypairs:index": "!"\n')
    assert api.get("/v2.1/os-keypairs").status == 403


@pytest.mark.parametrize("raw", [b'{"keypair": {"name": "a", "public_key": "\\u0000"}}', b'{"\\u0000": 1}'])
def test_requests_with_nul_characters_are_refused(api, keys, raw):
    assert api.post("/v2.1/os-keypairs", raw=raw).status == 400
    assert api.get("/v2.1/os-keypairs?user_id=%00", version="2.10").status == 400
    assert api.get("/v2.1/os-keypairs/a\0b").status == 404


# -- openapi ----------------------------------------------------------------------------------------
def test_openapi_document_describes_the_requested_microversion(api):
    old, new = (api.get("/openapi.json", version=version).json for version in ("2.1", "2.104"))
    assert old["openapi"] == "3.1.0"
    assert (old["info"]["version"], new["info"]["version"]) == ("2.1", "2.104")
    assert "/servers/{server_id}/tags" not in old["paths"]
    assert "/servers/{server_id}/tags" in new["paths"]
    keypair = new["paths"]["/os-keypairs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert keypair["properties"]["keypair"]["required"] == ["name", "public_key"]
    assert "201" in new["paths"]["/os-keypairs"]["post"]["responses"]
    actions = new["paths"]["/servers/{server_id}/action"]["post"]["requestBody"]["content"]["application/json"]
    assert {"os-start", "reboot"} <= {next(iter(one["properties"])) for one in actions["schema"]["oneOf"]}


def test_openapi_document_is_built_once_per_version_and_never_concurrently(api, monkeypatch):
    """A build costs as much CPU time as dozens of requests, and any client may request the document."""
    build, running, most, built = openapi._document, [], [], []

    def counted(table, version):
        running.append(version)
        most.append(len(running))
        built.append(version)
        try:
            return build(table, version)
        finally:
            running.remove(version)

    openapi._packed.cache_clear()
    monkeypatch.setattr(openapi, "_document", counted)
    versions = [*range(1, microversion.MAX + 1)] * 2
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda minor: api.get("/v2.1/openapi", version=f"2.{minor}"), versions))
    assert {answer.status for answer in answers} == {200}
    assert sorted(built) == [*range(1, microversion.MAX + 1)]
    assert max(most) == 1
    shown = api.get("/v2.1/openapi", version="2.50", headers={"Host": "cloud:1"}).json
    assert shown == {**build(routes.table(), 50), "servers": [{"url": "http://cloud:1/v2.1"}]}
    assert answers[49].json["servers"] == [{"url": "http://api:8774/v2.1"}]


def test_openapi_document_has_unique_operations_and_declared_parameters(api):
    for version in ("2.1", "2.53", "2.104"):
        document = api.get("/v2.1/openapi", version=version).json
        assert document == api.get("/openapi.json", version=version).json
        seen = set()
        for path, item in document["paths"].items():
            for operation in item.values():
                assert operation["operationId"] not in seen
                seen.add(operation["operationId"])
                named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
                assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
                assert operation["summary"], path
                assert any(code.startswith("2") for code in operation["responses"])
