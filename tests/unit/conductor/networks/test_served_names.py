"""Names of floating addresses reach the hosts whose guests may ask for them, and no others."""

from __future__ import annotations

import pytest

from nova.conductor.endpoints.by_hosts import NetworkHosts
from nova.conductor.endpoints.networks import FloatingIpDns
from nova.db.hosts import aggregates, services
from nova.db.networks import served_names
from nova.objects.networks.floating_ip_dns import Domain, Entry, ServedDomain
from tests.unit.conductor.books import Books, ctx


@pytest.fixture
def names(core: Books) -> FloatingIpDns:
    for host in ("h1", "h2", "h3"):
        core.db.write(lambda connection, host=host: services.register(connection, host, "nova-compute", "compute", 1))
    made = core.db.write(lambda connection: aggregates.create(connection, "west", "west"))
    core.db.write(lambda connection: aggregates.add_host(connection, made.id, "h2"))
    return FloatingIpDns(core)


def _told(core: Books) -> dict[str, list[ServedDomain]]:
    """Return the updates of every host since the last call, each in one message."""
    core.names.flush(everything=True)
    told, core.sent.names = core.sent.names, []
    assert len(dict(told)) == len(told), "a host was told twice"
    return dict(told)


def _known(core: Books, host: str, known: dict[str, int] | None = None) -> list[ServedDomain]:
    return NetworkHosts(core).names(ctx(), host, known or {})


def _put(names: FloatingIpDns, domain: str, scope: str = "public", zone: str | None = None, **entries: str) -> None:
    names.put_domain(ctx(), Domain(domain=domain, scope=scope, availability_zone=zone))
    for name, address in entries.items():
        names.put_entry(ctx(), Entry(domain=domain, name=name, address=address))


def test_many_changes_are_one_message_to_each_host_and_few_statements(core: Books, names: FloatingIpDns) -> None:
    _put(names, "a.test", www="203.0.113.1", mail="203.0.113.2")
    _put(names, "b.test", www="203.0.113.3")
    core.statements()
    told = _told(core)
    assert len(core.statements()) == 5
    assert set(told) == {"h1", "h2", "h3"}
    assert [(each.domain, each.names) for each in told["h1"]] == [
        ("a.test", {"www": "203.0.113.1", "mail": "203.0.113.2"}), ("b.test", {"www": "203.0.113.3"})]
    assert _told(core) == {}


def test_a_private_domain_is_for_its_zone_alone(core: Books, names: FloatingIpDns) -> None:
    _put(names, "west.test", "private", "west", a="203.0.113.1")
    _put(names, "all.test", "private", a="203.0.113.2")
    told = _told(core)
    assert [(each.domain, each.removed) for each in told["h2"]] == [("all.test", False), ("west.test", False)]
    assert [(each.domain, each.removed, each.names) for each in told["h1"]] == [
        ("all.test", False, {"a": "203.0.113.2"}), ("west.test", True, {})]
    assert [each.domain for each in _known(core, "h1")] == ["all.test"]
    assert [each.domain for each in _known(core, "h2")] == ["all.test", "west.test"]


def test_a_change_is_newer_than_what_was_told_before_also_when_the_domain_was_away(
        core: Books, names: FloatingIpDns) -> None:
    _put(names, "a.test", www="203.0.113.1")
    versions = [_told(core)["h1"][0].version]
    changes = (lambda: names.put_entry(ctx(), Entry(domain="A.test", name="www", address="203.0.113.9")),
               lambda: names.delete_entry(ctx(), "A.test", "www"),
               lambda: names.delete_domain(ctx(), "A.test"),
               lambda: _put(names, "a.test", www="203.0.113.1"),
               lambda: names.put_domain(ctx(), Domain(domain="a.test", scope="private", availability_zone="west")))
    for change in changes:
        change()
        [told] = _told(core)["h1"]
        versions.append(told.version)
        assert told.removed == (change in (changes[2], changes[4]))
    assert versions == sorted(set(versions))


def test_a_host_that_knows_all_is_told_nothing_and_one_that_missed_something_that(
        core: Books, names: FloatingIpDns) -> None:
    _put(names, "a.test", www="203.0.113.1")
    _put(names, "b.test", www="203.0.113.2")
    known = {each.domain: each.version for each in _known(core, "h1")}
    core.statements()
    assert _known(core, "h1", known) == []
    assert len(core.statements()) == 1
    names.put_entry(ctx(), Entry(domain="b.test", name="www", address="203.0.113.3"))
    names.delete_domain(ctx(), "a.test")
    gone, changed = _known(core, "h1", known)
    assert (gone.domain, gone.removed) == ("a.test", True)
    assert (changed.domain, changed.names) == ("b.test", {"www": "203.0.113.3"})


def test_a_host_that_comes_to_a_zone_learns_of_its_domains_and_forgets_those_of_the_other(
        core: Books, names: FloatingIpDns) -> None:
    _put(names, "west.test", "private", "west", a="203.0.113.1")
    known = {each.domain: each.version for each in _known(core, "h2")}
    found = core.db.read(aggregates.index)[0].id
    core.db.write(lambda connection: aggregates.remove_host(connection, found, "h2"))
    core.db.write(lambda connection: aggregates.add_host(connection, found, "h1"))
    assert [(each.domain, each.removed) for each in _known(core, "h2", known)] == [("west.test", True)]
    assert [each.domain for each in _known(core, "h1")] == ["west.test"]


def test_a_new_host_learns_of_many_domains_some_at_a_time(
        core: Books, names: FloatingIpDns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_names, "MOST", 2)
    for number in range(5):
        _put(names, f"d{number}.test")
    known: dict[str, int] = {}
    sizes = []
    while told := _known(core, "h1", known):
        sizes.append(len(told))
        known.update({each.domain: each.version for each in told})
    assert sizes == [2, 2, 1]
    core.names.flush(everything=True)
    assert [len(domains) for host, domains in core.sent.names if host == "h1"] == [2, 2, 1]
