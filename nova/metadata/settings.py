"""What the operator says about metadata."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

from oslo_config import cfg

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Settings:
    """``vendordata`` is the JSON value of the operator's file, None without one."""

    dhcp_domain: str = "novalocal"
    vendordata: Any = None
    skip_versions: frozenset[str] = frozenset()


def from_conf(conf: cfg.ConfigOpts) -> Settings:
    """The settings of now; the vendor data file is read once, here. An unreadable one is logged and left out."""
    return Settings(dhcp_domain=conf.network.dhcp_domain or "",
                    vendordata=_vendordata(conf.metadata.vendordata_jsonfile_path),
                    skip_versions=frozenset(conf.metadata.config_drive_skip_versions.split()))


def _vendordata(path: str | None) -> Any:
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        LOG.error("The vendor data file %s cannot be read: %s", path, error)
        return None
