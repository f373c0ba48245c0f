"""Create images, flavors, key pairs and the first server through the public APIs. Credentials: OS_* variables.

All commands are idempotent: they do not change resources that already match.
"""

import argparse
import hashlib
import ipaddress
import os
import pathlib
import sys
import time

import openstack

# Name, ID, vCPUs, memory in MiB, disk in GiB. Exactly the flavors of upstream DevStack: functional tests of clients
# count the flavors, and the tests of openstacksdk expect cirros256 to be the smallest.
FLAVORS = (
    ("cirros256", "c1", 1, 256, 1),
    ("m1.tiny", "1", 1, 512, 1),
    ("ds512M", "d1", 1, 512, 5),
    ("ds1G", "d2", 1, 1024, 10),
    ("ds2G", "d3", 2, 2048, 10),
    ("ds4G", "d4", 4, 4096, 20),
    ("m1.small", "2", 1, 2048, 20),
    ("m1.medium", "3", 2, 4096, 40),
    ("m1.large", "4", 4, 8192, 80),
    ("m1.xlarge", "5", 8, 16384, 160),
)
# image name, file, disk format, container format
IMAGES = (
    ("nova-guest", "nova-guest.qcow2", "qcow2", "bare"),
    ("nova-guest-kernel", "vmlinuz", "aki", "aki"),
    ("nova-guest-ramdisk", "initrd.gz", "ari", "ari"),
    ("nova-guest-ami", "rootfs.img", "ami", "ami"),
)
PROMPT = "login: "
WORKED = "stack-first-boot"  # metadata of a server that reached its login prompt
NO_METADATA = " source=none "  # printed by the guest image if it received no metadata
BOOT_LIMIT = 180  # seconds to the login prompt: an emulated CPU is slow, especially on a busy machine


def say(text):
    print(f"       {text}", flush=True)


def upload_images(cloud, options):
    image_ids = {}
    for name, filename, disk_format, container_format in IMAGES:
        path = pathlib.Path(options.directory, filename)
        properties = {}
        if disk_format == "ami":
            properties = {"kernel_id": image_ids["nova-guest-kernel"], "ramdisk_id": image_ids["nova-guest-ramdisk"]}
        image_ids[name] = upload_image(cloud, path, properties, name=name, disk_format=disk_format,
                                   container_format=container_format, visibility="public")


def upload_image(cloud, path, properties, *, name, **attributes):
    with path.open("rb") as file:
        wanted = hashlib.file_digest(file, "sha512").hexdigest()
    for image in list(cloud.image.images(name=name)):
        links = {key: image.properties.get(key) or getattr(image, key, None) for key in properties}
        if image.status == "active" and image.hash_value == wanted and links == properties:
            say(f"image {name} exists")
            return image.id
        cloud.image.delete_image(image)
    image = cloud.image.create_image(name, filename=str(path), validate_checksum=False, wait=True, **attributes,
                                     **properties)
    say(f"image {name}: {path.stat().st_size / 2**20:.0f} MiB")
    return image.id


def create_flavors(cloud, options):
    existing = {flavor.name for flavor in cloud.compute.flavors(details=False, get_extra_specs=False)}
    missing = [flavor for flavor in FLAVORS if flavor[0] not in existing]
    for name, ident, vcpus, ram, disk in missing:
        cloud.compute.create_flavor(name=name, id=ident, vcpus=vcpus, ram=ram, disk=disk)
    say("flavors: " + (", ".join(flavor[0] for flavor in missing) if missing else "all exist"))


def create_keypair(cloud, options):
    public_key = pathlib.Path(options.public_key).read_text().strip()
    existing = cloud.compute.find_keypair(options.name)
    if existing is not None:
        existing = cloud.compute.get_keypair(options.name)
        if existing.public_key.strip() == public_key:
            say(f"key pair {options.name} exists")
            return
        cloud.compute.delete_keypair(existing)
    cloud.compute.create_keypair(name=options.name, public_key=public_key)
    say(f"key pair {options.name}")


