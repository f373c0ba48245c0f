"""Who may do what: oslo.policy rules with their defaults, and the question "may they?".

Operators override defaults in the file that [oslo_policy]policy_file names; a changed file counts
within a second. Targets are mappings with ``project_id`` and ``user_id`` of the thing concerned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from oslo_policy import policy

from nova import exception
from nova.conf import CONF
from nova.context import RequestContext

_lock = threading.Lock()
_enforcer: policy.Enforcer | None = None
_looked_at = 0.0
# How long a change of the policy file may go unnoticed, in seconds.
_PATIENCE = 1.0


def list_rules() -> list[policy.RuleDefault]:
    """Every rule with its default (the entry point of oslopolicy-sample-generator)."""
    from nova.policies import accounts, actions, base, flavors, hosts, networks, servers, volumes

    return [rule for module in (base, servers, actions, flavors, networks, volumes, hosts, accounts)
            for rule in module.RULES]


def get_enforcer() -> policy.Enforcer:
    """The process's enforcer with the rules as they are now."""
    global _enforcer, _looked_at
    now = time.monotonic()
    if _enforcer is not None and now - _looked_at < _PATIENCE:
        return _enforcer
    with _lock:
        if _enforcer is None:
            made = policy.Enforcer(CONF)
            made.suppress_deprecation_warnings = True
            made.register_defaults(list_rules())
            made.load_rules()
            _enforcer = made
        else:
            _enforcer.load_rules()
        _looked_at = now
        return _enforcer


def reset() -> None:
    """Forget what was loaded (tests that change the policy)."""
    global _enforcer
    with _lock:
        _enforcer = None


def credentials(ctx: RequestContext) -> dict[str, Any]:
    """What rules may ask of the caller."""
    found = dict(ctx.to_policy_values())
    found["is_admin"] = ctx.is_admin
    return found


def allowed(ctx: RequestContext, rule: str, target: Mapping[str, Any] | None = None,
            creds: dict[str, Any] | None = None) -> bool:
    """May the caller do this to ``target`` (None: to what is their own)? An unknown rule is no."""
    enforcer = get_enforcer()
    check = enforcer.rules.get(rule)
    if check is None:
        return False
    if ctx.system_scope:
        registered = enforcer.registered_rules.get(rule)
        if registered is not None and registered.scope_types and "system" not in registered.scope_types:
            return False
    if target is None:
        target = {"project_id": ctx.project_id, "user_id": ctx.user_id}
    return _holds(check, target, credentials(ctx) if creds is None else creds, enforcer, rule)


def authorize(ctx: RequestContext, rule: str, target: Mapping[str, Any] | None = None,
              creds: dict[str, Any] | None = None) -> None:
    """Raises PolicyNotAuthorized unless :func:`allowed`."""
    if not allowed(ctx, rule, target, creds):
        raise exception.PolicyNotAuthorized(action=rule)


def is_admin(ctx: RequestContext) -> bool:
    """The rule context_is_admin: decides ``ctx.is_admin`` once per request."""
    enforcer = get_enforcer()
    return _holds(enforcer.rules["context_is_admin"], {}, credentials(ctx), enforcer, "context_is_admin")


def plain(rule: str) -> bool:
    """Is the rule made of "and", "or", roles and comparisons only?

    Then knowing more of the target can only make it pass, never fail.
    """
    enforcer = get_enforcer()
    check = enforcer.rules.get(rule)
    return check is not None and _plain(check, enforcer)


def _plain(check: Any, enforcer: policy.Enforcer) -> bool:
    if isinstance(check, policy.AndCheck | policy.OrCheck):
        return all(_plain(part, enforcer) for part in check.rules)
    if type(check) is policy.RuleCheck:
        inner = enforcer.rules.get(check.match)
        return inner is not None and _plain(inner, enforcer)
    return type(check).__name__ in ("RoleCheck", "GenericCheck", "TrueCheck", "FalseCheck")


def _holds(check: Any, target: Mapping[str, Any], creds: dict[str, Any], enforcer: policy.Enforcer,
           rule: str) -> bool:
    """Evaluate a check. oslo.policy inspects the signature of every part each time; this does not."""
    kind = type(check)
    if kind is policy.OrCheck:
        return any(_holds(part, target, creds, enforcer, rule) for part in check.rules)
    if kind is policy.AndCheck:
        return all(_holds(part, target, creds, enforcer, rule) for part in check.rules)
    if kind is policy.NotCheck:
        return not _holds(check.rule, target, creds, enforcer, rule)
    if kind is policy.RuleCheck:
        inner = enforcer.rules.get(check.match)
        return inner is not None and _holds(inner, target, creds, enforcer, rule)
    if getattr(check, "kind", None) in ("project_id", "user_id"):
        # The most common comparisons; oslo.policy parses them as Python first.
        try:
            return bool(str(creds.get(check.kind)) == check.match % target)
        except KeyError:
            return False
    return bool(check(target, creds, enforcer, rule))
