"""The tables of commands: command name -> module, which is imported when the command runs."""

import importlib
from collections.abc import Mapping

from nova.cli.declare import Declared


def _table(package: str, modules: Mapping[str, str]) -> dict[str, str]:
    """Return {command name: module}. ``modules``: the names of the commands of each module, separated by commas."""
    return {name: f"nova.cli.{package}.{module}" for module, names in modules.items() for name in names.split(", ")}


# Commands of the Compute API.
COMMANDS = _table("resources", {
    "servers":
        "list, show, update, delete, meta, diagnostics, server-topology, server-tag-list, server-tag-add, "
        "server-tag-delete, server-tag-delete-all, server-tag-set",
    "boot": "boot, rebuild, rescue, resize, set-password, get-password, clear-password",
    "power":
        "start, stop, reboot, pause, unpause, suspend, resume, lock, unlock, restore, force-delete, shelve, "
        "shelve-offload, unshelve, unrescue, resize-confirm, resize-revert, reset-state, trigger-crash-dump, "
        "refresh-network, add-secgroup, remove-secgroup",
    "flavors":
        "flavor-list, flavor-show, flavor-create, flavor-delete, flavor-update, flavor-key, flavor-access-list, "
        "flavor-access-add, flavor-access-remove",
    "images": "image-list, image-show, image-create, backup",
    "networks":
        "network-list, network-show, network-create, network-delete, interface-list, interface-attach, "
        "interface-detach, list-secgroup, add-fixed-ip, remove-fixed-ip, floating-ip-list, floating-ip-pool-list, "
        "floating-ip-create, floating-ip-delete, floating-ip-associate, floating-ip-disassociate, "
        "floating-ip-bulk-list, floating-ip-bulk-create, floating-ip-bulk-delete, dns-domains, "
        "dns-create-private-domain, dns-create-public-domain, dns-delete-domain, dns-list, dns-create, dns-delete, "
        "secgroup-list, secgroup-create, secgroup-update, secgroup-delete, secgroup-list-rules, secgroup-add-rule, "
        "secgroup-delete-rule, secgroup-add-group-rule, secgroup-delete-group-rule",
    "keypairs": "keypair-list, keypair-show, keypair-add, keypair-delete",
    "volumes":
        "volume-attachments, volume-attach, volume-detach, volume-update, share-list, share-show, share-attach, "
        "share-detach",
    "groups": "server-group-list, server-group-get, server-group-create, server-group-delete",
    "moves":
        "migrate, live-migration, live-migration-abort, live-migration-force-complete, evacuate, migration-list, "
        "server-migration-list, server-migration-show, host-evacuate, host-evacuate-live, host-servers-migrate, "
        "host-meta",
    "hosts":
        "service-list, service-enable, service-disable, service-force-down, service-delete, hypervisor-list, "
        "hypervisor-show, hypervisor-servers, hypervisor-uptime, hypervisor-stats, availability-zone-list, "
        "version-list, aggregate-list, aggregate-show, aggregate-create, aggregate-delete, aggregate-update, "
        "aggregate-set-metadata, aggregate-add-host, aggregate-remove-host, aggregate-cache-images",
    "usage":
        "quota-show, quota-defaults, quota-update, quota-delete, quota-class-show, quota-class-update, limits, usage, "
        "usage-list, instance-usage-audit-log",
    "actions": "instance-action-list, instance-action, watch, explain",
    "consoles":
        "console-log, get-vnc-console, get-spice-console, get-serial-console, get-mks-console, get-rdp-console, ssh",
    "top": "top",
    "completion": "completion"})

# Commands of novad.
PLATFORM = _table("platform", {
    "deployments":
        "deploy, plan, history, rollback, restart, remove, backup list, backup create, backup prune, backup restore, "
        "secrets list, secrets rotate",
    "show": "platform-info, service-info, service-logs, info, health",
    "daemons": "discover, nodes list, nodes accept, nodes secret, nodes forget, update"})

# The first commands of ``nova help`` and their descriptions; the docstrings describe the other commands.
DESCRIPTIONS = {
    "discover": "Discover Axyon Nova Services",
    "deploy": "deploy platform",
    "platform-info": "show current platform info",
    "service-info": "show service info",
    "service-logs": "stream service logs",
    "restart": "restart platform services (default: all)",
    "remove": "remove all components of the platform",
    "info": "show app info",
    "update": "update the application"}

# Alternative names of commands.
ALIASES = {
    "bash-completion": "completion", "server-group-show": "server-group-get",
    "add-floating-ip": "floating-ip-associate", "remove-floating-ip": "floating-ip-disassociate",
    # The document that specifies novad's commands prints this form of platform-info.
    "service-info platform-info": "platform-info"}


def load(name: str, table: Mapping[str, str] = COMMANDS) -> Declared:
    """Return the command with this name. Raises KeyError. Its function has the same name with underscores; that of
    ``list`` is ``list_``, because ``list`` is a builtin."""
    function = "list_" if name == "list" else name.translate(str.maketrans("- ", "__"))
    declared: Declared = getattr(importlib.import_module(table[name]), function).declared
    return declared
