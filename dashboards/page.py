"""The HTML page of a report: one file that needs no network, and is readable without colours, pointer or motion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tracewarehouse.dashboards.report import Report, Section
from tracewarehouse.dashboards.theme import WIDTH, config


def html(report: Report) -> str:
    """The HTML of the page."""
    import jinja2
    import vl_convert

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracewarehouse.dashboards"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    bundle: Callable[[], str] = vl_convert.javascript_bundle  # type: ignore[assignment]  # its snippet is optional
    return environment.get_template("report.html.j2").render(
        report=report,
        figures=report.figures(),
        content=script_json(_content(report)),
        script=bundle().replace("</script", "<\\/script"),
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


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
