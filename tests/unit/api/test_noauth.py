"""The noauth strategy, which authenticates no client and so accepts loopback addresses only."""

import subprocess
import sys

import pytest

from nova import exception
from nova.api import auth, service
from nova.conf import CONF


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_noauth_refuses_to_listen_on_a_public_address(address):
    with pytest.raises(exception.InvalidInput, match="noauth accepts any user"):
        service.listen(address, 0)


def test_noauth_listens_on_loopback_and_keystone_on_any_address():
    service.listen("127.0.0.1", 0).close()
    CONF.set_override("auth_strategy", "keystone", group="api")
    service.listen("0.0.0.0", 0).close()


def test_nova_api_with_noauth_on_a_public_address_exits_with_the_reason(tmp_path):
    config = tmp_path / "nova.conf"
    config.write_text("[api]\nauth_strategy = noauth\nlisten = 0.0.0.0\nport = 0\n")
    done = subprocess.run([sys.executable, "-m", "nova.cmd.api", "--config-file", str(config)], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "nova-api: Invalid input received: [api]auth_strategy = noauth" in done.stderr
    assert "Traceback" not in done.stderr


def test_noauth_rejects_requests_from_remote_addresses():
    for peer in ("203.0.113.9", "2001:db8::1"):
        with pytest.raises(auth.Unauthorized):
            auth.context_of({"REMOTE_ADDR": peer}, None)
    assert auth.context_of({"REMOTE_ADDR": "::1"}, None).user_id == "admin"
