"""Reads secrets from the key manager (Barbican, through castellan) with the caller's own token.

The group [key_manager] selects the back end. Castellan is imported at first use, so that a deployment without a key
manager does not need it."""

import logging
import threading
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext

LOG = logging.getLogger(__name__)

_GROUP, _BACKEND = "key_manager", "backend"
# Timeout in seconds of requests to Barbican, and to Keystone for their tokens.
_TIMEOUT = 10.0
# Maximum number of requests that this process sends to the key manager at the same time, since each occupies a thread
# that other requests need. A request that has waited _SLOT_TIMEOUT seconds for a slot fails with KeyManagerUnavailable.
_MAX_REQUESTS, _SLOT_TIMEOUT = 4, 1.0
_REQUEST_SLOTS = threading.BoundedSemaphore(_MAX_REQUESTS)


class NotConfigured(Exception):
    """A key manager is required, but none is configured or installed."""


class SecretDenied(Exception):
    """The key manager has no such secret, or the caller may not read it."""


def castellan_context(ctx: RequestContext) -> Any:
    """Return the context of the caller as castellan requires it."""
    from keystoneauth1 import identity

    class Token(identity.Token):
        """The caller's token. It sets the timeout of castellan's sessions, which have none by default."""

        def get_access(self, session: Any, **more: Any) -> Any:
            session.timeout = session.timeout or _TIMEOUT
            return super().get_access(session, **more)

    class CastellanContext(RequestContext):
        def get_auth_plugin(self) -> Any:  # castellan calls this method
            return Token(auth_url=CONF.barbican.auth_endpoint, token=self.auth_token or "", project_id=self.project_id)

    return CastellanContext(overwrite=False, auth_token=ctx.auth_token, project_id=ctx.project_id, user_id=ctx.user_id)


def is_unavailable(error: BaseException | None) -> bool:
    """Return True if an error of castellan means that the key manager failed to respond, not that it denied access."""
    from castellan.common.exception import KeyManagerError

    status = getattr(error.__context__, "status_code", None) if error else None
    return isinstance(error, KeyManagerError) and not (status and 400 <= status < 500)


def secret(ctx: RequestContext, ident: str) -> bytes:
    """Return the bytes of a secret, read as the caller. Raises NotConfigured, SecretDenied, KeyManagerUnavailable."""
    manager = back_end()
    from castellan.common import exception as castellan

    if not _REQUEST_SLOTS.acquire(timeout=_SLOT_TIMEOUT):
        raise exception.KeyManagerUnavailable()
    try:
        value = manager.get(castellan_context(ctx), ident).get_encoded()
    except castellan.KeyManagerError as error:
        if is_unavailable(error):
            raise exception.KeyManagerUnavailable() from error
        raise SecretDenied from error
    except (castellan.CastellanException, ValueError) as error:
        raise SecretDenied from error
    except Exception as error:  # each back end of castellan raises its own exceptions
        LOG.error("Cannot read secret %s from the key manager, the request fails: %s", ident, error)
        raise exception.KeyManagerUnavailable() from error
    finally:
        _REQUEST_SLOTS.release()
    if not isinstance(value, bytes) or not value:
        raise SecretDenied
    return value


def back_end() -> Any:
    """Return the key manager of castellan. Raises NotConfigured unless nova.conf names a back end; castellan's default
    needs more configuration."""
    try:
        from castellan import key_manager
        from oslo_config.cfg import Locations
    except ImportError as error:
        raise NotConfigured from error
    CONF.register_opts(key_manager.key_manager_opts, group=_GROUP)
    location = CONF.get_location(_BACKEND, _GROUP)
    if location is None or location.location == Locations.opt_default:
        raise NotConfigured
    return key_manager.API(CONF)
