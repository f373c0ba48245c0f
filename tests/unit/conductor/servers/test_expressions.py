"""Regular expressions in filters: matches, equal on every database, and limits of cost."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from nova import context, exception
from nova.conductor.endpoints.accounts import Flavors
from nova.db.servers import server_search, servers
from nova.objects import expression
from nova.objects.accounts.flavor import FlavorQuery
from nova.objects.servers.server_request import ServerQuery
from tests.unit.conductor.books import Books, ctx, flavor, server

NAMES = ["db", "web", "WEB-1", "web-22", "my web", "x%y", "a_b", "axb", "\u212aelvin", "Straße", "two\nlines", "1.5"]


def rename(core: Books, uuid: str, **changes: Any) -> None:
    core.db.write(lambda connection: servers.update(connection, uuid, changes))


def named(core: Books, *names: str) -> None:
    for name in names:
        rename(core, server(core).uuid, display_name=name)


def search(core: Books, **query: Any) -> list[str]:
    """Return the names of a page of servers."""
    return core.db.read(lambda connection: [
        found.display_name for found in server_search.search(connection, ServerQuery(**query)).servers])


FOUND: dict[str, set[str]] = {
    "web": {"web", "WEB-1", "web-22", "my web"},
    "^web": {"web", "WEB-1", "web-22"},
    "web$": {"web", "my web"},
    "^web$": {"web"},
    "web-[0-9]+": {"WEB-1", "web-22"},
    r"web-\d{2}": {"web-22"},
    "db|web$": {"db", "web", "my web"},
    "^(db|1)": {"db", "1.5"},
    r"\bweb\b": {"web", "WEB-1", "web-22", "my web"},
    ".*": set(NAMES), "": set(NAMES), "nothing": set(),
    "%": {"x%y"}, "a_b": {"a_b"}, "a.b": {"a_b", "axb"}, r"1\.5": {"1.5"},
    "kelvin": {"\u212aelvin"}, "strasse": set(), "STRAß": {"Straße"}, "(?i)DB": {"db"},
    "two.lines": set(), "two\nlines": {"two\nlines"}, "[[:digit:]]$": {"WEB-1", "web-22", "1.5"},
}
REFUSED = ["\0", "a" * 1025, "\ud800"]
# Patterns that RE2 does not support or that are too expensive to compile, and names with regex metacharacters.
LITERAL = [r"(a)\1", "(?=a)", "(?<!a)b", "(?x)#[\n(a+)+$\n#]", "[", "*", "(", "a{2000}", "(x{100}){100}", "c++",
           "web[1",
           "(.?){250}.{250}$", "(((.{30}){30}){30})", "a++", "100%[", "a_[", "a!b[", "KELVIN[", "é(", r"tail\$"[:-1],
           r"\pL" * 9, "vm (test)", "[test]", "a.b?", "$5 (new)", "^_^"]
# Patterns with exponential cost in a backtracking engine.
HARD = ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "^(.*a){12}$", "a*a*a*a*a*a*a*a*b$", "^(a?){25}a{25}$"]


def test_name_filter_matches_regular_expressions(core: Books) -> None:
    named(core, *NAMES)
    assert {pattern: set(search(core, filters={"name": pattern})) for pattern in FOUND} == FOUND


@pytest.mark.parametrize("text", LITERAL)
def test_invalid_regex_matches_names_that_contain_it_literally(core: Books, text: str) -> None:
    named(core, f"my {text}, old", text.upper(), "other", "a" * 250)
    names = {f"my {text}, old", text.upper()}
    assert set(search(core, filters={"name": text})) >= names
    assert "other" not in search(core, filters={"name": text, "description": "."})
    if expression.compiled(text).literal:
        assert set(search(core, filters={"name": text})) == names


def test_invalid_regex_in_the_ip_filter_matches_literally(core: Books) -> None:
    rename(core, server(core).uuid, display_name="one", addresses=",10.0.0.3,")
    for pattern in ("10.0.0.3[", "*10", "10.0.0.3\\", "10.0.0.3\\$"):
        assert search(core, filters={"ip": pattern}) == []


def test_name_filter_with_nul_surrogate_or_too_long_is_refused(core: Books) -> None:
    named(core, "a")
    for pattern in REFUSED:
        with pytest.raises(exception.InvalidInput):
            search(core, filters={"name": pattern})
        with pytest.raises(exception.InvalidInput):
            Flavors(core).index(ctx(), FlavorQuery(name=pattern))


def test_regex_filter_takes_no_exponential_time(core: Books) -> None:
    named(core, "a" * 250 + "!")
    for pattern in HARD:
        assert search(core, filters={"name": pattern}) == [], pattern


def test_pages_of_a_regex_filter_are_complete_and_in_order(core: Books) -> None:
    named(core, *(f"web-{number:02}" if number % 3 else f"db-{number:02}" for number in range(20)))
    query = {"filters": {"name": "^web"}, "sort": [("display_name", "desc")], "limit": 4}
    seen: list[str] = []
    while page := search(core, **query):
        seen += page
        last = page[-1]
        query["marker"] = core.db.read(lambda connection, last=last: next(server_search.search(  # type: ignore[misc]
            connection, ServerQuery(filters={"name": f"^{last}$"})).servers)).uuid
    assert seen == [f"web-{number:02}" for number in reversed(range(20)) if number % 3]


def test_multiple_filters_are_combined_with_and(core: Books) -> None:
    named(core, "web-1", "web-2")
    rename(core, server(core).uuid, display_name="web-3", hostname="other")
    assert search(core, filters={"name": "web", "hostname": "^o"}) == ["web-3"]
    assert search(core, filters={"name": "web", "description": "."}) == []


def test_ip_filter_is_anchored_at_the_beginning(core: Books) -> None:
    for name, addresses in (("one", ",10.0.0.3,"), ("more", ",10.0.0.31,"), ("both", ",10.0.0.9,10.1.0.7,"),
                            ("none", "")):
        rename(core, server(core).uuid, display_name=name, addresses=addresses)
    found = {"10.0.0.3": {"one", "more"}, "^10.0.0.3$": {"one"}, "10.0": {"one", "more", "both"}, "0.0.3": set(),
             "10.1|11.": {"both"}, "^10.1": {"both"}}
    assert {pattern: set(search(core, filters={"ip": pattern})) for pattern in found} == found


def test_ip_filter_matches_individual_addresses_of_a_server(core: Books) -> None:
    for name, addresses in (("first", ",10.11.0.188,fd00:11::1,"), ("second", ",10.9.0.7,10.11.0.188,"),
                            ("longer", ",10.11.0.18,110.11.0.188,"), ("other", ",fd00:11::1:2,")):
        rename(core, server(core).uuid, display_name=name, addresses=addresses)
    found: dict[str, dict[str, set[str]]] = {
        "ip": {r"^10\.11\.0\.188$": {"first", "second"}, r"10\.11\.0\.188$": {"first", "second"},
               "^(10.9.0.7|10.11.0.18)$": {"second", "longer"}, ",": set(), ".*fd00": set()},
        "ip6": {"^fd00:11::1$": {"first"}, "fd00:11::1": {"first", "other"}, "FD00": {"first", "other"},
                "10": set(), ".*": {"first", "other"}}}
    for name, patterns in found.items():
        assert {pattern: set(search(core, filters={name: pattern})) for pattern in patterns} == patterns
    assert search(core, filters={"ip": "^10.11", "ip6": "^fd00"}) == ["first"]


def test_time_filter_matches_displayed_and_stored_formats(core: Books) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=datetime.UTC)
    rename(core, server(core).uuid, display_name="then", launched_at=moment)
    named(core, "never")
    for pattern in ("^2026-01-02", "2026-01-02T03:04:05Z", "2026-01-02 03:04:05", r"03:04:05\.600000$"):
        assert search(core, filters={"launched_at": pattern}) == ["then"]


def test_regex_filter_stops_at_the_deadline_of_the_request(core: Books) -> None:
    named(core, "web")

    def look(connection: Any) -> Any:
        with context.deadline(time.monotonic() - 1):
            return list(server_search.search(connection, ServerQuery(filters={"name": "w+"})).servers)

    with pytest.raises(exception.ServiceUnavailable):
        core.db.read(look)


def test_flavor_name_filter_matches_regular_expressions(core: Books) -> None:
    flavors = Flavors(core)
    for name in ("m1.tiny", "m1.large", "c1.large", "GPU"):
        flavors.create(ctx(), flavor(name))
    found = {"^m1": {"m1.large", "m1.tiny"}, "gpu|tiny$": {"GPU", "m1.tiny"}, "1.l": {"c1.large", "m1.large"}}
    for pattern, names in found.items():
        assert {each.name for each in flavors.index(ctx(), FlavorQuery(name=pattern))} == names
        assert len(flavors.index(ctx(), FlavorQuery(name=pattern, limit=1))) == 1
