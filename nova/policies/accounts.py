"""Policies of key pairs, limits, quotas, usage and the API itself."""

from nova.policies.base import ADMIN, ADMIN_OR_USER, ANY_CALLER, READER, rule

RULES = [
    rule("extensions", ANY_CALLER, "List the extensions of the API.", "GET /extensions", "GET /extensions/{alias}"),
    rule("os-instance-usage-audit-log:list", ADMIN, "List usage audit logs.", "GET /os-instance_usage_audit_log"),
    rule("os-instance-usage-audit-log:show", ADMIN, "Show usage audit logs.",
         "GET /os-instance_usage_audit_log/{before_timestamp}"),
    rule("os-keypairs:index", ADMIN_OR_USER, "List key pairs.", "GET /os-keypairs"),
    rule("os-keypairs:create", ADMIN_OR_USER, "Create key pairs.", "POST /os-keypairs"),
    rule("os-keypairs:delete", ADMIN_OR_USER, "Delete key pairs.", "DELETE /os-keypairs/{keypair_name}"),
    rule("os-keypairs:show", ADMIN_OR_USER, "Show key pairs.", "GET /os-keypairs/{keypair_name}"),
    rule("limits", ANY_CALLER, "Show the limits of the caller's project.", "GET /limits"),
    rule("limits:other_project", ADMIN, "Show the limits of another project.", "GET /limits"),
    rule("os-quota-class-sets:show", ADMIN, "Show quota classes.", "GET /os-quota-class-sets/{quota_class}"),
    rule("os-quota-class-sets:update", ADMIN, "Change quota classes.", "PUT /os-quota-class-sets/{quota_class}"),
    rule("os-quota-sets:update", ADMIN, "Change quotas of a project.", "PUT /os-quota-sets/{tenant_id}"),
    rule("os-quota-sets:defaults", ANY_CALLER, "Show the default quotas.", "GET /os-quota-sets/{tenant_id}/defaults"),
    rule("os-quota-sets:show", READER, "Show quotas of a project.", "GET /os-quota-sets/{tenant_id}"),
    rule("os-quota-sets:delete", ADMIN, "Delete quotas of a project.", "DELETE /os-quota-sets/{tenant_id}"),
    rule("os-quota-sets:detail", READER, "Show the quotas of a project with their usage.",
         "GET /os-quota-sets/{tenant_id}/detail"),
    rule("os-simple-tenant-usage:show", READER, "Show usage of a project.", "GET /os-simple-tenant-usage/{tenant_id}"),
    rule("os-simple-tenant-usage:list", ADMIN, "Show the usage of all projects.", "GET /os-simple-tenant-usage"),
]
