"""Write tempest.conf for the cloud of the OS_* variables: configure.py TEMPLATE TARGET."""

import json
import os
import pathlib
import re
import sys
import urllib.request

# The second flavor is larger: tests resize servers to it.
FLAVORS = ("cirros256", "m1.tiny")
# A disk image, and a machine image (AMI) with a separate kernel.
IMAGES = ("nova-guest", "nova-guest-ami")


class Cloud:
    """A client with token and catalog of Keystone, for GET requests."""

    def __init__(self, env):
        scope = {"project": {"name": env["OS_PROJECT_NAME"], "domain": {"name": env["OS_PROJECT_DOMAIN_NAME"]}}}
        user = {"name": env["OS_USERNAME"], "password": env["OS_PASSWORD"],
                "domain": {"name": env["OS_USER_DOMAIN_NAME"]}}
        self.identity = re.sub(r"/v3/?$", "", env["OS_AUTH_URL"].rstrip("/")) + "/v3"
        identity = {"methods": ["password"], "password": {"user": user}}
        headers, answer = ask(f"{self.identity}/auth/tokens", {"Content-Type": "application/json"},
                              {"auth": {"identity": identity, "scope": scope}})
        self.token = headers["X-Subject-Token"]
        self.endpoints = {service["type"]: endpoint["url"].rstrip("/") for service in answer["token"]["catalog"]
                          for endpoint in service["endpoints"] if endpoint["interface"] == "public"}

    def get(self, service, path):
        """Send a GET to a service of this type; return the decoded response."""
        return ask(self.endpoints[service] + path, {"X-Auth-Token": self.token})[1]


def ask(url, headers, body=None):
    """Send a request; return the headers and the decoded body of the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return response.headers, json.load(response)


def pick(items, names, kind):
    """Return the ids of the items with these names, in order, or of the first two items if none matches."""
    by_name = {item["name"]: item["id"] for item in items}
    ids = [by_name[name] for name in names if name in by_name] or list(by_name.values())[:2]
    if len(ids) < 2:
        sys.exit(f"tempest needs two {kind}; this cloud has {', '.join(by_name) or 'none'}")
    return ids


def main(template, target):
    env = os.environ
    cloud = Cloud(env)
    images = [image for image in cloud.get("image", "/v2/images?status=active")["images"]
              if image["container_format"] not in ("aki", "ari")]
    image, image_alt = pick(images, IMAGES, "images")[:2]
    flavor, flavor_alt = pick(cloud.get("compute", "/flavors")["flavors"], FLAVORS, "flavors")[:2]
    network = next(iter(cloud.get("compute", "/os-networks")["networks"]), None)
    if network is None:
        sys.exit("tempest needs a network; this cloud has none (nova-manage network create)")
    hosts = [service for service in cloud.get("compute", "/os-services?binary=nova-compute")["services"]
             if service["status"] == "enabled" and service["state"] == "up"]
    pools = [pool["name"] for pool in cloud.get("compute", "/os-floating-ip-pools")["floating_ip_pools"]]
    types = cloud.get("block-storage", "/types")["volume_types"] if "block-storage" in cloud.endpoints else []
    values = {
        "WORKSPACE": str(target.parent.parent), "USERNAME": env["OS_USERNAME"], "PASSWORD": env["OS_PASSWORD"],
        "PROJECT": env["OS_PROJECT_NAME"], "DOMAIN": env["OS_PROJECT_DOMAIN_NAME"], "AUTH_URL": cloud.identity,
        "REGION": env.get("OS_REGION_NAME", "RegionOne"), "IMAGE": image, "IMAGE_ALT": image_alt, "FLAVOR": flavor,
        "FLAVOR_ALT": flavor_alt, "NETWORK": network["label"], "NETWORK_ID": network["id"],
        "FILTERS": "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
                   "ServerGroupAffinityFilter,SameHostFilter,DifferentHostFilter",
        "HOSTS": str(len(hosts)), "SPICE": env.get("NOVA_SPICE") or "False", "POOL": pools[0] if pools else "",
        "CINDER": str(bool(types)), "MULTIATTACH": str("multiattach" in [kind["name"] for kind in types]),
        "VALIDATE": env.get("TEMPEST_VALIDATE", str(bool(pools))),
    }
    text = re.sub(r"@([A-Z_]+)@", lambda match: values[match.group(1)], template.read_text())
    target.write_text(text)
    target.chmod(0o600)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
