"""Embedded shares on a host: directories named by the share ids."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from nova import exception
from nova.objects.base import new_uuid
from nova.objects.volumes.share import NFS, ShareMapping
from nova.share.base import NoShares
from nova.share.local import LocalShares
from nova.share.mounts import MountedShares


def mapping(share_id: str = "", **values: str) -> ShareMapping:
    return ShareMapping(uuid=new_uuid(), share_id=share_id or new_uuid(), tag="docs", **values)


def test_share_directory_is_created_once_and_kept(tmp_path: pathlib.Path) -> None:
    pool = LocalShares(str(tmp_path / "pool"))
    wanted = mapping()
    path = pool.connect(new_uuid(), wanted)
    pathlib.Path(path, "data").write_text("kept")
    assert pool.connect(new_uuid(), wanted) == path == str(tmp_path / "pool" / wanted.share_id)
    pool.disconnect(new_uuid(), wanted)
    assert pathlib.Path(path, "data").read_text() == "kept"
    assert stat.S_IMODE(os.stat(tmp_path / "pool").st_mode) == 0o700, "the pool must be private"


def test_accessible_pool_of_shares_is_restricted_to_its_owner(tmp_path: pathlib.Path) -> None:
    """A set-uid program that a guest leaves in a share would make any account of the host root."""
    tmp_path.chmod(0o755)
    path = LocalShares(str(tmp_path)).connect(new_uuid(), mapping())
    assert stat.S_IMODE(os.stat(tmp_path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o777


@pytest.mark.parametrize("share_id", ["../etc", "x", "a" * 36])
def test_share_id_that_is_no_uuid_is_refused(tmp_path: pathlib.Path, share_id: str) -> None:
    with pytest.raises(exception.ShareUnusable):
        LocalShares(str(tmp_path)).connect(new_uuid(), mapping(share_id))
    with pytest.raises(exception.ShareUnusable):
        MountedShares(str(tmp_path)).disconnect(new_uuid(), mapping(share_id))


def test_share_that_is_a_link_or_file_is_refused(tmp_path: pathlib.Path) -> None:
    link, file = mapping(), mapping()
    (tmp_path / link.share_id).symlink_to("/etc")
    (tmp_path / file.share_id).write_text("")
    for share in (link, file):
        with pytest.raises(exception.ShareUnusable):
            LocalShares(str(tmp_path)).connect(new_uuid(), share)


@pytest.mark.parametrize(("protocol", "location"), [
    ("DIRECTORY", "10.0.0.1:/x"), ("CEPHFS", "10.0.0.1:/x"), (NFS, ""), (NFS, "-o:/x"), (NFS, "10.0.0.1:/a b"),
    (NFS, "10.0.0.1")])
def test_share_with_invalid_protocol_or_location_is_not_mounted(tmp_path: pathlib.Path, protocol: str,
                                                                location: str) -> None:
    with pytest.raises(exception.ShareUnusable):
        MountedShares(str(tmp_path)).connect(new_uuid(), mapping(protocol=protocol, export_location=location))
    assert not list(tmp_path.iterdir())


def test_host_without_shares_refuses_shares() -> None:
    with pytest.raises(exception.ShareUnusable):
        NoShares().connect(new_uuid(), mapping())
    NoShares().disconnect(new_uuid(), mapping())
