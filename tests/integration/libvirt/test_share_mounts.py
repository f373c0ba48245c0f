"""Mounts of shares in a private mount namespace, with a directory in place of an NFS export."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Replaces mount.nfs: server:/path is the directory /path of this machine. Logs its arguments.
_HELPER = """#!/bin/sh
echo "$@" >> {log}
for last; do :; done
location=$1
exec mount --bind "${{location#*:}}" "$2"
"""
_STORY = """
import os, pathlib, subprocess, sys
from nova import exception
from nova.conf import CONF, register
from nova.objects.base import new_uuid
from nova.objects.volumes.share import ADDRESS, ShareMapping
from nova.share import mounts

place = pathlib.Path(sys.argv[1])
register(CONF)
CONF.set_override("my_shared_fs_storage_ip", "10.0.0.11")
CONF.set_override("nfs_mount_options", "vers=4,nosuid", group="share")
shares = mounts.MountedShares(str(place / "pool"))
assert shares.connector("h1") == {{ADDRESS: "10.0.0.11"}}
(place / "export").mkdir()
(place / "export" / "word").write_text("here")
one, two = new_uuid(), new_uuid()
share = ShareMapping(uuid=new_uuid(), share_id=new_uuid(), tag="docs", protocol="NFS",
                     export_location=f"10.0.0.50:{{place}}/export")
(place / "pool").mkdir(mode=0o755)
path = shares.connect(one, share)
assert (place / "pool").stat().st_mode & 0o777 == 0o700, "other accounts must not access files of guests"
assert path == shares.connect(one, share), "once"
assert pathlib.Path(path, "word").read_text() == "here"
other = shares.connect(two, share)
assert other != path and len([each for each in mounts.mounted() if each.startswith(str(place))]) == 2

# Somebody has it open still: it goes as soon as he lets it go.
with open(os.path.join(path, "word")):
    shares.disconnect(one, share)
    assert path not in mounts.mounted()
shares.disconnect(one, share)
assert other in mounts.mounted(), "each server's own"
shares.disconnect(two, share)
assert not any(each.startswith(str(place)) for each in mounts.mounted())
assert list((place / "pool").iterdir()) == []

# Of a guest that was removed on the word of a row: nobody says what it had.
second = ShareMapping(uuid=new_uuid(), share_id=new_uuid(), tag="more", protocol="NFS",
                      export_location=share.export_location)
shares.connect(one, share), shares.connect(one, second)
other = shares.connect(two, share)
shares.disconnect_guest(one)
assert [each for each in mounts.mounted() if each.startswith(str(place))] == [other]
shares.disconnect_guest(one)
shares.disconnect_guest("..")
shares.disconnect_guest(two)
assert list((place / "pool").iterdir()) == []

share.export_location = f"10.0.0.50:{{place}}/nothing"
try:
    shares.connect(one, share)
except exception.ShareUnusable as error:
    assert "not mounted" in str(error)
else:
    raise AssertionError("there is nothing to mount")
assert list((place / "pool").iterdir()) == []
"""


def test_share_is_mounted_per_server_and_unmounted_with_its_guest(tmp_path: pathlib.Path) -> None:
    helper, log = tmp_path / "mount.nfs", tmp_path / "log"
    helper.write_text(_HELPER.format(log=log))
    helper.chmod(0o755)
    story = tmp_path / "story.py"
    story.write_text(textwrap.dedent(_STORY.format()))
    # mount(8) searches helpers of file system types only in /sbin
    setup = f"""
        set -e
        mount --make-rprivate /
        mkdir {tmp_path}/sbin
        cp -a /sbin/. {tmp_path}/sbin/
        cp -f {helper} {tmp_path}/sbin/mount.nfs
        mount --bind {tmp_path}/sbin "$(realpath /sbin)"
        mount --bind {tmp_path}/sbin /sbin
        exec {sys.executable} {story} {tmp_path}
    """
    done = subprocess.run(["unshare", "--mount", "sh", "-c", setup], capture_output=True, text=True, timeout=120,
                          cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(option in log.read_text() for option in ("vers=4", "nosuid"))
