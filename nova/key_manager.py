"""What the key manager keeps for a caller, asked with the caller's own token ([key_manager] says where).

Whatever castellan needs is imported when it is first asked: who keeps no secrets there needs none of it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext

LOG = logging.getLogger(__name__)

_GROUP, _BACKEND = "key_manager", "backend"
# Seconds that Barbican, and Keystone for it, may take for an answer.
_PATIENCE = 10.0
# So many of a process ask it at the same time: who asks holds a thread that others wait for, too, who want nothing of
# it. Whoever has waited for so many seconds for his turn is told that it does not answer.
_AT_ONCE, _TURN = 4, 1.0
_TURNS = threading.BoundedSemaphore(_AT_ONCE)


class NotConfigured(Exception):
    """There is no key manager."""


class Refused(Exception):
    """It does not have such a secret, or not for this caller."""


def caller(ctx: RequestContext) -> Any:
    """What castellan sees of who asks."""
    from keystoneauth1 import identity

    class Token(identity.Token):
        """The caller's. castellan makes sessions that wait for ever, and hands them to this first."""

        def get_access(self, session: Any, **more: Any) -> Any:
            session.timeout = session.timeout or _PATIENCE
            return super().get_access(session, **more)

    class Caller(RequestContext):
        def get_auth_plugin(self) -> Any:
            """The name that castellan looks for."""
            return Token(auth_url=CONF.barbican.auth_endpoint, token=self.auth_token or "",
                         project_id=self.project_id)

    return Caller(overwrite=False, auth_token=ctx.auth_token, project_id=ctx.project_id, user_id=ctx.user_id)


def is_away(told: BaseException | None) -> bool:
    """Whether castellan tells that the key manager did not answer, not that it does not give what was asked for."""
    from castellan.common.exception import KeyManagerError

    answered = getattr(told.__context__, "status_code", None) if told else None
    return isinstance(told, KeyManagerError) and not (answered and 400 <= answered < 500)


def check_configured() -> None:
    """Raises NotConfigured, unless an operator has chosen a back end: castellan's own choice is one that needs more."""
    _manager()


def secret(ctx: RequestContext, ident: str) -> bytes:
    """The bytes of a secret as the caller may read it. Raises NotConfigured, Refused, KeyManagerUnavailable."""
    manager = _manager()
    from castellan.common import exception as told

    if not _TURNS.acquire(timeout=_TURN):
        raise exception.KeyManagerUnavailable()
    try:
        found = manager.get(caller(ctx), ident).get_encoded()
    except told.KeyManagerError as error:
        if is_away(error):
            raise exception.KeyManagerUnavailable() from error
        raise Refused from error
    except (told.CastellanException, ValueError) as error:
        raise Refused from error
    except Exception as error:  # each back end of castellan has its own
        LOG.error("Secret %s could not be asked for: %s", ident, error)
        raise exception.KeyManagerUnavailable() from error
    finally:
        _TURNS.release()
    if not isinstance(found, bytes) or not found:
        raise Refused
    return found


def _manager() -> Any:
    try:
        from castellan import key_manager
        from oslo_config.cfg import Locations
    except ImportError as error:
        raise NotConfigured from error
    CONF.register_opts(key_manager.key_manager_opts, group=_GROUP)
    chosen = CONF.get_location(_BACKEND, _GROUP)
    if chosen is None or chosen.location == Locations.opt_default:
        raise NotConfigured
    return key_manager.API(CONF)
