"""Flavors: visibility, filters, sort order, and uniqueness of names and ids."""

from __future__ import annotations

import contextlib

import pytest

from nova import exception
from nova.conductor.endpoints.accounts import Flavors
from nova.objects.accounts.flavor import FlavorQuery
from tests.unit.conductor.books import Books, ctx, flavor


@pytest.fixture
def flavors(core: Books) -> Flavors:
    endpoint = Flavors(core)
    for name, memory, disk, public in (("m1.tiny", 512, 1, True), ("m1.small", 2048, 20, True),
                                       ("M1.LARGE", 8192, 80, True), ("secret", 1024, 10, False)):
        endpoint.create(ctx(), flavor(name, memory_mb=memory, root_gb=disk, is_public=public))
    return endpoint


def _names(flavors: Flavors, **query: object) -> list[str]:
    return [found.name for found in flavors.index(ctx(), FlavorQuery(**{"sort_key": "id", **query}))]  # type: ignore[arg-type]


def test_created_flavor_is_returned_unchanged(core: Books) -> None:
    created = Flavors(core).create(ctx(), flavor(
        ephemeral_gb=2, swap=64, rxtx_factor=1.5, description="größe", extra_specs={"hw:x": "1"}))
    assert created.id > 0
    assert created.created_at is not None
    found = Flavors(core).get(ctx(), "m1.tiny")
    assert found == created
    assert (found.rxtx_factor, found.description, found.extra_specs) == (1.5, "größe", {"hw:x": "1"})


def test_flavor_names_and_ids_are_unique_and_case_sensitive(flavors: Flavors) -> None:
    with pytest.raises(exception.FlavorExists):
        flavors.create(ctx(), flavor("m1.tiny", flavorid="other"))
    with pytest.raises(exception.FlavorIdExists):
        flavors.create(ctx(), flavor("other", flavorid="m1.tiny"))
    flavors.create(ctx(), flavor("M1.Tiny"))
    with pytest.raises(exception.FlavorNotFound):
        flavors.get(ctx(), "m1.TINY")


def test_flavor_list_shows_public_flavors_and_flavors_with_access(flavors: Flavors) -> None:
    assert _names(flavors, project_id="p1") == ["m1.tiny", "m1.small", "M1.LARGE"]
    flavors.add_access(ctx(), "secret", "p1")
    assert "secret" in _names(flavors, project_id="p1")
    assert "secret" not in _names(flavors, project_id="p2")
    assert _names(flavors, is_public=False) == ["secret"]
    assert len(_names(flavors, is_public=None)) == 4
    assert flavors.get(ctx(), "secret", "p1").name == "secret"
    with pytest.raises(exception.FlavorNotFound):
        flavors.get(ctx(), "secret", "p2")


def test_flavor_filters_by_memory_disk_and_name(flavors: Flavors) -> None:
    assert _names(flavors, min_ram=2048) == ["m1.small", "M1.LARGE"]
    assert _names(flavors, min_disk=80) == ["M1.LARGE"]
    assert _names(flavors, name="^m1[.](t|l)") == ["m1.tiny", "M1.LARGE"]
    assert _names(flavors, name="ARG") == ["M1.LARGE"]
    assert _names(flavors, name="nothing like it") == []


@pytest.mark.parametrize("pattern", ["a\0b", "a" * 1025])
def test_flavor_name_pattern_with_nul_or_too_long_is_invalid_input(flavors: Flavors, pattern: str) -> None:
    with pytest.raises(exception.InvalidInput):
        _names(flavors, name=pattern)


@pytest.mark.parametrize("pattern", ["(", "*", "[z-a]"])
def test_invalid_flavor_name_regex_is_matched_literally(flavors: Flavors, pattern: str) -> None:
    assert _names(flavors, name=pattern) == []


def test_flavor_name_pattern_refused_by_the_database_is_invalid_input(flavors: Flavors) -> None:
    """Databases support different constructs. An unsupported construct must be reported as invalid input."""
    for pattern in ("(?P<name>m1)", "(?<=m)1", r"m1(?#comment)", r"\Am1", "m{1,400}"):
        with contextlib.suppress(exception.InvalidInput):
            _names(flavors, name=pattern)


@pytest.mark.parametrize("flavorid", ["a\0b", "\ud800", "x" * 5000])
def test_malformed_flavor_id_is_not_found_or_invalid_input(flavors: Flavors, flavorid: str) -> None:
    with pytest.raises((exception.FlavorNotFound, exception.InvalidInput)):
        flavors.get(ctx(), flavorid)


def test_sorted_flavor_pages_contain_every_flavor_once(flavors: Flavors) -> None:
    assert _names(flavors, sort_key="memory_mb", sort_dir="desc", is_public=None) == [
        "M1.LARGE", "m1.small", "secret", "m1.tiny"]
    for sort_key in ("vcpus", "description", "updated_at", "vcpu_weight", "flavorid", "rxtx_factor", "is_public"):
        for sort_dir in ("asc", "desc"):
            seen: list[str] = []
            while page := _names(flavors, sort_key=sort_key, sort_dir=sort_dir, is_public=None, limit=2,
                                 marker=seen[-1] if seen else None):
                seen += page
            assert sorted(seen) == sorted(["m1.tiny", "m1.small", "M1.LARGE", "secret"])
    assert _names(flavors, limit=0) == []


def test_flavor_list_refuses_unknown_marker_and_sort_key(flavors: Flavors) -> None:
    with pytest.raises(exception.MarkerNotFound, match=r"marker \[gone\] not found"):
        _names(flavors, marker="gone")
    with pytest.raises(exception.InvalidInput):
        _names(flavors, sort_key="secret_column")


def test_flavor_extra_specs_are_merged(flavors: Flavors) -> None:
    flavors.set_extra_specs(ctx(), "m1.tiny", {"a": "1", "b": "2"})
    assert flavors.set_extra_specs(ctx(), "m1.tiny", {"b": "3"}) == {"a": "1", "b": "3"}
    flavors.delete_extra_spec(ctx(), "m1.tiny", "a")
    assert flavors.get(ctx(), "m1.tiny").extra_specs == {"b": "3"}
    with pytest.raises(exception.FlavorExtraSpecsNotFound):
        flavors.delete_extra_spec(ctx(), "m1.tiny", "a")


def test_flavor_access_is_added_and_removed_once(flavors: Flavors) -> None:
    assert flavors.add_access(ctx(), "secret", "p2") == ["p2"]
    assert flavors.add_access(ctx(), "secret", "p1") == ["p1", "p2"]
    with pytest.raises(exception.FlavorAccessExists):
        flavors.add_access(ctx(), "secret", "p1")
    assert flavors.remove_access(ctx(), "secret", "p2") == ["p1"] == flavors.access(ctx(), "secret")
    with pytest.raises(exception.FlavorAccessNotFound):
        flavors.remove_access(ctx(), "secret", "p2")


def test_delete_of_a_flavor_removes_its_access_list(flavors: Flavors) -> None:
    flavors.add_access(ctx(), "secret", "p1")
    flavors.delete(ctx(), "secret")
    with pytest.raises(exception.FlavorNotFound):
        flavors.delete(ctx(), "secret")
    flavors.create(ctx(), flavor("secret", is_public=False))
    assert flavors.access(ctx(), "secret") == []


def test_update_of_flavor_description(flavors: Flavors) -> None:
    assert flavors.update(ctx(), "m1.tiny", "new").description == "new"
    assert flavors.update(ctx(), "m1.tiny", None).description is None
    assert flavors.get(ctx(), "m1.tiny").updated_at is not None
