"""Parsing of arguments and formats of values, without requests."""

import argparse

import pytest

from nova.cli import declare, errors, output
from nova.cli.client import wanted_version
from nova.cli.errors import NotFound, UsageError
from nova.cli.find import by_id_or_name, is_id
from nova.cli.resources import boot, consoles, servers


@pytest.mark.parametrize(("text", "minor"),
                         [("2.1", 1), ("2.104", 104), ("2.0", 1), ("2.latest", None), ("latest", None),
                                             ("2", None), ("", None), (None, None)])
def test_api_version_argument_is_parsed(text, minor):
    assert wanted_version(text) == minor


@pytest.mark.parametrize("text", ["1.1", "2.01", "2.", "x", "2.1.1"])
def test_invalid_api_version_is_a_usage_error(text):
    with pytest.raises(UsageError):
        wanted_version(text)


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), ("", ""), (0, "0"), (True, "True"), ([], "[]"), ({"a": None}, '{"a": null}'), ("x", "x")])
def test_values_in_tables_and_json(value, text):
    assert output.text(value) == text
    assert output.shown(value, "table") == text
    assert output.shown(value, "json") == value


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("0", False), ("TRUE", True)])
def test_boolean_argument_is_parsed(text, value):
    assert declare.truth(text) is value


def test_invalid_boolean_argument_is_refused():
    with pytest.raises(argparse.ArgumentTypeError):
        declare.truth("maybe")


# --- names -------------------------------------------------------------------------------------------
def test_id_takes_precedence_over_name():
    things = [{"id": "1", "name": "2"}, {"id": "2", "name": "x"}]
    assert by_id_or_name("thing", "2", things) == things[1]


def test_duplicate_name_error_lists_the_first_matches():
    things = [{"id": f"id-{number}", "name": "same", "status": "ACTIVE"} for number in range(12)]
    with pytest.raises(NotFound) as told:
        by_id_or_name("server", "same", things)
    assert "There are 12 servers with the name same; use an id:" in str(told.value)
    assert "  id-0  same  ACTIVE" in str(told.value)
    assert "and 2 more" in str(told.value)


@pytest.mark.parametrize(("text", "answer"), [("1e34a539-01a5-439d-88c8-bf596660c3d1", True),
                                              ("1e34a53901a5439d88c8bf596660c3d1", True), ("web", False),
                                              ("42", False)])
def test_uuid_is_recognized_as_id(text, answer):
    assert is_id(text) is answer


# --- servers -----------------------------------------------------------------------------------------
def test_networks_are_formatted_as_in_novaclient():
    addresses = {"b": [{"addr": "10.0.0.1"}, {"addr": "fd00::1"}], "a": [{"addr": "10.1.0.1"}]}
    assert servers.networks_of({"addresses": addresses}) == "a=10.1.0.1; b=10.0.0.1, fd00::1"


def test_volume_backed_server_is_shown_without_image():
    shown = servers.properties({"image": "", "links": [], "name": "x", "flavor": {"ram": 1}}, None)
    assert shown == {"flavor:ram": 1, "image": "Attempt to boot from volume - no image supplied", "name": "x"}


def arguments(**given):
    known = {"boot_volume": None, "snapshot": None, "block_device_mapping": [], "block_device": [], "ephemeral": [],
             "swap": None}
    return argparse.Namespace(**{**known, **given})


@pytest.mark.parametrize(("given", "image", "devices"), [
    ({}, "i", []),
    ({"boot_volume": "v"}, None, [("v", "volume", "volume", 0, False, None)]),
    ({"snapshot": "s"}, None, [("s", "snapshot", "volume", 0, False, None)]),
    ({"swap": 64}, "i", [("i", "image", "local", 0, True, None), (None, "blank", "local", -1, True, 64)]),
    ({"ephemeral": ["size=2,format=ext4"]}, "i", [
        ("i", "image", "local", 0, True, None), (None, "blank", "local", -1, True, 2)]),
    ({"block_device_mapping": ["vda=v:::0"]}, None, [("v", "volume", "volume", 0, False, None)]),
    ({"block_device_mapping": ["vdb=s:snap:3:1"]}, "i", [
        ("i", "image", "local", 0, True, None), ("s", "snapshot", "volume", -1, True, 3)]),
    ({"block_device": ["id=v,source=volume,dest=volume,bootindex=0,shutdown=preserve"]}, None, [
        ("v", "volume", "volume", 0, False, None)]),
    ({"block_device": ["source=blank,dest=local,size=1"]}, "i", [
        ("i", "image", "local", 0, True, None), (None, "blank", "local", -1, True, 1)]),
])
def test_boot_arguments_become_block_devices(given, image, devices):
    made = boot._devices(arguments(**given), image)
    keys = ("uuid", "source_type", "destination_type", "boot_index", "delete_on_termination", "volume_size")
    assert [tuple(one.get(key) for key in keys) for one in made] == devices


@pytest.mark.parametrize("given", [
    {"block_device": ["colour=red"]}, {"block_device": ["size"]}, {"ephemeral": ["format=ext4"]},
    {"block_device_mapping": ["vda"]}, {"block_device_mapping": ["vda=v::x:0"]}, {"ephemeral": ["size=x"]}])
def test_invalid_block_device_arguments_are_refused(given):
    with pytest.raises(UsageError):
        boot._devices(arguments(**given), None)


def test_repeated_hint_becomes_a_list():
    assert boot._hints([("a", "1"), ("b", "2"), ("a", "3"), ("a", "4")]) == {"a": ["1", "3", "4"], "b": "2"}


# --- ssh ---------------------------------------------------------------------------------------------
_SERVER = {"name": "web", "addresses": {
    "private": [{"addr": "10.0.0.1", "version": 4, "OS-EXT-IPS:type": "fixed"},
                {"addr": "192.0.2.1", "version": 4, "OS-EXT-IPS:type": "floating"},
                {"addr": "fd00::1", "version": 6, "OS-EXT-IPS:type": "fixed"}],
    "other": [{"addr": "10.1.0.1", "version": 4, "OS-EXT-IPS:type": "fixed"}]}}


@pytest.mark.parametrize(("given", "address"), [
    ({}, "192.0.2.1"), ({"address_type": "fixed"}, "10.0.0.1"), ({"ipv6": True}, "fd00::1"),
    ({"network": "other"}, "10.1.0.1")])
def test_ssh_address_follows_type_version_and_network(given, address):
    chosen = argparse.Namespace(**{"address_type": "floating", "ipv6": False, "network": None, **given})
    assert consoles._address(_SERVER, chosen) == address


# --- refusals ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("status", "message", "hint"), [
    (403, "Quota exceeded for instances", "nova limits"), (403, "Policy doesn't allow it", "administrator"),
    (409, "Instance is locked", "nova unlock"), (409, "while it is in task_state rebooting", "nova watch"),
    (401, "x", "Log in again"), (429, "x", "try again"), (400, "x", None)])
def test_error_hint_follows_status_and_message(status, message, hint):
    told = errors.hint_of(status, message)
    assert told is None if hint is None else hint in told
