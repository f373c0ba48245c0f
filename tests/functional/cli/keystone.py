"""As much of Keystone's API as a client needs to log in: passwords, tokens that end, a catalogue."""

import contextlib
import datetime
import http.server
import json
import threading

PASSWORD = "right"
# Of nobody else: what other tests leave behind does not count.
PROJECT = "clients"


class Keystone:
    """Tokens are as Nova's noauth wants them, "user:project"; ``catalog`` names a URL per service type.

    ``logins`` counts the tokens that were given; ``lifetime`` of them is in seconds.
    """

    def __init__(self, **catalog):
        self.catalog = catalog
        self.logins = 0
        self.lifetime = 3600
        self.url = ""

    def version(self):
        return {"id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z", "media-types": [],
                "links": [{"rel": "self", "href": f"{self.url}/v3/"}]}

    def token(self, asked):
        """(token, document), or None for the wrong password."""
        user = asked["auth"]["identity"]["password"]["user"]
        if user["password"] != PASSWORD:
            return None
        self.logins += 1
        name, project = user["name"], asked["auth"]["scope"]["project"]["name"]
        now = datetime.datetime.now(datetime.UTC)
        domain = {"id": "default", "name": "Default"}
        return f"{name}:{project}", {"token": {
            "methods": ["password"], "roles": [{"id": "1", "name": "admin"}], "audit_ids": ["a"],
            "issued_at": f"{now:%Y-%m-%dT%H:%M:%S}.000000Z",
            "expires_at": f"{now + datetime.timedelta(seconds=self.lifetime):%Y-%m-%dT%H:%M:%S}.000000Z",
            "user": {"id": name, "name": name, "domain": domain},
            "project": {"id": project, "name": project, "domain": domain},
            "catalog": [{"type": kind.replace("_", "-"), "name": kind, "id": kind, "endpoints": [
                {"id": kind, "interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": url}]}
                for kind, url in self.catalog.items()]}}


def _handler(keystone):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.path.rstrip("/") == "/v3":
                self._answer(200, {"version": keystone.version()})
            else:
                self._answer(300, {"versions": {"values": [keystone.version()]}})

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = keystone.token(asked)
            if given is None:
                self._answer(401, {"error": {"code": 401, "message": "The request you have made requires "
                                             "authentication.", "title": "Unauthorized"}})
            else:
                self._answer(201, given[1], given[0])

        def _answer(self, status, document, token=None):
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if token:
                self.send_header("X-Subject-Token", token)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            """Nothing is logged."""

    return Handler


@contextlib.contextmanager
def running(**catalog):
    """A Keystone on a port of loopback."""
    keystone = Keystone(**catalog)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(keystone))
    keystone.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield keystone
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(keystone, user="admin", project=PROJECT, password=PASSWORD):
    """The OS_ variables of an openrc file."""
    return {"OS_AUTH_URL": keystone.url, "OS_USERNAME": user, "OS_PASSWORD": password, "OS_PROJECT_NAME": project,
            "OS_USER_DOMAIN_NAME": "Default", "OS_PROJECT_DOMAIN_NAME": "Default", "OS_REGION_NAME": "RegionOne",
            "OS_IDENTITY_API_VERSION": "3"}
