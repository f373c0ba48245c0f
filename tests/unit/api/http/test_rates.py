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
    """An interface that has nothing of anything."""

    def index(self, *_arguments, **_options):
        return []


@pytest.fixture
def limited():
    """A client of an API with these options of [api]."""
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


# -- the count ---------------------------------------------------------------------------------------
def test_so_many_at_once_and_then_as_time_goes_by():
    clock = Clock()
    limiter = rates.Limiter(10, 5, clock)
    assert [limiter.take("a") for _ in range(10)] == [0.0] * 10
    assert limiter.take("a") == pytest.approx(0.5)
    clock.now += 0.25
    assert limiter.take("a") == pytest.approx(0.25), "what was refused does not count"
    clock.now += 0.26
    assert limiter.take("a") == 0
    assert limiter.take("a") > 0
    clock.now += 100
    assert [limiter.take("a") for _ in range(11)].count(0.0) == 10


def test_each_has_its_own_count():
    limiter = rates.Limiter(1, 60, Clock())
    assert [limiter.take(f"user-{number}") for number in range(50)].count(0.0) >= 49
    assert limiter.take("user-0") > 0


def test_processes_that_are_forked_count_together():
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
def test_an_option_that_says_nothing_is_refused_at_the_start(limited, text):
    with pytest.raises(exception.InvalidInput, match="rate_limit_user"):
        limited(rate_limit_user=text)


# -- over HTTP ---------------------------------------------------------------------------------------
def test_without_options_there_is_no_limit(limited):
    client = limited()
    assert {ask(client) for _ in range(50)} == {200}


def test_who_asks_too_often_is_told_when_to_ask_again(limited):
    client = limited(rate_limit_project="3/600")
    assert [ask(client) for _ in range(3)] == [200] * 3
    answer = client.get("/v2.1/os-keypairs")
    assert answer.error == ("overLimit", 429, answer.json["overLimit"]["message"])
    assert 1 <= int(answer.headers["retry-after"]) <= 200
    assert answer.json["overLimit"]["retryAfter"] == answer.headers["retry-after"]
    assert "x-openstack-request-id" in answer.headers


def test_another_project_and_another_user_are_not_held_up(limited):
    client = limited(rate_limit_project="2/600", rate_limit_user="1/600")
    one, two, three = ({"X-User-Id": name} for name in ("one", "two", "three"))
    assert [ask(client, **who) for who in (one, one, two, three)] == [200, 429, 200, 429]
    assert ask(client, **{"X-User-Id": "four", "X-Project-Id": "9" * 32}) == 200


def test_operators_and_services_are_not_counted(limited):
    client = limited(rate_limit_project="1/600", rate_limit_user="1/600")
    for roles in ("admin", "service"):
        assert {ask(client, **{"X-Roles": roles}) for _ in range(5)} == {200}


def test_strangers_are_counted_before_they_are_asked_who_they_are(limited):
    client = limited(rate_limit_address="2/600", trusted_proxies=["10.0.0.1"])

    def statuses(address, count, **headers):
        return [client.get("/", address=address, headers=headers).status for _ in range(count)]

    assert statuses("192.0.2.1", 3) == [200, 200, 429]
    assert statuses("192.0.2.2", 1, **{"X-Forwarded-For": "192.0.2.1"}) == [200], "which is no proxy of ours"
    assert statuses("10.0.0.1", 5) == [200] * 5
    assert statuses("10.0.0.1", 1, **{"X-Forwarded-For": "203.0.113.9, 192.0.2.1"}) == [429]
    assert statuses("10.0.0.1", 1, **{"X-Forwarded-For": "192.0.2.1, 192.0.2.3"}) == [200]
    assert statuses("2001:db8::1", 1) + statuses("2001:db8::2", 2) == [200, 200, 429], "one /64 is one client"
    answer = client.get("/", address="192.0.2.1")
    assert answer.error[:2] == ("overLimit", 429)
    assert answer.json["overLimit"]["retryAfter"] == answer.headers["retry-after"]
