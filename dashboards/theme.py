"""Colours and sizes of all charts: one hue per kind of collective, greys and blues for what devices compute."""

from __future__ import annotations

from typing import Any

import altair as alt

KIND_COLORS = {
    "all-reduce": "#d1495b",
    "all-gather": "#edae49",
    "reduce-scatter": "#8d5a97",
    "all-to-all": "#00798c",
    "collective-permute": "#5a9e4b",
    "other collective": "#b07156",
    "matrix": "#33658a",
    "fusion": "#86a5bf",
    "copy": "#b9b4ab",
    "other": "#d5d9de",
}
"""Colour of each class of ops, collectives first."""

PHASE_COLORS = {"prefill": "#2f4858", "decode": "#86a5bf"}
WIDTH = 860
_INK = "#3c4650"
_FONT = "Inter, 'Helvetica Neue', Arial, sans-serif"


def class_color(field: str, present: list[str], title: str = "") -> alt.Color:
    """Colour by class of op, with a legend of the classes that are present."""
    domain = [c for c in KIND_COLORS if c in present]
    scale = alt.Scale(domain=domain, range=[KIND_COLORS[c] for c in domain])
    return alt.Color(f"{field}:N", scale=scale, title=title or None, sort=domain, legend=alt.Legend(orient="top"))


def styled(chart: Any, title: str, subtitle: str | list[str] = "") -> Any:
    """The chart with a title and the common looks."""
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=10)
    heading.subtitleColor = "#5f6b76"
    return (
        chart.properties(title=heading)
        .configure(font=_FONT, background="#ffffff")
        .configure_view(stroke=None)
        .configure_axis(
            gridColor="#eef0f2",
            domainColor="#c4cad0",
            tickColor="#c4cad0",
            labelColor=_INK,
            titleColor=_INK,
            titleFontWeight="normal",
        )
        .configure_legend(titleFontWeight="normal", labelColor=_INK)
    )
