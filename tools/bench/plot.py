"""A picture of growth; needs matplotlib (the extra ``bench``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# name in a point -> title of its picture
_CURVES = {"boots_per_s": "boots/s, 20 clients", "cpu_ms_per_boot": "CPU per boot, ms",
           "post_p50_ms": "POST /servers p50 at 20 clients, ms", "get_server_ms": "GET /servers/{id} alone, ms",
           "list_1000_ms": "GET /servers/detail?limit=1000, ms"}


def save(points: Sequence[dict[str, Any]], path: str) -> None:
    """Write curves over the number of existing servers to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    servers = [point["servers"] for point in points]
    for position, (name, title) in enumerate(_CURVES.items(), 1):
        axes = figure.add_subplot(2, 3, position)
        axes.plot(servers, [point[name] for point in points], marker="o")
        _dress(axes, title)
    axes = figure.add_subplot(2, 3, len(_CURVES) + 1)
    for service in points[0]["rss_mb"]:
        axes.plot(servers, [point["rss_mb"][service] for point in points], marker="o", label=service)
    axes.legend(loc="lower right")
    _dress(axes, "resident memory of a worker, MB")
    figure.savefig(path, format="png", dpi=100)


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("servers in the database")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
