"""What devices spend their op time on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from tracewarehouse.dashboards.theme import PHASE_COLORS, WIDTH, styled

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse


def op_time_share(warehouse: Warehouse, run_id: str, most: int = 12) -> Any | None:
    """The largest categories of ops by share of self time, bars side by side per phase; None without ops."""
    rows = warehouse.query(
        """WITH shares AS (
             SELECT coalesce(phase, 'whole capture') AS phase, coalesce(category, 'unnamed') AS category, share, ops
             FROM metrics.op_time_share WHERE run_id = $run_id
           ), largest AS (
             SELECT category, max(share) AS top FROM shares GROUP BY category ORDER BY top DESC LIMIT $most)
           SELECT s.*, l.top FROM shares AS s JOIN largest AS l USING (category) ORDER BY l.top DESC, s.phase DESC""",
        run_id=run_id,
        most=most,
    ).arrow()
    if not len(rows):
        return None
    categories = list(dict.fromkeys(rows.column("category").to_pylist()))
    phases = sorted(set(rows.column("phase").to_pylist()), reverse=True)
    colors = [PHASE_COLORS.get(p, "#5f7f95") for p in phases]
    chart = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="share of op time", axis=alt.Axis(format="%")),
            y=alt.Y("category:N", sort=categories, title=None),
            yOffset=alt.YOffset("phase:N", sort=phases),
            color=alt.Color("phase:N", scale=alt.Scale(domain=phases, range=colors), title=None,
                            legend=alt.Legend(orient="top")),
            tooltip=["phase:N", "category:N", alt.Tooltip("share:Q", format=".2%"), "ops:Q"],
        )
        .properties(width=WIDTH - 60, height=alt.Step(11 if len(phases) > 1 else 18))
    )  # fmt: skip
    return styled(chart, "Op time by category", "Self time of leaf ops, all devices together.")
