"""Default roles of rules, and a constructor of rules."""

from typing import Any

from oslo_policy import policy

ADMIN = "rule:context_is_admin"
MANAGER = "rule:project_manager_or_admin"
MEMBER = "rule:project_member_or_admin"
READER = "rule:project_reader_or_admin"
SERVICE = "rule:service_or_admin"
ADMIN_OR_USER = "(rule:context_is_admin) or user_id:%(user_id)s"
ANY_CALLER = "@"
NO_CALLER = "!"

ACTION = "POST /servers/{server_id}/action"


def rule(name: str, check: str, description: str, *operations: str,
         namespace: str = "os_compute_api") -> policy.DocumentedRuleDefault:
    """Return the rule NAMESPACE:NAME for operations such as "GET /servers/{server_id}", for tokens of projects only."""
    documented: list[Any] = [dict(zip(("method", "path"), operation.split(" ", 1), strict=True))
                             for operation in operations]
    return policy.DocumentedRuleDefault(name=f"{namespace}:{name}", check_str=check, description=description,
                                        operations=documented, scope_types=["project"])


def _base(name: str, check: str, description: str) -> policy.RuleDefault:
    return policy.RuleDefault(name=name, check_str=check, description=description)


RULES = [
    _base("context_is_admin", "role:admin", "Definition of an administrator."),
    _base("admin_or_owner", "is_admin:True or project_id:%(project_id)s", "An administrator or the owning project."),
    _base("admin_api", "is_admin:True", "An administrator."),
    _base("project_manager_api", "role:manager and project_id:%(project_id)s", "A manager of the owning project."),
    _base("project_member_api", "role:member and project_id:%(project_id)s", "A member of the owning project."),
    _base("project_reader_api", "role:reader and project_id:%(project_id)s", "A reader of the owning project."),
    _base("service_api", "role:service", "Another OpenStack service."),
    _base("project_manager_or_admin", "rule:project_manager_api or rule:context_is_admin",
          "A manager of the owning project or an administrator."),
    _base("project_member_or_admin", "rule:project_member_api or rule:context_is_admin",
          "A member of the owning project or an administrator."),
    _base("project_reader_or_admin", "rule:project_reader_api or rule:context_is_admin",
          "A reader of the owning project or an administrator."),
    _base("service_or_admin", "rule:service_api or rule:context_is_admin",
          "Another OpenStack service or an administrator."),
]
