"""Parsers of the Placement API: versions, errors that name the parameter, and bounded costs."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import exception
from nova.placement import bodies, queries, versions
from nova.placement.queries import candidate_request, provider_filter

A, B = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa", "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"


def refused(parse, query, version, *parts):
    with pytest.raises(exception.Invalid) as raised:
        parse(query, version)
    for part in parts:
        assert part in raised.value.message


@pytest.mark.parametrize(("header", "version"), [
    (None, 0), ("", 0), ("compute 2.1", 0), ("placement 1.12", 12), ("compute 2.1, placement 1.39", 39),
    ("placement latest", 39), ("Placement 1.0", 0)])
def test_version_of_a_header(header, version):
    assert versions.requested(header) == version


@pytest.mark.parametrize(("header", "code"), [
    ("placement 1.40", 406), ("placement 2.0", 406), ("placement 1.", 400), ("placement one", 400),
    (f"placement 1.{'9' * 5000}", 400), ("placement 1.²", 400)])
def test_bad_version_is_refused(header, code):
    with pytest.raises(exception.NovaException) as raised:
        versions.requested(header)
    assert raised.value.code == code


def test_filter_of_providers():
    wanted = provider_filter(
        f"name=x&uuid={A}&in_tree={B.upper()}&member_of={A}&member_of=in:{A},{B}&member_of=!in:{B}"
        "&resources=VCPU:2,CUSTOM_X:1&required=HW_A,!HW_B&required=in:HW_C,HW_D", 39)
    assert (wanted.name, wanted.uuid, wanted.in_tree) == ("x", A, B)
    assert wanted.resources == {"VCPU": 2, "CUSTOM_X": 1}
    assert wanted.required == [["HW_A"], ["HW_C", "HW_D"]]
    assert wanted.forbidden == ["HW_B"]
    assert wanted.member_of == [[A], [A, B]]
    assert wanted.not_member_of == [B]


@pytest.mark.parametrize(("query", "since"), [
    (f"member_of={A}", 3), ("resources=VCPU:1", 4), (f"in_tree={A}", 14), ("required=HW_A", 18),
    ("required=!HW_A", 22), (f"member_of={A}&member_of={B}", 24), (f"member_of=!{A}", 32),
    ("required=in:HW_A,HW_B", 39),
    ("required=HW_A&required=HW_B", 39)])
def test_filters_of_providers_have_first_versions(query, since):
    provider_filter(query, since)
    refused(provider_filter, query, since - 1, query.partition("=")[0])


@pytest.mark.parametrize(("query", "since"), [
    ("resources=VCPU:1&limit=3", 16), ("resources=VCPU:1&required=HW_A", 17), (f"resources=VCPU:1&member_of={A}", 21),
    ("resources1=VCPU:1", 25), ("resources=VCPU:1&group_policy=none", 25), (f"resources=VCPU:1&in_tree={A}", 31),
    ("resources_X=VCPU:1", 33), ("resources=VCPU:1&root_required=HW_A", 35),
    ("resources1=VCPU:1&required2=HW_A&same_subtree=1,2", 36), ("resources=VCPU:1&required=in:HW_A,HW_B", 39)])
def test_parameters_of_candidates_have_first_versions(query, since):
    candidate_request(query, since)
    refused(candidate_request, query, since - 1)


@pytest.mark.parametrize(("query", "part"), [
    ("", "resources"), ("resources=", "resources"), ("resources=VCPU", "resources"), ("resources=VCPU:0", "resources"),
    ("resources=VCPU:99999999999", "resources"), ("resources=VCPU:1,VCPU:2", "once"), ("resources=vcpu:1", "resources"),
    ("resources=VCPU:١", "resources"), ("resources=VCPU:1&resources=VCPU:2", "more than once"),
    ("resources=VCPU:1&limit=0", "limit"), ("resources=VCPU:1&limit=x", "limit"),
    ("resources=VCPU:1&required=hw", "required"), ("resources=VCPU:1&required=", "required"),
    ("resources=VCPU:1&required=A,!A", "A is both"), ("resources=VCPU:1&member_of=x", "member_of"),
    ("resources=VCPU:1&in_tree=x", "in_tree"), ("resources=VCPU:1&group_policy=any", "group_policy"),
    ("resources1=VCPU:1&resources2=VCPU:1", "group_policy"), ("resources=VCPU:1&required1=HW_A", "resources1"),
    ("resources=VCPU:1&same_subtree=_A", "same_subtree"), ("resources=VCPU:1&nothing=1", "nothing"),
    ("resources=VCPU:1&required=%00", "NUL"), ("resources=VCPU:1&required=%ff", "UTF-8"),
    ("&".join(f"resources{number}=VCPU:1" for number in range(1, 40)) + "&group_policy=none", "more than 32"),
    ("resources=" + ",".join(f"CUSTOM_{number}:1" for number in range(300)), "more than 200"),
    ("&".join(f"a{number}=1" for number in range(1000)), "500")])
def test_bad_query_of_candidates_names_the_parameter(query, part):
    refused(candidate_request, query, 39, part)


@given(st.text(alphabet="resoucdmb_filt1=&:,!inVCPU0-A%\0é", max_size=200), st.integers(0, 39))
def test_any_query_is_parsed_or_refused(query, version):
    for parse in (candidate_request, provider_filter):
        with contextlib.suppress(exception.Invalid):
            parse(query, version)


@pytest.mark.parametrize(("version", "body"), [
    (0, {"allocations": [{"resource_provider": {"uuid": A}, "resources": {"VCPU": 1}}]}),
    (8, {"allocations": [{"resource_provider": {"uuid": A}, "resources": {"VCPU": 1}}], "project_id": "p",
         "user_id": "u"}),
    (12, {"allocations": {A: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u"}),
    (28, {"allocations": {A: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u",
          "consumer_generation": None}),
    (34, {"allocations": {A: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u",
          "consumer_generation": 3, "mappings": {"": [A]}}),
    (38, {"allocations": {A: {"resources": {"VCPU": 1}, "generation": 7}}, "project_id": "p", "user_id": "u",
          "consumer_generation": None, "consumer_type": "PORT"})])
def test_body_of_allocations_per_version(version, body):
    change = bodies.consumer_change(B, body, version)
    assert change.allocations == {A: {"VCPU": 1}}
    assert change.generation == body.get("consumer_generation")
    for other in {0, 8, 12, 28, 38} - {version if version != 34 else 28}:
        with pytest.raises(exception.Invalid):
            bodies.consumer_change(B, body, other)


@pytest.mark.parametrize(("body", "part"), [
    (None, "object"), ([], "object"), ({}, "allocations"),
    ({"allocations": {"x": {"resources": {"VCPU": 1}}}}, "regex"),
    ({"allocations": {f"{A}\n": {"resources": {"VCPU": 1}}}}, "regex"),
    ({"allocations": {A: {"resources": {"VCPU": 0}}}}, "$.allocations"),
    ({"allocations": {A: {"resources": {}}}}, "length"),
    ({"allocations": {A: {"resources": {"VCPU": 1}}}, "more": 1}, "more"),
    ({"allocations": {A: {"resources": {"VCPU": 1}}, A.upper(): {"resources": {"VCPU": 1}}}, "project_id": "p",
      "user_id": "u"}, "twice")])
def test_bad_body_of_allocations_names_the_field(body, part):
    with pytest.raises(exception.Invalid, match="does not validate") as raised:
        bodies.consumer_change(B, body, 12)
    assert part in raised.value.message


def test_consumer_must_be_a_uuid():
    with pytest.raises(exception.Invalid, match="consumer_uuid"):
        bodies.consumer_change("x", {}, 12)


@pytest.mark.parametrize(("fields", "version", "fits"), [
    ({"total": 4}, 0, True), ({"total": 4, "reserved": 4}, 25, False), ({"total": 4, "reserved": 4}, 26, True),
    ({"total": 4, "reserved": 5}, 39, False)])
def test_reserved_amount_of_an_inventory(fields, version, fits):
    inventory = bodies.parse(fields, bodies.InventoryFields)
    if fits:
        assert inventory.inventory("$", version).total == 4
    else:
        with pytest.raises(exception.Invalid, match="reserved"):
            inventory.inventory("$", version)


@given(st.lists(st.sampled_from(["HW_A", "!HW_B", "in:", ",", "CUSTOM_C"]), max_size=12).map("".join))
def test_traits_are_never_lost(value):
    try:
        required, forbidden = queries.traits("required", [value], 39)
    except exception.Invalid:
        return
    parsed = [trait for options in required for trait in options] + [f"!{trait}" for trait in forbidden]
    assert sorted(parsed) == sorted(item.strip() for item in value.removeprefix("in:").split(","))
