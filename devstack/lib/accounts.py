"""Create the projects, users, role assignments and catalog of the stack in Keystone. Idempotent.

Devstack runs it, and so does the suite's image of Keystone (tools/images). Its options are in the environment: OS_* of
an administrator, OS_REGION_NAME, SERVICE_PASSWORD, GLANCE_URL and NOVA_URL; optional:
DEMO_PASSWORD, CINDER_URL, and the internal endpoints GLANCE_INTERNAL_URL and NOVA_INTERNAL_URL.
"""

import os
import sys

import openstack

# The role that services need to validate tokens. The policy of Glance also allows it to read and create images.
ROLES = {"nova": ("service",), "glance": ("service",)}
CATALOGUE = {
    "glance": ("image", os.environ["GLANCE_URL"]),
    "nova": ("compute", os.environ["NOVA_URL"]),
}
if os.environ.get("CINDER_URL"):
    # Nova's conductors manage volumes of all projects, with a dedicated account.
    ROLES |= {"cinder": ("service",), "nova-volumes": ("service", "admin")}
    CATALOGUE["cinder"] = ("block-storage", os.environ["CINDER_URL"] + "/v3/%(project_id)s")


def project(identity, name):
    return identity.find_project(name, domain_id="default") or identity.create_project(
        name=name, domain_id="default")


def user(identity, name, password):
    account = identity.find_user(name, domain_id="default")
    if account is None:
        return identity.create_user(name=name, domain_id="default", password=password)
    return identity.update_user(account, password=password)


def grant(identity, who, where, names):
    for name in names:
        role = identity.find_role(name) or identity.create_role(name=name)
        identity.assign_project_role_to_user(where, who, role)  # a PUT: repeating it is harmless


def withdraw(identity, who, where, names):
    """Remove role assignments of earlier releases of this script."""
    for assignment in list(identity.role_assignments(user_id=who.id, scope_project_id=where.id)):
        role = identity.get_role(assignment.role["id"])
        if role.name not in names:
            identity.unassign_project_role_from_user(where, who, role)


def publish(identity, name, kind, url):
    service = next(iter(identity.services(type=kind)), None) or identity.create_service(name=name, type=kind)
    region = os.environ["OS_REGION_NAME"]
    endpoints = {endpoint.interface: endpoint
                 for endpoint in identity.endpoints(service_id=service.id, region_id=region)}
    inside = os.environ.get(f"{name.upper()}_INTERNAL_URL", url)
    for interface, place in (("public", url), ("internal", inside), ("admin", inside)):
        endpoint = endpoints.get(interface)
        if endpoint is None:
            identity.create_endpoint(service_id=service.id, interface=interface, url=place, region_id=region)
        elif endpoint.url != place:
            identity.update_endpoint(endpoint, url=place)


def main():
    identity = openstack.connect().identity
    services = project(identity, "service")
    for name, roles in ROLES.items():
        account = user(identity, name, os.environ["SERVICE_PASSWORD"])
        grant(identity, account, services, roles)
        withdraw(identity, account, services, roles)
    if os.environ.get("DEMO_PASSWORD"):
        demo = project(identity, "demo")
        grant(identity, user(identity, "demo", os.environ["DEMO_PASSWORD"]), demo, ["member"])
        grant(identity, identity.find_user("admin", domain_id="default"), demo, ["admin"])
    for name, (kind, url) in CATALOGUE.items():
        publish(identity, name, kind, url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
