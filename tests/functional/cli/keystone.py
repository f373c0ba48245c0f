"""A minimal Keystone for logins of clients: passwords, expiring tokens, a catalog."""

import contextlib
import datetime
import http.server
import json
import threading

PASSWORD = "right"
# A project that no other test uses.
PROJECT = "clients"


class Keystone:
    """A Keystone whose tokens have the form of Nova's noauth: "user:project". ``catalog``: URL by service type.

    ``logins``: number of issued tokens; ``lifetime``: of tokens, in seconds.
    """

    def __init__(self, **catalog):
        self.catalog = catalog
        self.logins = 0
        self.lifetime = 3600
        self.url = ""

    def version(self):
        return {"id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z", "media-types": [],
                "links": [{"rel": "self", "href": f"{self.url}/v3/"}]}

    def token(self, request):
        """Return (token, document), or None for a wrong password."""
        user = request["auth"]["identity"]["password"]["user"]
        if user["password"] != PASSWORD:
            return None
        self.logins += 1
        name, project = user["name"], request["auth"]["scope"]["project"]["name"]
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
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = keystone.token(request)
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
            """Log nothing."""

    return Handler


@contextlib.contextmanager
def running(**catalog):
    """Run a Keystone on a loopback port."""
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
    """Return the OS_ variables of an openrc file."""
    return {"OS_AUTH_URL": keystone.url, "OS_USERNAME": user, "OS_PASSWORD": password, "OS_PROJECT_NAME": project,
            "OS_USER_DOMAIN_NAME": "Default", "OS_PROJECT_DOMAIN_NAME": "Default", "OS_REGION_NAME": "RegionOne",
            "OS_IDENTITY_API_VERSION": "3"}
