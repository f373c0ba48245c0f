"""Parser of options with ratios of metrics or properties."""

from __future__ import annotations

import logging
from collections.abc import Iterable

LOG = logging.getLogger(__name__)


def ratios(weight_setting: Iterable[str], option: str = "[metrics]weight_setting") -> dict[str, float]:
    """Return name -> ratio of such an option. Invalid items are skipped with a warning."""
    ratios_by_name: dict[str, float] = {}
    for setting in weight_setting:
        name, _, ratio = setting.partition("=")
        try:
            ratios_by_name[name.strip()] = float(ratio)
        except ValueError:
            LOG.warning("Option %s: ignoring %s, which is not name=ratio", option, setting)
    return ratios_by_name
