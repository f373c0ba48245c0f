"""Options of default quotas ([quota]), read by nova-conductor."""

from oslo_config import cfg

DEFAULTS = {
    "instances": (10, "servers of a project"),
    "cores": (20, "virtual CPUs of the servers of a project"),
    "ram": (50 * 1024, "MiB of memory of the servers of a project"),
    "metadata_items": (128, "metadata items of a server"),
    "injected_files": (5, "injected files of a server"),
    "injected_file_content_bytes": (10 * 1024, "bytes in the content of an injected file"),
    "injected_file_path_length": (255, "bytes in the path of an injected file"),
    "key_pairs": (100, "key pairs of a user"),
    "server_groups": (10, "server groups of a project"),
    "server_group_members": (10, "servers in a server group"),
    "security_groups": (10, "security groups of a project"),
    "fixed_ips": (-1, "interfaces of the servers of a project on the embedded networks"),
    "floating_ips": (10, "floating IP addresses of a project"),
    "security_group_rules": (100, "rules in a security group"),
}

OPTIONS = {
    "quota": [
        cfg.IntOpt(name, default=value, min=-1,
                   help=f"Default maximum number of {counted}. -1: no limit. Read by nova-conductor. A project's own "
                        "quota overrides it.")
        for name, (value, counted) in DEFAULTS.items()
    ] + [
        cfg.IntOpt("server_ports", default=16, min=-1, help="Maximum number of interfaces of a server on the embedded "
                   "networks, each with one address of each IP version. -1: no limit. Read by nova-conductor. "
                   "fixed_ips limits the interfaces of a whole project."),
    ],
}
