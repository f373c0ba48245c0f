"""Requests without a token: health checks of load balancers and CORS preflights of browsers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from nova import exception
from nova.api import healthcheck
from nova.conf import CONF

ORIGIN = "https://dashboard.example.com"


class Services:
    """A fake services interface of the conductor. Counts calls and raises ``error`` if set."""

    def __init__(self):
        self.calls = 0
        self.error = None

    def index(self, ctx, host=None, binary=None):
        self.calls += 1
        if self.error:
            raise self.error
        return []


@pytest.fixture
def services(api, monkeypatch):
    """Replace the services interface behind the API, and advance the clock by an hour per check."""
    api.behind.services = Services()
    monkeypatch.setattr("nova.bus.within", lambda proxy, seconds: proxy)
    hours = itertools.count(1e6, 3600)
    monkeypatch.setattr(healthcheck, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    return api.behind.services


@pytest.mark.parametrize("path", ["/", "/v2.1", "/v2.1/", "/healthcheck", "/anything"])
def test_options_on_a_public_path_returns_200_with_the_allow_header(api, path):
    answer = api("OPTIONS", path)
    assert (answer.status, answer.text, answer.headers["allow"]) == (200, "", "GET, HEAD, OPTIONS")


def test_basic_health_check_calls_no_other_service(api, services):
    services.error = exception.ServiceUnavailable("No conductor.")
    for method, text in (("GET", "OK"), ("HEAD", "")):
        answer = api(method, "/healthcheck")
        assert (answer.status, answer.text) == (200, text)
    as_json = api.get("/healthcheck", headers={"Accept": "application/json"})
    assert (as_json.status, as_json.json) == (200, {"detailed": False, "reasons": []})
    assert services.calls == 0


def test_detailed_health_check_reports_an_unavailable_conductor(api, services):
    healthy = api.get("/healthcheck?detailed")
    assert (healthy.status, healthy.json["reasons"]) == (
        200, [{"class": "conductor", "details": "", "reason": "OK"}])
    services.error = exception.ServiceUnavailable("No answer from conductor.")
    for query in ("?detailed", "?detailed=true", "?x=1&detailed"):
        answer = api.get(f"/healthcheck{query}")
        assert (answer.status, answer.json["detailed"], answer.json["reasons"][0]["reason"]) == (
            503, True, "No answer from conductor.")


def test_detailed_health_checks_call_the_conductor_once_in_two_seconds(api, services, monkeypatch):
    monkeypatch.setattr(healthcheck, "time", SimpleNamespace(monotonic=lambda: 1e6))
    assert {api.get("/healthcheck?detailed").status for _check in range(50)} == {200}
    assert services.calls == 1


def test_disable_by_file_makes_health_checks_return_503(api, tmp_path):
    file = tmp_path / "disabled"
    CONF.set_override("disable_by_file_path", str(file), group="healthcheck")
    try:
        assert api.get("/healthcheck").status == 200
        file.touch()
        answer = api.get("/healthcheck?detailed")
        assert (answer.status, answer.text) == (503, "DISABLED BY FILE")
    finally:
        CONF.clear_override("disable_by_file_path", group="healthcheck")


@pytest.fixture
def shared(api):
    """Create an API client with [cors]allowed_origin, which the application reads at its creation."""
    CONF.set_override("allowed_origin", [ORIGIN], group="cors")
    yield type(api)()
    CONF.clear_override("allowed_origin", group="cors")


@pytest.mark.parametrize("path", ["/", "/v2.1/servers", "/v2.1/servers/x/action"])
def test_a_preflight_of_an_allowed_origin_needs_no_token(shared, path):
    answer = shared("OPTIONS", path, headers={
        "Origin": ORIGIN, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-auth-token, openstack-api-version, content-type"})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert "x-auth-token" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-max-age"] == "3600"


def test_responses_and_errors_to_an_allowed_origin_have_cors_headers(shared):
    for path, status in (("/", 200), ("/v2.1/nothing", 404)):
        answer = shared.get(path, headers={"Origin": ORIGIN})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, ORIGIN)
        assert "OpenStack-API-Version" in answer.headers["access-control-expose-headers"]


def test_other_origins_get_no_cors_headers(shared, api):
    for client, origin in ((shared, "https://evil.example.com"), (api, ORIGIN)):
        for method in ("GET", "OPTIONS"):
            answer = client(method, "/", headers={"Origin": origin, "Access-Control-Request-Method": "GET"})
            assert answer.status == 200
            assert not [name for name in answer.headers if name.startswith("access-control")]
