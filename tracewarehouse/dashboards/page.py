"""Writes the HTML page of a report: one file that needs no network, readable without colours, pointer or motion."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tracewarehouse.dashboards.report import Report, Section
from tracewarehouse.dashboards.theme import WIDTH, config
from tracewarehouse.dashboards.vega import vega_script

if TYPE_CHECKING:
    from markupsafe import Markup


def html(report: Report) -> str:
    """The HTML of the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracewarehouse.dashboards"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["with_code"] = with_code
    return environment.get_template("report.html.j2").render(
        report=report,
        figures=report.figures(),
        content=script_json(_content(report)),
        script=vega_script().replace("</script", "<\\/script"),
    )


def _content(report: Report) -> dict[str, Any]:
    """The data of the page's script: specifications by the name of the chart, and metric values by section."""
    return {
        "width": WIDTH,
        "config": config(),
        "charts": {name: figure.specification() for name, figure in report.figures()},
        "values": {s.key: _values(s) for s in report.sections},
    }


def _values(section: Section) -> list[dict[str, Any]]:
    return [{"metric": v.metric, "columns": v.columns, "rows": v.rows} for v in section.values]


def with_code(text: str) -> Markup:
    """HTML of a sentence, with text between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  escaped before


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
