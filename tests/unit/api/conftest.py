"""The API as a WSGI application without a socket; plain objects replace the services behind the API."""

import io
import json
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from nova import conf, policies
from nova.api.app import create_app
from nova.api.clients import Clients
from nova.conf import CONF


class Answer:
    def __init__(self, status, headers, body):
        self.status = int(status.split()[0])
        self.headers = {name.lower(): value for name, value in headers}
        self.text = body.decode()

    @property
    def json(self):
        return json.loads(self.text)

    @property
    def error(self):
        """Return (key, code, message) of an error body."""
        (key, value), = self.json.items()
        return key, value["code"], value["message"]


class Behind(Clients):
    """Clients whose interfaces tests assign: ``behind.servers = SomeServers()``."""

    def __init__(self):
        super().__init__(lambda: None)


class Client:
    """An HTTP client of the application; ``behind`` holds the fake services."""

    def __init__(self):
        self.behind = Behind()
        self.app = create_app(clients=self.behind)
        self.headers = {}

    def __call__(self, method, path, body=None, version=None, headers=None, raw=None, roles=None,
                 address="127.0.0.1"):
        path, _, query = path.partition("?")
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        environ = {
            "REQUEST_METHOD": method, "PATH_INFO": path.encode().decode("latin-1"), "QUERY_STRING": query,
            "SCRIPT_NAME": "", "SERVER_NAME": "api", "SERVER_PORT": "8774", "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "api:8774", "REMOTE_ADDR": address, "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(data),
            "wsgi.errors": io.StringIO(), "CONTENT_LENGTH": str(len(data)) if data else "",
        }
        sent = {**self.headers, **(headers or {})}
        if version is not None:
            sent["OpenStack-API-Version"] = f"compute {version}"
        if roles is not None:
            sent["X-Roles"] = roles
        for name, value in sent.items():
            key = name.upper().replace("-", "_")
            environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
        caught = SimpleNamespace()

        def start_response(status, response_headers, exc_info=None):
            caught.status, caught.headers = status, response_headers

        chunks = self.app(environ, start_response)
        return Answer(caught.status, caught.headers, b"".join(chunks))

    def get(self, path, **kwargs):
        return self("GET", path, **kwargs)

    def post(self, path, body=None, **kwargs):
        return self("POST", path, body, **kwargs)


def url(*segments):
    return "/v2.1/" + "/".join(quote(segment, safe="") for segment in segments)


@pytest.fixture(autouse=True, scope="session")
def options():
    """Register Nova's options."""
    conf.register()


@pytest.fixture(autouse=True)
def configuration(options):
    """Set Nova's options to their defaults and the noauth strategy. Policies stay loaded: most of the CPU time of these
    tests was that of oslo.policy, which copies all rules."""
    CONF([], project="nova", default_config_files=[])
    CONF.set_override("auth_strategy", "noauth", group="api")
    yield CONF
    CONF.reset()
    CONF.clear_override("auth_strategy", group="api")


@pytest.fixture
def policy_file(tmp_path):
    """Return a function that replaces the policy file by a text."""
    file = tmp_path / "policy.yaml"
    CONF.set_override("policy_file", str(file), group="oslo_policy")

    def write(text):
        file.write_text(text)
        policies.reset()
    yield write
    CONF.clear_override("policy_file", group="oslo_policy")
    policies.reset()


@pytest.fixture
def api():
    return Client()
