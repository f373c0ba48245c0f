"""DNS records of floating addresses: updates by messages and polls in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nova import conf
from nova.network import dhcp
from nova.network.dns import DnsRecords
from nova.objects.floating_ip_dns import ServedDomain


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


def west(version: int, gone: bool = False) -> ServedDomain:
    return ServedDomain(domain="west.test", version=version, gone=gone, names={} if gone else {"a": "203.0.113.1"})


def conductor(*there: ServedDomain) -> Callable[[dict[str, int]], list[ServedDomain]]:
    """Return a query like nova/db/served_names.py: newer domains, and deletions of the others."""
    def answer(known: dict[str, int]) -> list[ServedDomain]:
        here = {each.domain for each in there}
        return [ServedDomain(domain=domain, version=version, gone=True) for domain, version in known.items()
                if domain not in here] + [each for each in there if each.version > known.get(each.domain, -1)]

    return answer


def update(names: DnsRecords, *domains: ServedDomain) -> None:
    names.update(domains, lambda: None)


def poll(names: DnsRecords, *there: ServedDomain) -> None:
    names.poll(conductor(*there), lambda: None)


@pytest.mark.parametrize("gone", [5, 9])
def test_a_domain_that_went_and_is_here_again_as_it_was_is_served(names: DnsRecords, file: Path, gone: int) -> None:
    """The host came back to its zone (5), or the database was restored (9)."""
    update(names, west(5))
    update(names, west(gone, gone=True))
    assert file.read_text() == ""
    poll(names, west(5))
    assert (file.read_text(), names.versions()) == ("203.0.113.1 a.west.test\n", {"west.test": 5})


def test_an_answer_that_is_no_news_ends_the_questions(names: DnsRecords) -> None:
    update(names, west(9))
    asked: list[dict[str, int]] = []

    def answer(known: dict[str, int]) -> list[ServedDomain]:
        asked.append(known)
        assert len(asked) < 10, "it is asked without end"
        return [west(5)]

    names.poll(answer, lambda: None)
    assert asked == [{"west.test": 9}]


def test_a_word_that_comes_late_brings_no_domain_back(names: DnsRecords, file: Path) -> None:
    update(names, west(5))
    update(names, west(6, gone=True))
    update(names, west(5))
    assert (file.read_text(), names.versions()) == ("", {})


def test_what_went_while_it_was_asked_stays_away(names: DnsRecords, file: Path) -> None:
    def answer(known: dict[str, int]) -> list[ServedDomain]:
        update(names, west(6, gone=True))
        return [west(5)]

    names.poll(answer, lambda: None)
    assert (file.read_text(), names.versions()) == ("", {})
