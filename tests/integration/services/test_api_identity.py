"""Validation of project ids with Keystone."""

import http.server
import threading
from types import SimpleNamespace

import pytest
from keystonemiddleware import auth_token

from nova import conf
from nova.api import identity
from nova.conf import CONF


class Keystone(http.server.BaseHTTPRequestHandler):
    """Answers requests for a project with a status that depends on the project's name."""

    seen = []

    def do_GET(self):
        self.seen.append((self.path, self.headers["X-Auth-Token"]))
        status = {"known": 200, "secret": 403, "broken": 500}.get(self.path.rpartition("/")[2], 404)
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_args):
        pass


@pytest.fixture
def keystone():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keystone)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    conf.register()
    CONF([], project="nova", default_config_files=[])
    auth_token.AuthProtocol(None, {"oslo_config_config": CONF})
    CONF.set_override("auth_strategy", "keystone", group="api")
    CONF.set_override("www_authenticate_uri", f"http://127.0.0.1:{server.server_port}/identity",
                      group="keystone_authtoken")
    Keystone.seen.clear()
    yield server
    CONF.clear_override("www_authenticate_uri", group="keystone_authtoken")
    CONF.clear_override("auth_strategy", group="api")
    server.shutdown()
    server.server_close()


def request(**changes):
    return SimpleNamespace(ctx=SimpleNamespace(**{"project_id": "own", "auth_token": "t", **changes}))


@pytest.mark.parametrize("project", ["known", "secret", "broken"])
def test_project_exists_unless_keystone_answers_not_found(keystone, project):
    identity.check_project(request(), project)
    assert Keystone.seen == [(f"/identity/v3/projects/{project}", "t")]


def test_missing_project_is_refused(keystone):
    with pytest.raises(identity.UnknownProject, match="Project ID missing is not a valid project") as caught:
        identity.check_project(request(), "missing")
    assert caught.value.code == 400


def test_project_id_is_quoted_in_the_keystone_url(keystone):
    with pytest.raises(identity.UnknownProject):
        identity.check_project(request(), "../users/known")
    assert Keystone.seen == [("/identity/v3/projects/..%2Fusers%2Fknown", "t")]


def test_own_project_and_requests_without_token_are_not_validated(keystone):
    identity.check_project(request(), "own")
    identity.check_project(request(auth_token=None), "missing")
    assert Keystone.seen == []


def test_project_is_not_validated_without_keystone(keystone):
    keystone.shutdown()
    keystone.server_close()
    identity.check_project(request(), "missing")
