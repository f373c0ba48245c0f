"""Policies of flavors, their extra specs and access lists."""

from nova.policies.base import ADMIN, READER, rule

RULES = [
    rule("os-flavor-access:add_tenant_access", ADMIN, "Grant a project access to a flavor.",
         "POST /flavors/{flavor_id}/action (addTenantAccess)"),
    rule("os-flavor-access:remove_tenant_access", ADMIN, "Revoke the access of a project to a flavor.",
         "POST /flavors/{flavor_id}/action (removeTenantAccess)"),
    rule("os-flavor-access", ADMIN, "List the projects with access to a flavor.",
         "GET /flavors/{flavor_id}/os-flavor-access"),
    rule("os-flavor-extra-specs:show", READER, "Show extra specs of a flavor.",
         "GET /flavors/{flavor_id}/os-extra_specs/{flavor_extra_spec_key}"),
    rule("os-flavor-extra-specs:create", ADMIN, "Create extra specs of a flavor.",
         "POST /flavors/{flavor_id}/os-extra_specs/"),
    rule("os-flavor-extra-specs:update", ADMIN, "Change extra specs of a flavor.",
         "PUT /flavors/{flavor_id}/os-extra_specs/{flavor_extra_spec_key}"),
    rule("os-flavor-extra-specs:delete", ADMIN, "Delete extra specs of a flavor.",
         "DELETE /flavors/{flavor_id}/os-extra_specs/{flavor_extra_spec_key}"),
    rule("os-flavor-extra-specs:index", READER, "List extra specs of a flavor.",
         "GET /flavors/{flavor_id}/os-extra_specs/", "POST /flavors", "GET /flavors/detail", "GET /flavors/{flavor_id}",
         "PUT /flavors/{flavor_id}"),
    rule("os-flavor-manage:create", ADMIN, "Create a flavor.", "POST /flavors"),
    rule("os-flavor-manage:update", ADMIN, "Change a flavor.", "PUT /flavors/{flavor_id}"),
    rule("os-flavor-manage:delete", ADMIN, "Delete a flavor.", "DELETE /flavors/{flavor_id}"),
]
