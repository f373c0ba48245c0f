"""Brings Keystone's projects, users, role assignments and catalogue to what the stack needs; repeats do nothing."""

import os
import sys

import openstack

# What services need to ask whose a token is. Nova's may read and make images in Glance besides (its policy),
# and nothing else.
ROLES = {"nova": ("service",), "glance": ("service",)}
CATALOGUE = {
    "glance": ("image", os.environ["GLANCE_URL"]),
    "nova": ("compute", os.environ["NOVA_URL"]),
}
if os.environ["CINDER_URL"]:
    # Nova's conductors act there for everybody, and by an account that has no other purpose.
    ROLES |= {"cinder": ("service",), "nova-volumes": ("service", "admin")}
    CATALOGUE["cinder"] = ("block-storage", os.environ["CINDER_URL"] + "/v3/%(project_id)s")


def project(identity, name):
    return identity.find_project(name, domain_id="default") or identity.create_project(
        name=name, domain_id="default")


def user(identity, name, password):
    found = identity.find_user(name, domain_id="default")
    if found is None:
        return identity.create_user(name=name, domain_id="default", password=password)
    return identity.update_user(found, password=password)


def grant(identity, who, where, names):
    for name in names:
        role = identity.find_role(name) or identity.create_role(name=name)
        identity.assign_project_role_to_user(where, who, role)  # a PUT: repeating it is harmless


def withdraw(identity, who, where, kept):
    """Roles of an earlier release of this script."""
    for assignment in list(identity.role_assignments(user_id=who.id, scope_project_id=where.id)):
        role = identity.get_role(assignment.role["id"])
        if role.name not in kept:
            identity.unassign_project_role_from_user(where, who, role)


def publish(identity, name, kind, url):
    service = next(iter(identity.services(type=kind)), None) or identity.create_service(name=name, type=kind)
    region = os.environ["OS_REGION_NAME"]
    known = {endpoint.interface: endpoint for endpoint in identity.endpoints(service_id=service.id, region_id=region)}
    for interface in ("public", "internal", "admin"):
        endpoint = known.get(interface)
        if endpoint is None:
            identity.create_endpoint(service_id=service.id, interface=interface, url=url, region_id=region)
        elif endpoint.url != url:
            identity.update_endpoint(endpoint, url=url)


def main():
    identity = openstack.connect().identity
    services, demo = project(identity, "service"), project(identity, "demo")
    for name, roles in ROLES.items():
        account = user(identity, name, os.environ["SERVICE_PASSWORD"])
        grant(identity, account, services, roles)
        withdraw(identity, account, services, roles)
    grant(identity, user(identity, "demo", os.environ["DEMO_PASSWORD"]), demo, ["member"])
    grant(identity, identity.find_user("admin", domain_id="default"), demo, ["admin"])
    for name, (kind, url) in CATALOGUE.items():
        publish(identity, name, kind, url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
