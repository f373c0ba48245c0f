"""Scheduler hints: they reveal nothing about servers of other projects, and internal hints are dropped."""

import pytest

from nova.scheduler.filters.affinity import DifferentHostFilter, SameHostFilter
from nova.scheduler.manager import load_filters, load_weighers
from nova.scheduler.select import Planner
from tests.functional.client import Client, wait_for


class Asked:
    """A scheduler that records its request specs."""

    def __init__(self, scheduler):
        self.scheduler, self.specs = scheduler, []

    def select(self, ctx, spec):
        self.specs.append(spec)
        return self.scheduler.select(ctx, spec)


@pytest.mark.parametrize("hint", ["same_host", "different_host"])
def test_host_hints_ignore_servers_of_other_projects(suite, admin, flavor, image_id, monkeypatch, hint):
    """Prevent a project from locating or detecting the servers of another project."""
    asked = Asked(suite.conductor.core.scheduler)
    monkeypatch.setattr(suite.conductor.core, "scheduler", asked)
    stranger = Client(suite.url, project="q", user="stranger", roles="member,reader")
    victim = admin.boot(flavor, image_id)
    own = stranger.boot(flavor, image_id)
    for client, uuid in ((admin, victim), (stranger, own)):
        client.wait(uuid, "ACTIVE")
    built = stranger.boot(flavor, image_id, top={"os:scheduler_hints": {hint: [victim, own]}})
    stranger.wait(built, "ACTIVE")
    assert asked.specs[-1].hint_hosts == {own: suite.compute.host}


class Overtaken:
    """A scheduler whose first answer is delivered after the server ``other`` has moved to the other host."""

    def __init__(self, scheduler, admin, other, hosts):
        self.scheduler, self.admin, self.other, self.hosts, self.answers = scheduler, admin, other, hosts, []

    def select(self, ctx, spec):
        answer = self.scheduler.select(ctx, spec)
        if self.other not in spec.instance_uuids:
            self.answers.append(answer[0][0].host)
            if len(self.answers) == 1:
                before = self.admin.server(self.other)["OS-EXT-SRV-ATTR:host"]
                target, = self.hosts - {before}
                self.admin.action(self.other, "os-migrateLive", {"host": target, "block_migration": "auto"})
                wait_for(lambda: self.admin.server(self.other)["OS-EXT-SRV-ATTR:host"] == target)
                self.admin.wait_idle(self.other)
        return answer


@pytest.mark.parametrize("hint", ["same_host", "different_host"])
def test_claim_refuses_a_host_that_the_hint_excludes_after_the_other_server_moved(
        suite, admin, second, flavor, image_id, monkeypatch, hint):
    monkeypatch.setattr(suite.scheduler.manager, "_planner", Planner(
        [*load_filters(), SameHostFilter(), DifferentHostFilter()], load_weighers()))
    other = admin.boot(flavor, image_id)
    before = admin.wait(other, "ACTIVE")["OS-EXT-SRV-ATTR:host"]
    hosts = {suite.compute.host, second.host}
    scheduler = Overtaken(suite.conductor.core.scheduler, admin, other, hosts)
    monkeypatch.setattr(suite.conductor.core, "scheduler", scheduler)
    built = admin.boot(flavor, image_id, top={"os:scheduler_hints": {hint: [other]}})
    after, = hosts - {before}
    first, last = (before, after) if hint == "same_host" else (after, before)
    assert admin.wait(built, "ACTIVE")["OS-EXT-SRV-ATTR:host"] == last
    assert scheduler.answers == [first, last]


@pytest.mark.parametrize("name", ["os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"])
def test_internal_scheduler_hints_of_clients_are_dropped(admin, flavor, image_id, name):
    uuid = admin.boot(flavor, image_id, top={name: {"_nova_check_type": ["rebuild"], "nova": "x", "cidr": "/24"}})
    assert admin.server(uuid, version="2.100")["scheduler_hints"] == {"nova": "x", "cidr": "/24"}
