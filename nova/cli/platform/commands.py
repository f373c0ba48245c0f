"""The table of novad commands: the name and the function of each. A module is imported when its command runs."""

from __future__ import annotations

import importlib

from nova.cli.declare import Declared

# name: module of nova.cli.platform, function
COMMANDS: dict[str, tuple[str, str]] = {
    name: (module, function) for module, functions in {
        "deployments": {
            "deploy": "deploy", "plan": "plan", "history": "history", "rollback": "rollback", "restart": "restart",
            "remove": "remove"},
        "show": {
            "platform-info": "platform_info", "service-info": "service_info", "service-logs": "service_logs",
            "info": "info", "health": "health"},
        "discover": {"discover": "discover", "nodes list": "nodes_list", "nodes accept": "nodes_accept",
                       "nodes secret": "nodes_secret", "nodes forget": "nodes_forget"},
        "updates": {"update": "update"},
        "backups": {
            "backup list": "backup_list", "backup create": "backup_create", "backup prune": "backup_prune",
            "backup restore": "backup_restore",
            "secrets list": "secrets_list", "secrets rotate": "secrets_rotate"},
    }.items() for name, function in functions.items()}

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


def load(name: str) -> Declared:
    module, function = COMMANDS[name]
    declared: Declared = getattr(importlib.import_module(f"nova.cli.platform.{module}"), function).declared
    return declared
