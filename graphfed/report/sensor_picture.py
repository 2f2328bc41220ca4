"""Sensors in one picture: where they are, which are neighbours, and how much of the readings there is."""

import io
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from graphfed.drawing import GRID, INK, MUTED, SERIES, any_script, new_figure, short, style

__all__ = ["sensor_picture"]


def sensor_picture(told: Mapping[str, Any], form: str) -> bytes:
    """A `sensor_overview` as "svg" or "png": a map of the sensors with their edges, coloured by the share of
    their readings that is missing, and a strip of how many readings there are in each piece of time."""
    import matplotlib as mpl

    with mpl.rc_context({**style(), "savefig.facecolor": "white"}), any_script():
        figure = new_figure(8.4, 8.4)
        places, strip = figure.subplots(2, 1, height_ratios=(7, 1))
        _map_on(figure, places, told)
        _strip_on(strip, told)
        figure.suptitle(
            f"{short(told['name'], 60)}: {len(told['sensors']['ids']):,} sensors, {told['steps']:,} steps "
            f"of {told['step_minutes']} minutes"
        )
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _map_on(figure: Any, ax: Any, told: Mapping[str, Any]) -> None:
    from matplotlib.collections import LineCollection

    each = told["sensors"]
    size = len(each["ids"])
    if each["position"] is None:
        # In a circle, in the order of the readings: nothing but the edges is to be seen.
        angle = 2 * np.pi * np.arange(size) / size
        place = np.stack((np.cos(angle), np.sin(angle)), axis=1)
        ax.set_axis_off()
        ax.set_aspect("equal", adjustable="datalim")
    elif each["geographic"]:
        place = np.array(each["position"])[:, ::-1]
        ax.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)")
        # A degree of longitude is shorter the farther one is from the equator.
        ax.set_aspect(1 / max(np.cos(np.radians(place[:, 1].mean())), 0.05), adjustable="datalim")
    else:
        place = np.array(each["position"])
        ax.set(xlabel="kilometres", ylabel="kilometres")
        ax.set_aspect("equal", adjustable="datalim")
    edges = np.array(told["edges"]).reshape(-1, 3)
    ends = edges[:, :2].astype(int)
    ax.add_collection(
        LineCollection(
            place[ends], colors=MUTED, linewidths=0.3 + edges[:, 2], alpha=0.4, zorder=1,
            rasterized=len(edges) > 5000,
        )
    )  # fmt: skip
    share = 100 * np.array(each["missing"])
    dots = ax.scatter(
        place[:, 0], place[:, 1], c=share, s=float(np.clip(4000 / size, 6, 45)), cmap="viridis",
        vmin=0, vmax=max(share.max(), 1.0), edgecolors=INK, linewidths=0.4, zorder=2,
    )  # fmt: skip
    # Sensors may all be in one place, or on one line.
    low, high = place.min(0), place.max(0)
    half = np.maximum((high - low) * 0.55, 0.02 * max((high - low).max(), 0.05))
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.set_title("sensors and their edges", loc="left", fontsize=11)
    figure.colorbar(dots, ax=ax, shrink=0.6, label="missing readings (%)")


def _strip_on(ax: Any, told: Mapping[str, Any]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    there = 100 * np.array(told["summary"]["availability"])
    start = datetime.fromisoformat(told["start"])
    end = start + timedelta(minutes=told["steps"] * told["step_minutes"])
    limits = float(date2num(start)), float(date2num(end))
    at = np.linspace(limits[0], limits[1], len(there) + 1)
    ax.stairs(there, at, fill=True, color=SERIES[0])
    ax.set(xlim=limits, ylim=(0, 100), ylabel="there (%)")
    ax.grid(axis="y", color=GRID)
    ax.xaxis.set_major_locator(dates := AutoDateLocator())
    ax.xaxis.set_major_formatter(ConciseDateFormatter(dates))
    ax.set_title("readings that are there, of all sensors", loc="left", fontsize=11)
