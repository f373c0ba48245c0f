"""[quota]: the default limits; -1 is unlimited."""

from oslo_config import cfg

_DEFAULTS = {
    "instances": 10, "cores": 20, "ram": 50 * 1024, "metadata_items": 128, "injected_files": 5,
    "injected_file_content_bytes": 10 * 1024, "injected_file_path_length": 255, "key_pairs": 100,
    "server_groups": 10, "server_group_members": 10, "security_groups": 10, "fixed_ips": -1, "floating_ips": 10,
}

OPTIONS = {
    "quota": [
        cfg.IntOpt(name, default=value, min=-1, help=f"The default limit of {name.replace('_', ' ')}.")
        for name, value in _DEFAULTS.items()
    ] + [
        cfg.IntOpt("security_group_rules", default=100, min=-1, help="The default limit of rules in a security group."),
        cfg.IntOpt("server_ports", default=16, min=-1,
                   help="Interfaces that a server may have on the embedded networks, each with an address of each "
                        "version. With the limit of instances it bounds what addresses a project takes; fixed_ips is "
                        "one more bound, of the interfaces of a whole project."),
    ],
}
