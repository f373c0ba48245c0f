"""The table of Compute commands: the name and the function of each. A module is imported when its command runs."""

from __future__ import annotations

import importlib

from nova.cli.declare import Declared

# name: module of nova.cli.resources, function
COMMANDS: dict[str, tuple[str, str]] = {
    name: (module, function) for module, functions in {
        "servers": {
            "list": "list_servers", "show": "show_server", "update": "update", "delete": "delete", "meta": "meta",
            "diagnostics": "diagnostics", "server-topology": "topology", "server-tag-list": "tag_list",
            "server-tag-add": "tag_add", "server-tag-delete": "tag_delete", "server-tag-delete-all": "tag_delete_all",
            "server-tag-set": "tag_set"},
        "boot": {"boot": "boot"},
        "power": {
            "start": "start", "stop": "stop", "reboot": "reboot", "pause": "pause", "unpause": "unpause",
            "suspend": "suspend", "resume": "resume", "lock": "lock", "unlock": "unlock", "restore": "restore",
            "force-delete": "force_delete", "reset-state": "reset_state", "shelve": "shelve",
            "shelve-offload": "shelve_offload", "unshelve": "unshelve", "unrescue": "unrescue",
            "resize-confirm": "resize_confirm", "resize-revert": "resize_revert",
            "trigger-crash-dump": "trigger_crash_dump", "refresh-network": "refresh_network",
            "add-secgroup": "add_secgroup", "remove-secgroup": "remove_secgroup"},
        "rebuild": {
            "rebuild": "rebuild", "rescue": "rescue", "resize": "resize", "set-password": "set_password",
            "get-password": "get_password", "clear-password": "clear_password"},
        "flavors": {
            "flavor-list": "list_flavors", "flavor-show": "show_flavor", "flavor-create": "create",
            "flavor-delete": "delete", "flavor-update": "update", "flavor-key": "key",
            "flavor-access-list": "access_list", "flavor-access-add": "access_add",
            "flavor-access-remove": "access_remove"},
        "images": {"image-list": "list_images", "image-show": "show_image", "image-create": "create",
                   "backup": "backup"},
        "networks": {
            "network-list": "list_networks", "network-show": "show_network", "network-create": "create",
            "network-delete": "delete", "interface-list": "interface_list", "interface-attach": "attach",
            "interface-detach": "detach", "list-secgroup": "secgroups",
            "add-fixed-ip": "add_fixed_ip", "remove-fixed-ip": "remove_fixed_ip"},
        "floating_ips": {
            "floating-ip-list": "list_addresses", "floating-ip-pool-list": "pools", "floating-ip-create": "create",
            "floating-ip-delete": "delete", "floating-ip-associate": "associate",
            "floating-ip-disassociate": "disassociate", "floating-ip-bulk-list": "bulk_list",
            "floating-ip-bulk-create": "bulk_create", "floating-ip-bulk-delete": "bulk_delete",
            "dns-domains": "dns_domains", "dns-create-private-domain": "dns_create_private_domain",
            "dns-create-public-domain": "dns_create_public_domain", "dns-delete-domain": "dns_delete_domain",
            "dns-list": "dns_list", "dns-create": "dns_create", "dns-delete": "dns_delete"},
        "secgroups": {
            "secgroup-list": "list_groups", "secgroup-create": "create", "secgroup-update": "update",
            "secgroup-delete": "delete", "secgroup-list-rules": "list_rules", "secgroup-add-rule": "add_rule",
            "secgroup-delete-rule": "delete_rule", "secgroup-add-group-rule": "add_group_rule",
            "secgroup-delete-group-rule": "delete_group_rule"},
        "keypairs": {"keypair-list": "list_keypairs", "keypair-show": "show", "keypair-add": "add",
                     "keypair-delete": "delete"},
        "volumes": {"volume-attachments": "attachments", "volume-attach": "attach", "volume-detach": "detach",
                    "volume-update": "update"},
        "groups": {"server-group-list": "list_groups", "server-group-get": "get", "server-group-create": "create",
                   "server-group-delete": "delete"},
        "moves": {
            "migrate": "migrate", "live-migration": "live_migration", "live-migration-abort": "abort",
            "live-migration-force-complete": "force_complete", "evacuate": "evacuate",
            "migration-list": "list_migrations", "server-migration-list": "of_server",
            "server-migration-show": "show_migration"},
        "whole_hosts": {
            "host-evacuate": "evacuate", "host-evacuate-live": "evacuate_live", "host-servers-migrate": "migrate",
            "host-meta": "meta"},
        "services": {
            "service-list": "list_services", "service-enable": "enable", "service-disable": "disable",
            "service-force-down": "force_down", "service-delete": "delete", "hypervisor-list": "list_hypervisors",
            "hypervisor-show": "show_hypervisor", "hypervisor-servers": "hypervisor_servers",
            "hypervisor-uptime": "uptime", "hypervisor-stats": "stats", "availability-zone-list": "zones"},
        "shares": {
            "share-list": "list_shares", "share-show": "show_share", "share-attach": "attach",
            "share-detach": "detach"},
        "aggregates": {
            "aggregate-list": "list_aggregates", "aggregate-show": "show_aggregate", "aggregate-create": "create",
            "aggregate-delete": "delete", "aggregate-update": "update", "aggregate-set-metadata": "set_metadata",
            "aggregate-add-host": "add_host", "aggregate-remove-host": "remove_host",
            "aggregate-cache-images": "cache_images"},
        "quotas": {
            "quota-show": "show_quota", "quota-defaults": "defaults", "quota-update": "update",
            "quota-delete": "delete",
            "quota-class-show": "show_class", "quota-class-update": "update_class", "limits": "limits"},
        "usage": {"usage": "usage", "usage-list": "list_usage", "instance-usage-audit-log": "audit_log"},
        "actions": {
            "instance-action-list": "list_actions", "instance-action": "show_action", "watch": "watch",
            "explain": "explain"},
        "consoles": {
            "console-log": "log", "get-vnc-console": "vnc", "get-spice-console": "spice",
            "get-serial-console": "serial",
            "get-mks-console": "mks", "get-rdp-console": "rdp", "ssh": "ssh"},
        "top": {"top": "top"},
        "client": {"version-list": "versions", "completion": "completion"},
    }.items() for name, function in functions.items()}

# Alternative names of commands.
ALIASES = {
    "bash-completion": "completion", "server-group-show": "server-group-get",
    "add-floating-ip": "floating-ip-associate", "remove-floating-ip": "floating-ip-disassociate",
    # printed by seed 000 in the place of platform-info
    "service-info platform-info": "platform-info"}


def load(name: str) -> Declared:
    """Return the command with this name. Raises KeyError."""
    module, function = COMMANDS[name]
    declared: Declared = getattr(importlib.import_module(f"nova.cli.resources.{module}"), function).declared
    return declared
