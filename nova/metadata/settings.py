"""Options that affect metadata."""

import dataclasses
import logging
from typing import Any

import msgspec
from oslo_config import cfg

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MetadataSettings:
    """Options of metadata. ``vendordata``: the JSON value of the vendor data file, or None."""

    dhcp_domain: str = "novalocal"
    vendordata: Any = None
    skip_versions: frozenset[str] = frozenset()


def from_conf(conf: cfg.ConfigOpts) -> MetadataSettings:
    """Return the configured settings, including the content of the vendor data file unless it is unreadable."""
    return MetadataSettings(dhcp_domain=conf.network.dhcp_domain or "",
                            vendordata=_vendordata(conf.metadata.vendordata_jsonfile_path),
                            skip_versions=frozenset(conf.metadata.config_drive_skip_versions.split()))


def _vendordata(path: str | None) -> Any:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read())  # unlike json, refuses NaN, infinity and halves of surrogate pairs
    except (OSError, ValueError, RecursionError) as error:
        LOG.error("Cannot read the vendor data file %s, guests get no vendor data: %s", path, error)
        return None
