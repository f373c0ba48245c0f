"""Policies of the Placement API."""

from nova.policies.base import SERVICE, rule

_PROVIDER = "/placement/resource_providers/{uuid}"
_DECLARED = (
    ("resource_providers:list", "List resource providers.", "GET /placement/resource_providers"),
    ("resource_providers:create", "Create a resource provider.", "POST /placement/resource_providers"),
    ("resource_providers:show", "Show a resource provider.", f"GET {_PROVIDER}"),
    ("resource_providers:update", "Change a resource provider.", f"PUT {_PROVIDER}"),
    ("resource_providers:delete", "Delete a resource provider.", f"DELETE {_PROVIDER}"),
    ("resource_providers:inventories:list", "List inventories.", f"GET {_PROVIDER}/inventories"),
    ("resource_providers:inventories:create", "Create an inventory.", f"POST {_PROVIDER}/inventories"),
    ("resource_providers:inventories:show", "Show an inventory.", f"GET {_PROVIDER}/inventories/{{resource_class}}"),
    ("resource_providers:inventories:update", "Change inventories.", f"PUT {_PROVIDER}/inventories",
     f"PUT {_PROVIDER}/inventories/{{resource_class}}"),
    ("resource_providers:inventories:delete", "Delete inventories.", f"DELETE {_PROVIDER}/inventories",
     f"DELETE {_PROVIDER}/inventories/{{resource_class}}"),
    ("resource_providers:usages", "Show the usage of a resource provider.", f"GET {_PROVIDER}/usages"),
    ("resource_providers:aggregates:list", "List the aggregates of a resource provider.",
     f"GET {_PROVIDER}/aggregates"),
    ("resource_providers:aggregates:update", "Change the aggregates of a resource provider.",
     f"PUT {_PROVIDER}/aggregates"),
    ("resource_providers:traits:list", "List the traits of a resource provider.", f"GET {_PROVIDER}/traits"),
    ("resource_providers:traits:update", "Change the traits of a resource provider.", f"PUT {_PROVIDER}/traits"),
    ("resource_providers:traits:delete", "Remove the traits of a resource provider.", f"DELETE {_PROVIDER}/traits"),
    ("resource_providers:allocations:list", "List the allocations of a resource provider.",
     f"GET {_PROVIDER}/allocations"),
    ("resource_classes:list", "List resource classes.", "GET /placement/resource_classes"),
    ("resource_classes:create", "Create a resource class.", "POST /placement/resource_classes"),
    ("resource_classes:show", "Show a resource class.", "GET /placement/resource_classes/{name}"),
    ("resource_classes:update", "Create or rename a resource class.", "PUT /placement/resource_classes/{name}"),
    ("resource_classes:delete", "Delete a resource class.", "DELETE /placement/resource_classes/{name}"),
    ("traits:list", "List traits.", "GET /placement/traits"),
    ("traits:show", "Show a trait.", "GET /placement/traits/{name}"),
    ("traits:update", "Create a trait.", "PUT /placement/traits/{name}"),
    ("traits:delete", "Delete a trait.", "DELETE /placement/traits/{name}"),
    ("allocations:manage", "Change the allocations of several consumers.", "POST /placement/allocations"),
    ("allocations:list", "Show the allocations of a consumer.", "GET /placement/allocations/{uuid}"),
    ("allocations:update", "Change the allocations of a consumer.", "PUT /placement/allocations/{uuid}"),
    ("allocations:delete", "Remove the allocations of a consumer.", "DELETE /placement/allocations/{uuid}"),
    ("allocation_candidates:list", "List allocation candidates.", "GET /placement/allocation_candidates"),
    ("reshaper:reshape", "Move inventories and allocations between providers.", "POST /placement/reshaper"),
)
RULES = [
    *(rule(name, SERVICE, description, *operations, namespace="placement")
      for name, description, *operations in _DECLARED),
    rule("usages", f"{SERVICE} or rule:project_reader_api", "Show the usage of a project.", "GET /placement/usages",
         namespace="placement"),
]