def create_neutron_networks(cloud, options):
    """Create an external network, a network for the servers of all projects, and a router between them. The external
    network belongs to no project that has servers, because such servers could not choose between two networks."""
    network = cloud.network
    service = cloud.identity.find_project("service", ignore_missing=False)
    public = network.find_network(options.pool) or network.create_network(
        name=options.pool, project_id=service.id, is_router_external=True, is_default=True,
        provider_network_type="flat", provider_physical_network="public")
    network.find_subnet(options.pool) or network.create_subnet(
        name=options.pool, network_id=public.id, cidr=options.range, ip_version=4, is_dhcp_enabled=False,
        gateway_ip=str(next(ipaddress.ip_network(options.range).hosts())))
    private = network.find_network(options.name) or network.create_network(name=options.name, is_shared=True)
    subnet = network.find_subnet(options.name) or network.create_subnet(
        name=options.name, network_id=private.id, cidr=options.cidr, ip_version=4, dns_nameservers=options.dns)
    router = network.find_router(options.name) or network.create_router(
        name=options.name, external_gateway_info={"network_id": public.id})
    if not list(network.ports(device_id=router.id, network_id=private.id)):
        network.add_interface_to_router(router, subnet_id=subnet.id)
    say(f"networks {options.name}: {options.cidr}, {options.pool}: {options.range} (external)")


def open_neutron_group(cloud):
    """Allow ssh and ping to the servers of this project in Neutron."""
    groups = cloud.network.security_groups(project_id=cloud.current_project_id)
    group = next(group for group in groups if group.name == "default")
    existing = {(rule.protocol, rule.port_range_min) for rule in cloud.network.security_group_rules(
        security_group_id=group.id, direction="ingress") if rule.remote_ip_prefix}
    for protocol, port in (("tcp", 22), ("icmp", None)):
        if (protocol, port) not in existing:
            cloud.network.create_security_group_rule(
                security_group_id=group.id, direction="ingress", protocol=protocol, port_range_min=port,
                port_range_max=port, remote_ip_prefix="0.0.0.0/0")


def open_group(cloud, options):
    """Allow ssh and ping to the servers of this project. The default security group blocks both."""
    if cloud.has_service("network"):
        open_neutron_group(cloud)
        say(f"project {cloud.config.auth['project_name']}: ssh and ping are allowed")
        return
    groups = checked_json(cloud.compute.get("/os-security-groups", microversion="2.1"))["security_groups"]
    group = next(group for group in groups if group["name"] == "default")
    existing = {(rule["ip_protocol"], rule["from_port"]) for rule in group["rules"]}
    for protocol, first, last in (("tcp", 22, 22), ("icmp", -1, -1)):
        if (protocol, first) not in existing:
            rule = {"parent_group_id": group["id"], "ip_protocol": protocol, "from_port": first, "to_port": last,
                    "cidr": "0.0.0.0/0"}
            checked_json(cloud.compute.post("/os-security-group-rules", microversion="2.1",
                                            json={"security_group_rule": rule}))
    say(f"project {cloud.config.auth['project_name']}: ssh and ping are allowed")


def prepare(cloud, options):
    """Wait for nova-compute, then create the flavors, the key pair and the security group rules."""
    wait_until_up(cloud, {options.host}, options.seconds)
    create_flavors(cloud, options)
    create_keypair(cloud, options)
    open_group(cloud, options)
    open_group(cloud.connect_as(username="demo", password=os.environ["DEMO_PASSWORD"], project_name="demo"), options)


def checked_json(response):
    openstack.exceptions.raise_from_response(response)
    return response.json()


def wait_compute(cloud, options):
    wait_until_up(cloud, set(options.hosts), options.seconds)


def wait_until_up(cloud, hosts, seconds):
    """Wait until nova-compute is up on all hosts: its heartbeats reach the database through the bus and a conductor."""
    deadline, down, trouble = time.monotonic() + seconds, hosts, ""
    while time.monotonic() < deadline:
        try:
            states = {service.host: service.state for service in cloud.compute.services()
                      if service.binary == "nova-compute"}
            for host in sorted(host for host in down if states.get(host) == "up"):
                say(f"nova-compute on {host} is up")
            down = {host for host in down if states.get(host) != "up"}
            if not down:
                return
            trouble = ", ".join(f"{host}: {states.get(host, 'never reported')}" for host in sorted(down))
        except openstack.exceptions.SDKException as error:
            trouble = str(error)
        time.sleep(0.5)
    sys.exit(f"nova-compute is not up after {seconds} s: {trouble}")


def console(cloud, server):
    """Return the console log, or "" if it does not exist yet."""
    try:
        answer = cloud.compute.get_server_console_output(server.id)
    except openstack.exceptions.SDKException:
        return ""
    return answer.get("output") or ""


