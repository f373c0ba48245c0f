"""Names of floating addresses as a host hears of them, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nova import conf
from nova.network import dhcp
from nova.network.names import Names
from nova.objects.floating_ip_dns import ServedDomain


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What dnsmasq reads."""
    conf.register()
    found = tmp_path / "served"
    monkeypatch.setattr(dhcp, "names_file", lambda tag: str(found))
    return found


@pytest.fixture
def names(file: Path, tmp_path: Path) -> Names:
    made = Names(str(tmp_path), "t")
    made.make()
    return made


def west(version: int, gone: bool = False) -> ServedDomain:
    return ServedDomain(domain="west.test", version=version, gone=gone, names={} if gone else {"a": "203.0.113.1"})


def conductor(*there: ServedDomain) -> Callable[[dict[str, int]], list[ServedDomain]]:
    """Answers as nova/db/served_names.py: what is newer than what is known, and what is not there any more."""
    def answer(known: dict[str, int]) -> list[ServedDomain]:
        here = {each.domain for each in there}
        return [ServedDomain(domain=domain, version=version, gone=True) for domain, version in known.items()
                if domain not in here] + [each for each in there if each.version > known.get(each.domain, -1)]

    return answer


def hear(names: Names, *told: ServedDomain) -> None:
    names.hear(told, lambda: None)


def ask(names: Names, *there: ServedDomain) -> None:
    names.ask(conductor(*there), lambda: None)


@pytest.mark.parametrize("gone", [5, 9])
def test_a_domain_that_went_and_is_here_again_as_it_was_is_served(names: Names, file: Path, gone: int) -> None:
    """The host came back to its zone (5), or the database was restored (9)."""
    hear(names, west(5))
    hear(names, west(gone, gone=True))
    assert file.read_text() == ""
    ask(names, west(5))
    assert (file.read_text(), names.known()) == ("203.0.113.1 a.west.test\n", {"west.test": 5})


def test_an_answer_that_is_no_news_ends_the_questions(names: Names) -> None:
    hear(names, west(9))
    asked: list[dict[str, int]] = []

    def answer(known: dict[str, int]) -> list[ServedDomain]:
        asked.append(known)
        assert len(asked) < 10, "it is asked without end"
        return [west(5)]

    names.ask(answer, lambda: None)
    assert asked == [{"west.test": 9}]


def test_a_word_that_comes_late_brings_no_domain_back(names: Names, file: Path) -> None:
    hear(names, west(5))
    hear(names, west(6, gone=True))
    hear(names, west(5))
    assert (file.read_text(), names.known()) == ("", {})


def test_what_went_while_it_was_asked_stays_away(names: Names, file: Path) -> None:
    def answer(known: dict[str, int]) -> list[ServedDomain]:
        hear(names, west(6, gone=True))
        return [west(5)]

    names.ask(answer, lambda: None)
    assert (file.read_text(), names.known()) == ("", {})
