"""Tests of private directories."""

import os
import stat

import pytest

from nova.common import files


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")
@pytest.mark.parametrize(("owned", "owner"), [(False, 1234), (True, 0)])
def test_private_directory_is_restricted_and_gets_this_user_as_owner_on_request(tmp_path, owned, owner, caplog):
    os.chown(tmp_path, 1234, -1)
    tmp_path.chmod(0o751)
    files.private_directory(tmp_path, owned)
    status = tmp_path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, owner)
    assert [record.levelname for record in caplog.records] == ["WARNING"], "others could read the files"
