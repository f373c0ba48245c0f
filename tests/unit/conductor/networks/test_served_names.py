"""Publication of floating IP DNS names to the hosts whose guests may query them."""

from __future__ import annotations

import pytest

from nova.conductor.endpoints.by_hosts import NetworkHosts
from nova.conductor.endpoints.networks import FloatingIpDns
from nova.db.hosts import aggregates, services
from nova.db.networks import floating_ip_dns
from nova.objects.networks.network import Domain, Entry, ServedDomain
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
    assert len(dict(told)) == len(told), "a host received two messages"
    return dict(told)


def _known(core: Books, host: str, known: dict[str, int] | None = None) -> list[ServedDomain]:
    return NetworkHosts(core).names(ctx(), host, known or {})


def _put(names: FloatingIpDns, domain: str, scope: str = "public", zone: str | None = None, **entries: str) -> None:
    names.put_domain(ctx(), Domain(domain=domain, scope=scope, availability_zone=zone))
    for name, address in entries.items():
        names.put_entry(ctx(), Entry(domain=domain, name=name, address=address))


def test_dns_changes_are_merged_into_a_single_message_per_host(core: Books, names: FloatingIpDns) -> None:
    _put(names, "a.test", www="203.0.113.1", mail="203.0.113.2")
    _put(names, "b.test", www="203.0.113.3")
    core.statements()
    told = _told(core)
    assert len(core.statements()) == 5
    assert set(told) == {"h1", "h2", "h3"}
    assert [(each.domain, each.names) for each in told["h1"]] == [
        ("a.test", {"www": "203.0.113.1", "mail": "203.0.113.2"}), ("b.test", {"www": "203.0.113.3"})]
    assert _told(core) == {}


def test_private_dns_domain_is_served_only_in_its_zone(core: Books, names: FloatingIpDns) -> None:
    _put(names, "west.test", "private", "west", a="203.0.113.1")
    _put(names, "all.test", "private", a="203.0.113.2")
    told = _told(core)
    assert [(each.domain, each.removed) for each in told["h2"]] == [("all.test", False), ("west.test", False)]
    assert [(each.domain, each.removed, each.names) for each in told["h1"]] == [
        ("all.test", False, {"a": "203.0.113.2"}), ("west.test", True, {})]
    assert [each.domain for each in _known(core, "h1")] == ["all.test"]
    assert [each.domain for each in _known(core, "h2")] == ["all.test", "west.test"]


def test_dns_domain_version_grows_after_deletion_and_recreation(core: Books, names: FloatingIpDns) -> None:
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


def test_host_gets_only_dns_domains_newer_than_its_versions(core: Books, names: FloatingIpDns) -> None:
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


def test_host_that_changes_its_zone_gets_the_private_domains_of_the_zone(core: Books, names: FloatingIpDns) -> None:
    _put(names, "west.test", "private", "west", a="203.0.113.1")
    known = {each.domain: each.version for each in _known(core, "h2")}
    found = core.db.read(aggregates.index)[0].id
    core.db.write(lambda connection: aggregates.remove_host(connection, found, "h2"))
    core.db.write(lambda connection: aggregates.add_host(connection, found, "h1"))
    assert [(each.domain, each.removed) for each in _known(core, "h2", known)] == [("west.test", True)]
    assert [each.domain for each in _known(core, "h1")] == ["west.test"]


def test_new_host_gets_many_dns_domains_in_pages(
        core: Books, names: FloatingIpDns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floating_ip_dns, "SERVED_AT_ONCE", 2)
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
