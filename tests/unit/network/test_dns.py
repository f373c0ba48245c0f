"""DNS records of floating addresses: updates by messages and polls in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nova import conf
from nova.network.linux import dhcp
from nova.network.linux.dhcp import DnsRecords
from nova.objects.networks.network import ServedDomain


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the hosts file that dnsmasq reads."""
    conf.register()
    path = tmp_path / "served"
    monkeypatch.setattr(dhcp, "names_file", lambda tag: str(path))
    return path


@pytest.fixture
def names(file: Path, tmp_path: Path) -> DnsRecords:
    records = DnsRecords(str(tmp_path), "t")
    records.write_hosts_file()
    return records


def west(version: int, deleted: bool = False) -> ServedDomain:
    names = {} if deleted else {"a": "203.0.113.1"}
    return ServedDomain(domain="west.test", version=version, removed=deleted, names=names)


def conductor(*domains: ServedDomain) -> Callable[[dict[str, int]], list[ServedDomain]]:
    """Return a query like nova.db.networks.floating_ip_dns: newer domains, and deletions of absent domains."""
    def answer(versions: dict[str, int]) -> list[ServedDomain]:
        present = {domain.domain for domain in domains}
        return [ServedDomain(domain=domain, version=version, removed=True) for domain, version in versions.items()
                if domain not in present] + [
                    served for served in domains if served.version > versions.get(served.domain, -1)]

    return answer


def update(names: DnsRecords, *domains: ServedDomain) -> None:
    names.update(domains, lambda: None)


def poll(names: DnsRecords, *domains: ServedDomain) -> None:
    names.poll(conductor(*domains), lambda: None)


@pytest.mark.parametrize("deletion", [5, 9])
def test_deleted_domain_that_returns_with_the_same_version_is_served(
        names: DnsRecords, file: Path, deletion: int) -> None:
    """The host returned to its zone (5), or the database was restored (9)."""
    update(names, west(5))
    update(names, west(deletion, deleted=True))
    assert file.read_text() == ""
    poll(names, west(5))
    assert (file.read_text(), names.versions()) == ("203.0.113.1 a.west.test\n", {"west.test": 5})


def test_dns_poll_ends_without_updates(names: DnsRecords) -> None:
    update(names, west(9))
    queries: list[dict[str, int]] = []

    def answer(versions: dict[str, int]) -> list[ServedDomain]:
        queries.append(versions)
        assert len(queries) < 10, "the poll does not end"
        return [west(5)]

    names.poll(answer, lambda: None)
    assert queries == [{"west.test": 9}]


def test_late_update_does_not_restore_a_deleted_domain(names: DnsRecords, file: Path) -> None:
    update(names, west(5))
    update(names, west(6, deleted=True))
    update(names, west(5))
    assert (file.read_text(), names.versions()) == ("", {})


def test_domain_deleted_during_a_poll_stays_deleted(names: DnsRecords, file: Path) -> None:
    def answer(versions: dict[str, int]) -> list[ServedDomain]:
        update(names, west(6, deleted=True))
        return [west(5)]

    names.poll(answer, lambda: None)
    assert (file.read_text(), names.versions()) == ("", {})
