"""Who asks, and where the services are: read as openstacksdk reads it, remembered between two commands.

Reading clouds.yaml and OS_* with openstacksdk, and logging in, take longer than a whole ``nova list``; so the token and
the endpoints that were used are kept in a file that only its owner can read, until shortly before the token ends.
"""

from __future__ import annotations

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

# Tokens are not used when they end within this time, in seconds.
_MARGIN = 180
# How long endpoints are believed where no token says when it ends (noauth).
_LIFETIME = 3600
# Variables that change nothing of who asks or where.
_BESIDE = {"OS_COMPUTE_API_VERSION", "OS_CACHE", "OS_TRUSTED_IMAGE_CERTIFICATE_IDS"}
_FALSE = ("0", "false", "no", "off")


@dataclasses.dataclass
class Known:
    """What is remembered of a login; ``expires`` in seconds since 1970, ``newest`` the API's newest microversion."""

    token: str | None
    expires: float
    project_id: str | None = None
    user_id: str | None = None
    verify: bool | str = True
    cert: str | list[str] | None = None
    endpoints: dict[str, str] = dataclasses.field(default_factory=dict)
    newest: int | None = None


class Memory:
    """The file of a login; nothing at all if ``wanted`` is false."""

    def __init__(self, key: str, environ: Mapping[str, str], wanted: bool) -> None:
        home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
        self.path = pathlib.Path(home) / "nova" / f"{key}.json" if wanted else None

    def load(self) -> Known | None:
        """What was remembered, unless it ended, or others could have written or read it."""
        if self.path is None:
            return None
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
                state = os.fstat(file.fileno())
                if state.st_uid != os.geteuid() or state.st_mode & 0o077:
                    return None
                known = Known(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None
        return known if known.expires > time.time() + _MARGIN else None

    def save(self, known: Known) -> None:
        """Where that is not possible the next command logs in again."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._forget_old()
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False, encoding="utf-8") as file:
                json.dump(dataclasses.asdict(known), file)  # mode 0600, as all such files
            os.replace(file.name, self.path)
        except OSError:
            return

    def forget(self) -> None:
        """Refused: it is not used again."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _forget_old(self) -> None:
        assert self.path is not None
        for other in self.path.parent.glob("*.json"):
            if other.stat().st_mtime < time.time() - 24 * 3600:
                other.unlink(missing_ok=True)


def key_of(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """One key for all commands that log in alike: the same variables, options and files."""
    said = {name: value for name, value in environ.items() if name.startswith("OS_") and name not in _BESIDE}
    given = {name: value for name, value in vars(options).items() if value is not None and _says_who(name)}
    files = []
    folders = [os.getcwd(), environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "/etc"]
    paths = [environ.get("OS_CLIENT_CONFIG_FILE", ""), environ.get("OS_CLIENT_SECURE_FILE", ""),
             *(os.path.join(folder, *below, f"{stem}.{suffix}") for folder in folders for below in ((), ("openstack",))
               for stem in ("clouds", "clouds-public", "secure") for suffix in ("yaml", "yml", "json"))]
    for path in paths:
        try:
            state = os.stat(path)
        except OSError:
            continue
        files.append((path, state.st_mtime_ns, state.st_size))
    return hashlib.sha256(json.dumps([said, given, files], sort_keys=True).encode()).hexdigest()


def _says_who(name: str) -> bool:
    return name.startswith("os_") and name not in ("os_cache", "os_compute_api_version")


def remembers(options: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Whether logins are kept: unless --no-os-cache or OS_CACHE say otherwise."""
    if options.os_cache is not None:
        return bool(options.os_cache)
    return environ.get("OS_CACHE", "1").lower() not in _FALSE


class Login:
    """What openstacksdk made of the configuration. Raises LoginFailed with what to do about it."""

    def __init__(self, options: argparse.Namespace) -> None:
        import keystoneauth1.exceptions as ksa
        import openstack.config
        import openstack.exceptions as sdk

        given = argparse.Namespace(**{name: value for name, value in vars(options).items() if _says_who(name)})
        given.insecure = options.insecure or None
        self._errors = (ksa.ClientException, sdk.SDKException)
        try:
            self._region = openstack.config.OpenStackConfig().get_one(argparse=given)
            self._session = self._region.get_session()
        except (ksa.ClientException, sdk.SDKException, KeyError) as error:
            raise LoginFailed(f"{error}\nSource an openrc file (OS_AUTH_URL, OS_USERNAME, …), or name a cloud of "
                              "clouds.yaml with --os-cloud or OS_CLOUD.") from error

    def known(self) -> Known:
        """A fresh token, and who has it."""
        auth: Any = self._session.auth
        verify, cert = self._region.get_requests_verify_args()
        try:
            token = self._session.get_token()
            expires = time.time() + _LIFETIME
            if token and hasattr(auth, "get_access"):
                expires = auth.get_access(self._session).expires.timestamp()
            return Known(token, expires, self._session.get_project_id(), self._session.get_user_id(),
                         True if verify is None else verify, list(cert) if isinstance(cert, tuple) else cert)
        except self._errors as error:
            where = getattr(auth, "auth_url", "the endpoint")
            raise LoginFailed(f"{str(error).rstrip()}\nThe login at {where} failed: check the URL, the user, the "
                              "project and the password.") from error

    def endpoint(self, service: str) -> str | None:
        """The URL of a service, as the options or the catalogue say; None if there is none."""
        import keystoneauth1.exceptions as ksa

        override = self._region.get_endpoint(service)
        if override:
            return str(override)
        auth = self._session.auth
        if not hasattr(auth, "get_access") and service != "compute":
            return None  # of a login without a catalogue the one endpoint is the API's
        try:
            found = self._session.get_endpoint(
                service_type=service, interface=self._region.get_interface(service) or "public",
                region_name=self._region.get_region_name(service), skip_discovery=True)
        except ksa.EndpointNotFound:
            return None
        except self._errors as error:
            raise CommandError(f"The endpoint of {service} is not known: {error}") from error
        return None if found is None else str(found)