def delete(cloud, server):
    cloud.compute.delete_server(server, force=False)
    cloud.compute.wait_for_delete(server, wait=60)


def boot(cloud, options):
    """Boot the server up to its login prompt. If it already works, boot a temporary server instead and delete it.

    A server that once worked belongs to its user: it may be stopped, paused or rebooted now, and is never deleted.
    """
    name = options.name
    for server in list(cloud.compute.servers(details=True, name=f"^{name}$")):
        server = cloud.compute.get_server(server.id)
        if worked(cloud, server):
            say(f"server {name} is {server.status}; booting a temporary server as a test")
            check = boot_new(cloud, f"{name}-check", options)
            delete(cloud, check)
            say(f"server {check.name} deleted")
            return
        say(f"server {name} is {server.status} and did not boot correctly: deleting it")
        delete(cloud, server)
    boot_new(cloud, name, options)


def worked(cloud, server):
    """Return True if the server once reached its login prompt. Servers of older stacks lack the metadata."""
    if server.metadata.get(WORKED) or server.status not in ("ACTIVE", "BUILD", "ERROR"):
        return True
    text = console(cloud, server) if server.status == "ACTIVE" else ""
    return PROMPT in text and NO_METADATA not in text


def boot_new(cloud, name, options):
    for old in list(cloud.compute.servers(details=False, name=f"^{name}$")):
        delete(cloud, old)
    image = cloud.image.find_image(options.image, ignore_missing=False)
    flavor = cloud.compute.find_flavor(options.flavor, ignore_missing=False, get_extra_specs=False)
    start = time.monotonic()
    server = cloud.compute.create_server(name=name, image_id=image.id, flavor_id=flavor.id, key_name=options.key,
                                         networks="auto", availability_zone=f"nova:{options.host}")
    say(f"server {name}: requested")
    server = wait_active(cloud, server, start)
    wait_prompt(cloud, server, start)
    cloud.compute.set_server_metadata(server, **{WORKED: "yes"})
    return server


def wait_active(cloud, server, start):
    shown = None
    while time.monotonic() - start < BOOT_LIMIT:
        server = cloud.compute.get_server(server.id)
        state = f"{server.status} {server.task_state or ''}".strip()
        if state != shown:
            say(f"server {server.name}: {state} after {time.monotonic() - start:.1f} s")
            shown = state
        if server.status == "ACTIVE":
            return server
        if server.status == "ERROR":
            sys.exit(f"server {server.name} is in ERROR: {(server.fault or {}).get('message', 'no fault recorded')}")
        time.sleep(0.3)
    sys.exit(f"server {server.name} is still {server.status} after {BOOT_LIMIT} s")


def wait_prompt(cloud, server, start):
    text, last_report = "", time.monotonic()
    while time.monotonic() - start < BOOT_LIMIT:
        text = console(cloud, server)
        if PROMPT in text:
            say(f"server {server.name}: login prompt after {time.monotonic() - start:.1f} s; its console log:")
            print("\n".join("       | " + line.rstrip() for line in text.splitlines()), flush=True)
            if NO_METADATA in text:
                sys.exit(f"server {server.name} received no metadata, so it has no host name and no keys; "
                         "see the log of nova-metadata")
            return
        if time.monotonic() - last_report > 10:
            last_report = time.monotonic()
            say(f"server {server.name}: waiting for the login prompt; its console log has {len(text)} characters")
        time.sleep(0.5)
    sys.exit(f"no login prompt after {BOOT_LIMIT} s; last part of the console log:\n{text[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name, function, *arguments):
        sub = commands.add_parser(name)
        sub.set_defaults(function=function)
        for argument in arguments:
            sub.add_argument(argument, type=int if argument == "seconds" else str,
                             nargs={"hosts": "+", "dns": "*"}.get(argument))

    command("images", upload_images, "directory")
    command("prepare", prepare, "host", "seconds", "name", "public_key")
    command("neutron-networks", create_neutron_networks, "name", "cidr", "pool", "range", "dns")
    command("wait-compute", wait_compute, "seconds", "hosts")
    command("boot", boot, "name", "flavor", "image", "key", "host")
    options = parser.parse_args()
    options.function(openstack.connect(), options)


if __name__ == "__main__":
    main()
