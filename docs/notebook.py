"""From a capture to tables and charts, as a marimo notebook: `marimo edit docs/notebook.py`, or run it as a script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo

    import tracewarehouse as tw

    mo.md("# A capture in a notebook\n\nAny capture opens in one line; this one comes with the package.")
    wh = tw.open(tw.sample())
    return mo, wh


@app.cell
def _(wh):
    run_id, name = wh.query("SELECT run_id, name FROM runs").rows()[0]
    top = wh.query(
        """
        SELECT name, part, count(*) AS n, sum(busy_ps) / 1e9 AS busy_ms
        FROM models.leaf_ops GROUP BY name, part ORDER BY busy_ms DESC LIMIT 5
        """
    )
    print(name, top, sep="\n\n")
    top  # noqa: B018  the last expression of a cell is what it shows
    return (run_id,)


@app.cell
def _(run_id, wh):
    from tracewarehouse.dashboards import step_parts

    step_parts(wh, run_id).chart  # noqa: B018  the last expression of a cell is what it shows
    return


@app.cell
def _(wh):
    wh.metric("tpot").df()
    return


if __name__ == "__main__":
    app.run()
