"""Authorization of requests by oslo.policy rules. Operators override the default rules in the file
[oslo_policy]policy_file; a change of the file takes effect within a second. Targets are mappings with ``project_id``
and ``user_id`` of the affected resource."""

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
_checked_at = 0.0
_CHECK_INTERVAL = 1.0  # seconds between two checks of the policy file for changes


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules with their defaults, also for oslopolicy-sample-generator."""
    from nova.policies import base, placement, resources, servers

    return [*base.RULES, *servers.RULES, *resources.RULES, *placement.RULES]


def get_enforcer() -> policy.Enforcer:
    """Return the enforcer of this process with the current rules."""
    global _enforcer, _checked_at
    now = time.monotonic()
    if _enforcer is not None and now - _checked_at < _CHECK_INTERVAL:
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
        _checked_at = now
        return _enforcer


def reset() -> None:
    """Discard the loaded rules, for tests that change the policy."""
    global _enforcer
    with _lock:
        _enforcer = None


def credentials(ctx: RequestContext) -> dict[str, Any]:
    """Return the attributes of the caller for rules."""
    return {**ctx.to_policy_values(), "is_admin": ctx.is_admin}


def allowed(ctx: RequestContext, rule: str, target: Mapping[str, Any] | None = None,
            creds: dict[str, Any] | None = None) -> bool:
    """Return True if the rule allows the caller to access ``target`` (None: a resource of the caller's project). An
    unknown rule allows nothing."""
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
    """Raise PolicyNotAuthorized unless the rule allows the caller to access ``target``, see :func:`allowed`."""
    if not allowed(ctx, rule, target, creds):
        raise exception.PolicyNotAuthorized(action=rule)


def is_admin(ctx: RequestContext) -> bool:
    """Return True if the rule context_is_admin holds. It sets ``ctx.is_admin`` once per request."""
    enforcer = get_enforcer()
    return _holds(enforcer.rules["context_is_admin"], {}, credentials(ctx), enforcer, "context_is_admin")


def plain(rule: str) -> bool:
    """Return True if the rule consists of "and", "or", roles and comparisons only. Additional attributes of the target
    can then only turn a refusal into a permission."""
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


def _holds(check: Any, target: Mapping[str, Any], creds: dict[str, Any], enforcer: policy.Enforcer, rule: str) -> bool:
    """Evaluate a check, without the slow inspection of function signatures that oslo.policy makes for each check."""
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
    named = getattr(check, "kind", None)
    if named == "role":
        try:
            wanted = (check.match % target).lower()
        except KeyError:
            return False
        return any(role.lower() == wanted for role in creds.get("roles", ()))
    if named in ("project_id", "user_id"):
        # Shortcut for the most common comparisons, which oslo.policy parses as Python.
        try:
            return bool(str(creds.get(check.kind)) == check.match % target)
        except KeyError:
            return False
    return bool(check(target, creds, enforcer, rule))
