"""[quota]: the default limits; -1 is unlimited."""

from oslo_config import cfg

_DEFAULTS = {
    "instances": 10, "cores": 20, "ram": 50 * 1024, "metadata_items": 128, "injected_files": 5,
    "injected_file_content_bytes": 10 * 1024, "injected_file_path_length": 255, "key_pairs": 100,
    "server_groups": 10, "server_group_members": 10,
}

OPTIONS = {
    "quota": [
        cfg.IntOpt(name, default=value, min=-1, help=f"The default limit of {name.replace('_', ' ')}.")
        for name, value in _DEFAULTS.items()
    ],
}
