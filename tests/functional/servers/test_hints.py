"""Scheduler hints: they reveal nothing about servers of other projects, and internal hints are dropped."""

import pytest

from tests.functional.client import Client


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


@pytest.mark.parametrize("name", ["os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"])
def test_internal_scheduler_hints_of_clients_are_dropped(admin, flavor, image_id, name):
    uuid = admin.boot(flavor, image_id, top={name: {"_nova_check_type": ["rebuild"], "nova": "x", "cidr": "/24"}})
    assert admin.server(uuid, version="2.100")["scheduler_hints"] == {"nova": "x", "cidr": "/24"}
