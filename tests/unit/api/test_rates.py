"""Rate limits of projects, users and addresses: other clients are not affected."""

from __future__ import annotations

import multiprocessing

import pytest

from nova import exception
from nova.conf import CONF
from nova.service import rates
from tests.unit.api.conftest import Client


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Nothing:
    """A fake interface whose lists are empty."""

    def index(self, *_arguments, **_options):
        return []


@pytest.fixture
def limited():
    """Return a factory of API clients with the given options of [api]."""
    set_here = []

    def make(**options):
        for name, value in options.items():
            CONF.set_override(name, value, group="api")
            set_here.append(name)
        client = Client()
        client.behind.keypairs = Nothing()
        client.headers["X-Roles"] = "member"
        return client

    yield make
    for name in set_here:
        CONF.clear_override(name, group="api")


def ask(client, **headers):
    return client.get("/v2.1/os-keypairs", version="2.96", headers=headers).status


# -- limiter -----------------------------------------------------------------------------------------
def test_limiter_allows_a_burst_and_refills_over_time():
    clock = Clock()
    limiter = rates.Limiter(10, 5, clock)
    assert [limiter.take("a") for _ in range(10)] == [0.0] * 10
    assert limiter.take("a") == pytest.approx(0.5)
    clock.now += 0.25
    assert limiter.take("a") == pytest.approx(0.25), "refused requests do not count"
    clock.now += 0.26
    assert limiter.take("a") == 0
    assert limiter.take("a") > 0
    clock.now += 100
    assert [limiter.take("a") for _ in range(11)].count(0.0) == 10


def test_limiter_counts_each_client_separately():
    limiter = rates.Limiter(1, 60, Clock())
    assert [limiter.take(f"user-{number}") for number in range(50)].count(0.0) >= 49
    assert limiter.take("user-0") > 0


def test_forked_workers_share_a_rate_limit():
    limiter = rates.Limiter(6, 600)
    context = multiprocessing.get_context("fork")
    allowed = context.Queue()
    workers = [context.Process(target=lambda: allowed.put([limiter.take("p") for _ in range(4)].count(0.0)))
               for _ in range(3)]
    for worker in workers:
        worker.start()
        worker.join(60)
    assert sum(allowed.get(timeout=60) for _ in workers) == 6


@pytest.mark.parametrize("text", ["many", "10", "0/60", "10/0", "-1/60", "10/60s", "10 / 60"])
def test_malformed_rate_limit_option_is_refused_at_startup(limited, text):
    with pytest.raises(exception.InvalidInput, match="rate_limit_user"):
        limited(rate_limit_user=text)


# -- over HTTP ---------------------------------------------------------------------------------------
def test_no_rate_limit_applies_by_default(limited):
    client = limited()
    assert {ask(client) for _ in range(50)} == {200}


def test_client_above_the_rate_limit_gets_429_with_retry_after(limited):
    client = limited(rate_limit_project="3/600")
    assert [ask(client) for _ in range(3)] == [200] * 3
    answer = client.get("/v2.1/os-keypairs")
    assert answer.error == ("overLimit", 429, answer.json["overLimit"]["message"])
    assert 1 <= int(answer.headers["retry-after"]) <= 200
    assert answer.json["overLimit"]["retryAfter"] == answer.headers["retry-after"]
    assert "x-openstack-request-id" in answer.headers


def test_rate_limits_do_not_affect_other_projects_and_users(limited):
    client = limited(rate_limit_project="2/600", rate_limit_user="1/600")
    one, two, three = ({"X-User-Id": name} for name in ("one", "two", "three"))
    assert [ask(client, **who) for who in (one, one, two, three)] == [200, 429, 200, 429]
    assert ask(client, **{"X-User-Id": "four", "X-Project-Id": "9" * 32}) == 200


def test_admin_and_service_roles_are_exempt_from_rate_limits(limited):
    client = limited(rate_limit_project="1/600", rate_limit_user="1/600")
    for roles in ("admin", "service"):
        assert {ask(client, **{"X-Roles": roles}) for _ in range(5)} == {200}


def test_address_rate_limit_applies_before_authentication(limited):
    client = limited(rate_limit_address="2/600", trusted_proxies=["10.0.0.1"])

    def statuses(address, count, **headers):
        return [client.get("/", address=address, headers=headers).status for _ in range(count)]

    assert statuses("192.0.2.1", 3) == [200, 200, 429]
    assert statuses("192.0.2.2", 1,
                    **{"X-Forwarded-For": "192.0.2.1"}) == [200], "an untrusted X-Forwarded-For header was used"
    assert statuses("10.0.0.1", 5) == [200] * 5
    assert statuses("10.0.0.1", 1, **{"X-Forwarded-For": "203.0.113.9, 192.0.2.1"}) == [429]
    assert statuses("10.0.0.1", 1, **{"X-Forwarded-For": "192.0.2.1, 192.0.2.3"}) == [200]
    assert statuses("2001:db8::1", 1) + statuses("2001:db8::2", 2) == [200, 200, 429], "a /64 is a single client"
    answer = client.get("/", address="192.0.2.1")
    assert answer.error[:2] == ("overLimit", 429)
    assert answer.json["overLimit"]["retryAfter"] == answer.headers["retry-after"]


def test_the_placement_document_needs_no_token_and_counts_for_no_project(limited):
    """Keystonemiddleware does not check the headers of public paths, so they name whomever the client likes."""
    client = limited(rate_limit_project="1/600", auth_strategy="keystone")
    victim = {"X-Identity-Status": "Confirmed", "X-User-Id": "u", "X-Project-Id": "victim"}
    for method, status in (("GET", 200), ("HEAD", 200), ("POST", 405), ("DELETE", 405)):
        for path in ("/placement", "/placement/"):
            assert client(method, path, headers=victim).status == status
