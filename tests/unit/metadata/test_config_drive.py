"""Tests of the files on a config drive."""

from __future__ import annotations

import json

import pytest

from nova import exception
from nova.metadata import config_drive, openstack
from nova.metadata.settings import MetadataSettings
from nova.objects.servers.instance import Personality
from tests.unit.metadata.test_trees import make

SETTINGS = MetadataSettings(skip_versions=frozenset({"1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10",
                                             "2007-12-15", "2008-02-01", "2008-09-01"}))


def test_config_drive_has_all_openstack_versions_and_the_last_ec2_version():
    contents = config_drive.files(make(), SETTINGS)
    assert {name.split("/")[1] for name in contents if name.startswith("openstack/")} == {*openstack.VERSIONS, "latest"}
    assert {name.split("/")[1] for name in contents if name.startswith("ec2/")} == {"2009-04-04", "latest"}
    assert "openstack/latest/password" not in contents
    assert "openstack/2012-08-10/vendor_data.json" not in contents
    assert contents["openstack/latest/user_data"] == b"#!/bin/sh\n"
    assert contents["ec2/latest/user-data"] == b"#!/bin/sh\n"
    assert json.loads(contents["ec2/latest/meta-data.json"])["public-keys"] == {"0": {"openssh-key": "ssh-rsa AAAA"}}


def test_config_drive_without_user_data_has_no_user_data_file():
    assert not [name for name in config_drive.files(make(user_data=None), SETTINGS) if "user" in name]


def test_config_drive_contains_password_and_injected_files():
    contents = config_drive.files(make(personality=[Personality(path="/x", contents="aGk=")]), SETTINGS, "secret")
    assert json.loads(contents["openstack/latest/meta_data.json"])["admin_pass"] == "secret"
    assert contents["openstack/content/0000"] == b"hi"
    without = config_drive.files(make(), SETTINGS)
    assert "admin_pass" not in json.loads(without["openstack/latest/meta_data.json"])


def test_config_drive_files_are_deterministic():
    seed = lambda size: b"s" * size  # noqa: E731
    assert list(config_drive.files(make(), SETTINGS, random=seed).items()) == list(
        config_drive.files(make(), SETTINGS, random=seed).items())


def test_config_drive_format_and_tool_errors_are_reported(tmp_path):
    with pytest.raises(exception.NotSupported):
        config_drive.build(make(), str(tmp_path / "d"), SETTINGS, format="ext4")
    with pytest.raises(exception.ConfigDriveFailed, match="no-such-tool"):
        config_drive.build(make(), str(tmp_path / "d"), SETTINGS, mkisofs="no-such-tool")
    assert list(tmp_path.iterdir()) == []
