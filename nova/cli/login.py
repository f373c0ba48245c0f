"""Login and endpoints of a user, configured as for openstacksdk and cached between commands.

Reading clouds.yaml and OS_* with openstacksdk and logging in take longer than a whole ``nova list``. Therefore the
token and the used endpoints are cached in a file readable for its owner only, until shortly before the token expires.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from nova.cli.errors import CommandError, LoginFailed

# Cached tokens that expire within this many seconds are not used.
_MARGIN = 180
# Seconds for which endpoints are cached if there is no token with an expiry (noauth).
_LIFETIME = 3600
# Variables that affect neither credentials nor endpoints.
_IGNORED = {"OS_COMPUTE_API_VERSION", "OS_CACHE", "OS_TRUSTED_IMAGE_CERTIFICATE_IDS"}
_FALSE = ("0", "false", "no", "off")


@dataclasses.dataclass
class Session:
    """A cached login; ``expires`` in seconds since 1970, ``newest`` is the newest microversion of the API."""

    token: str | None
    expires: float
    project_id: str | None = None
    user_id: str | None = None
    verify: bool | str = True
    cert: str | list[str] | None = None
    endpoints: dict[str, str] = dataclasses.field(default_factory=dict)
    newest: int | None = None


class SessionCache:
    """The cache file of a login; no file is used if ``enabled`` is False."""

    def __init__(self, key: str, environ: Mapping[str, str], enabled: bool) -> None:
        home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
        self.path = pathlib.Path(home) / "nova" / f"{key}.json" if enabled else None

    def load(self) -> Session | None:
        """Return the cached login, or None if it is missing, expired, or accessible to other users."""
        if self.path is None:
            return None
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                    return None
                session = Session(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None
        return session if session.expires > time.time() + _MARGIN else None

    def save(self, session: Session) -> None:
        """Write the cache file. Errors are ignored: the next command logs in again."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for other in self.path.parent.glob("*.json"):
                if other.stat().st_mtime < time.time() - 24 * 3600:
                    other.unlink(missing_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False, encoding="utf-8") as file:
                json.dump(dataclasses.asdict(session), file)  # NamedTemporaryFile creates files with mode 0600
            os.replace(file.name, self.path)
        except OSError:
            return

    def remove(self) -> None:
        """Remove the cache file after a service refused the token."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def key_of(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return the cache key of a login: a hash of the OS_ variables, options and configuration files."""
    variables = {name: value for name, value in environ.items() if name.startswith("OS_") and name not in _IGNORED}
    given = {name: value for name, value in vars(options).items() if value is not None and _is_login_option(name)}
    files = []
    folders = [os.getcwd(), environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "/etc"]
    paths = [environ.get("OS_CLIENT_CONFIG_FILE", ""), environ.get("OS_CLIENT_SECURE_FILE", ""),
             *(os.path.join(folder, *below, f"{stem}.{suffix}") for folder in folders for below in ((), ("openstack",))
               for stem in ("clouds", "clouds-public", "secure") for suffix in ("yaml", "yml", "json"))]
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        files.append((path, status.st_mtime_ns, status.st_size))
    return hashlib.sha256(json.dumps([variables, given, files], sort_keys=True).encode()).hexdigest()


def _is_login_option(name: str) -> bool:
    return name.startswith("os_") and name not in ("os_cache", "os_compute_api_version")


def caching_enabled(options: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Return True if logins are cached, which --no-os-cache or OS_CACHE=0 disable."""
    if options.os_cache is not None:
        return bool(options.os_cache)
    return environ.get("OS_CACHE", "1").lower() not in _FALSE


class Login:
    """A login configured by openstacksdk. Raises LoginFailed with a hint if the configuration is incomplete."""

    def __init__(self, options: argparse.Namespace) -> None:
        import keystoneauth1.exceptions as ksa
        import openstack.config
        import openstack.exceptions as sdk

        given = argparse.Namespace(**{name: value for name, value in vars(options).items() if _is_login_option(name)})
        given.insecure = options.insecure or None
        self._errors = (ksa.ClientException, sdk.SDKException)
        try:
            self._region = openstack.config.OpenStackConfig().get_one(argparse=given)
            self._session = self._region.get_session()
        except (ksa.ClientException, sdk.SDKException, KeyError) as error:
            raise LoginFailed(f"{error}\nSource an openrc file (OS_AUTH_URL, OS_USERNAME, …), or name a cloud of "
                              "clouds.yaml with --os-cloud or OS_CLOUD.") from error

    def authenticate(self) -> Session:
        """Return a new token with its project and user. Raises LoginFailed."""
        auth: Any = self._session.auth
        verify, cert = self._region.get_requests_verify_args()
        try:
            token = self._session.get_token()
            expires = time.time() + _LIFETIME
            if token and hasattr(auth, "get_access"):
                expires = auth.get_access(self._session).expires.timestamp()
            return Session(token, expires, self._session.get_project_id(), self._session.get_user_id(),
                         True if verify is None else verify, list(cert) if isinstance(cert, tuple) else cert)
        except self._errors as error:
            where = getattr(auth, "auth_url", "the endpoint")
            raise LoginFailed(f"{str(error).rstrip()}\nThe login at {where} failed: check the URL, the user, the "
                              "project and the password.") from error

    def endpoint(self, service: str) -> str | None:
        """Return the URL of a service from the options or the service catalog, or None. Raises CommandError."""
        import keystoneauth1.exceptions as ksa

        override = self._region.get_endpoint(service)
        if override:
            return str(override)
        auth = self._session.auth
        if not hasattr(auth, "get_access") and service != "compute":
            return None  # without a catalog, the only endpoint is that of the Compute API
        try:
            url = self._session.get_endpoint(
                service_type=service, interface=self._region.get_interface(service) or "public",
                region_name=self._region.get_region_name(service), skip_discovery=True)
        except ksa.EndpointNotFound:
            return None
        except self._errors as error:
            raise CommandError(f"Cannot determine the endpoint of {service}: {error}") from error
        return None if url is None else str(url)
