"""Create the projects, users, role assignments and catalog of the stack in Keystone. Idempotent.

Used by devstack and by the Keystone container image (tools/images). Required environment variables: OS_* of an
administrator, OS_REGION_NAME, SERVICE_PASSWORD, GLANCE_URL and NOVA_URL. Optional:
DEMO_PASSWORD, CINDER_URL, NEUTRON_URL, and the internal endpoints GLANCE_INTERNAL_URL and NOVA_INTERNAL_URL.
"""

import os
import sys

import openstack

# Services need the role "service" to validate tokens. Glance's policy also allows this role to read and create images.
ROLES = {"nova": ("service",), "glance": ("service",)}
CATALOGUE = {
    "glance": ("image", os.environ["GLANCE_URL"]),
    "nova": ("compute", os.environ["NOVA_URL"]),
    # nova-api serves the Placement API, too.
    "placement": ("placement", os.environ["NOVA_URL"].removesuffix("/v2.1") + "/placement"),
}
if os.environ.get("NOVA_INTERNAL_URL"):
    os.environ["PLACEMENT_INTERNAL_URL"] = os.environ["NOVA_INTERNAL_URL"].removesuffix("/v2.1") + "/placement"
if os.environ.get("CINDER_URL"):
    # Nova's conductors manage volumes of all projects, with a dedicated account.
    ROLES |= {"cinder": ("service",), "nova-volumes": ("service", "admin")}
    CATALOGUE["cinder"] = ("block-storage", os.environ["CINDER_URL"] + "/v3/%(project_id)s")

if os.environ.get("NEUTRON_URL"):
    # Nova's conductors bind ports of all projects.
    ROLES |= {"neutron": ("service", "admin"), "nova-networks": ("service", "admin")}
    CATALOGUE["neutron"] = ("network", os.environ["NEUTRON_URL"])


def project(identity, name):
    return identity.find_project(name, domain_id="default") or identity.create_project(
        name=name, domain_id="default")


def user(identity, name, password):
    account = identity.find_user(name, domain_id="default")
    if account is None:
        return identity.create_user(name=name, domain_id="default", password=password)
    return identity.update_user(account, password=password)


def grant(identity, account, scope, names):
    for name in names:
        role = identity.find_role(name) or identity.create_role(name=name)
        identity.assign_project_role_to_user(scope, account, role)  # idempotent


def revoke_other_roles(identity, account, scope, names):
    """Remove the role assignments that are not in ``names``: earlier versions of this script made more assignments."""
    for assignment in list(identity.role_assignments(user_id=account.id, scope_project_id=scope.id)):
        role = identity.get_role(assignment.role["id"])
        if role.name not in names:
            identity.unassign_project_role_from_user(scope, account, role)


def register_endpoints(identity, name, kind, url):
    service = next(iter(identity.services(type=kind)), None) or identity.create_service(name=name, type=kind)
    region = os.environ["OS_REGION_NAME"]
    endpoints = {endpoint.interface: endpoint
                 for endpoint in identity.endpoints(service_id=service.id, region_id=region)}
    internal_url = os.environ.get(f"{name.upper()}_INTERNAL_URL", url)
    for interface, endpoint_url in (("public", url), ("internal", internal_url), ("admin", internal_url)):
        endpoint = endpoints.get(interface)
        if endpoint is None:
            identity.create_endpoint(service_id=service.id, interface=interface, url=endpoint_url, region_id=region)
        elif endpoint.url != endpoint_url:
            identity.update_endpoint(endpoint, url=endpoint_url)


def main():
    identity = openstack.connect().identity
    services = project(identity, "service")
    for name, roles in ROLES.items():
        account = user(identity, name, os.environ["SERVICE_PASSWORD"])
        grant(identity, account, services, roles)
        revoke_other_roles(identity, account, services, roles)
    if os.environ.get("DEMO_PASSWORD"):
        demo = project(identity, "demo")
        grant(identity, user(identity, "demo", os.environ["DEMO_PASSWORD"]), demo, ["member"])
        grant(identity, identity.find_user("admin", domain_id="default"), demo, ["admin"])
    for name, (kind, url) in CATALOGUE.items():
        register_endpoints(identity, name, kind, url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
