"""Config drives as a guest reads them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from nova.metadata import config_drive
from tests.unit.metadata.test_config_drive import SETTINGS
from tests.unit.metadata.test_trees import make

needs_iso = pytest.mark.skipif(not shutil.which("genisoimage") or not shutil.which("isoinfo"),
                               reason="needs genisoimage")
needs_vfat = pytest.mark.skipif(not shutil.which("mcopy"), reason="needs mtools")


def out(*argv):
    return subprocess.run(argv, capture_output=True, check=True).stdout


@needs_iso
def test_config_drive_is_built_as_iso9660(tmp_path):
    path = tmp_path / "disk.config"
    path.write_text("an older drive")
    config_drive.build(make(), str(path), SETTINGS, admin_pass="secret")
    assert b"Volume id: config-2" in out("isoinfo", "-d", "-i", str(path))
    listing = out("isoinfo", "-R", "-f", "-i", str(path)).decode().split()
    wanted = config_drive.files(make(), SETTINGS, "secret")
    assert {f"/{name}" for name in wanted} <= set(listing)
    found = out("isoinfo", "-R", "-i", str(path), "-x", "/openstack/latest/meta_data.json")
    assert json.loads(found)["admin_pass"] == "secret"
    assert out("isoinfo", "-R", "-i", str(path), "-x", "/openstack/latest/user_data") == b"#!/bin/sh\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["disk.config"]


@needs_vfat
def test_config_drive_is_built_as_vfat(tmp_path):
    path = tmp_path / "disk.config"
    config_drive.build(make(), str(path), SETTINGS, format="vfat")
    assert path.stat().st_size == 64 * 1024 * 1024
    assert b"CONFIG-2" in out("mdir", "-i", str(path), "::").upper()
    assert out("mtype", "-i", str(path), "::/openstack/latest/user_data") == b"#!/bin/sh\n"
