"""What the pages say, and what the files beside them hold."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote, unquote

import pyarrow.ipc
import pyarrow.parquet
import pytest
from page_client import HOSTILE, client_of
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tracewarehouse.cli import app
from tracewarehouse.dashboards import report
from tracewarehouse.dashboards.registry import RUN_CHARTS, STUDY_CHARTS
from tracewarehouse.dashboards.writing import prose
from tracewarehouse.ingest.devices.flags import FLAGS
from tracewarehouse.ingest.errors import StuckQueryError
from tracewarehouse.queries.read_only import Limits
from tracewarehouse.serve.warehouses import FOR_QUESTIONS, Warehouses
from tracewarehouse.warehouse import Warehouse, open_warehouse

pytestmark = pytest.mark.usefixtures("asked_once")

LLAMA, SP = "llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"


def texts(page: str) -> str:
    """The text of a page without its markup."""
    return unescape(re.sub(r"<[^>]*>", " ", page))


def rows(page: str) -> list[list[str]]:
    """The cells of the table of a page."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]*>", "", c)).strip() for c in re.findall(r"<td.*?</td>", r, re.DOTALL)] for r in found
    ]


def names(client: TestClient, **filters: str) -> set[str]:
    answer = client.get("/", params=filters)
    assert answer.status_code == 200
    listed = {row[1] for row in rows(answer.text)}
    assert listed == {r["name"] for r in client.get("/runs.json", params=filters).json()}
    return listed


def test_the_list_has_every_run_and_filters_it(client: TestClient) -> None:
    assert names(client) == {*HOSTILE, "tiny-tp2", LLAMA, SP}
    assert names(client, name="LLAMA") == {LLAMA, SP}
    assert names(client, model="llama-tiny", mesh="tp=4", hosts="1") == {LLAMA, SP}
    assert names(client, mesh="tp=2") == {"tiny-tp2"}
    assert names(client, name="llama", since="2000-01-01") == {LLAMA, SP}
    assert names(client, name="llama", until="2000-01-01") == set()
    assert names(client, name="llama", since="tomorrow") == set()
    flagged = {r["name"] for r in client.get("/runs.json").json() if r["flags"]}
    assert names(client, flag="none") == {*HOSTILE, "tiny-tp2", LLAMA, SP} - flagged
    assert names(client, device_kind="x' OR true --") == set()


def test_charts_over_runs_draw_those_that_fit(client: TestClient) -> None:
    page = client.get("/?name=llama").text
    addresses = [unescape(a) for a in re.findall(r'<figure[^>]* data-address="([^"]*)"', page)]
    assert len(addresses) == len(STUDY_CHARTS)
    drawn = {a: found for a in addresses if "specification" in (found := client.get(a).json())}
    assert {r["name"] for r in drawn["/charts/pareto?name=llama"]["specification"]["datasets"]["rows"]} == {LLAMA, SP}
    assert client.get("/charts/pareto?name=nobody").json()["absent"]
    assert client.get("/charts/pie").status_code == 404


def test_a_listed_run_has_its_step_in_miniature_and_its_sentence(client: TestClient, folder: Path) -> None:
    """The cell says what the run's page says; a host alone has no step, which it says as well."""
    page = client.get("/").text
    addresses = [unescape(a) for a in re.findall(r'<td class="step" data-address="([^"]*)"', page)]
    cells = {
        client.get(a.removesuffix("/step") + ".json").json()["facts"]["name"]: client.get(a).text for a in addresses
    }
    assert cells.keys() == {*HOSTILE, "tiny-tp2", LLAMA, SP}
    with open_warehouse(folder) as opened:
        steps = opened.summary(LLAMA).steps
        first = report.run_in_short(opened, opened.run(LLAMA).run_id).words[0]
    assert prose(first) in cells[LLAMA]
    assert len(re.findall("<rect ", cells[LLAMA])) == len(steps)
    assert "No step of a device is known" in cells[HOSTILE[0]]
    assert "<script" not in "".join(cells.values())


def test_flags_explain_themselves_and_origins_are_told_apart(client: TestClient) -> None:
    page = client.get("/").text
    assert f'<abbr title="{FLAGS["no_device_events"]}">no device events</abbr>' in unescape(page)
    assert re.findall(r'<td class="short origin (\w+)">', page) == ["recorded"] * len(rows(page))


def test_the_filters_say_what_there_is(client: TestClient) -> None:
    page = client.get("/", params={"model": "llama-tiny"}).text
    assert "<option selected>llama-tiny</option>" in page
    assert "<option>virtual CPU device</option>" in page


def test_the_page_of_a_run_says_what_show_says(client: TestClient, folder: Path, ids: dict[str, str]) -> None:
    said = texts(client.get(f"/runs/{ids[LLAMA]}").text)
    with open_warehouse(folder) as opened:
        summary = opened.summary(LLAMA)
    for text in (
        "4 sequences, 16 tokens in, 17 out",
        "No op is known to belong to a mixture of experts",
        "TTFT, device",
    ):
        assert text in said
    for missing in summary.missing:
        assert missing.metric in said
    assert client.get(f"/runs/{ids[LLAMA]}.json").json() == json.loads(json.dumps(summary.to_dict(), default=str))


def test_a_run_is_found_by_its_name_too(client: TestClient, ids: dict[str, str]) -> None:
    answer = client.get(f"/runs/{LLAMA}", follow_redirects=False)
    assert answer.headers["location"] == f"/runs/{ids[LLAMA]}"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text(client: TestClient, ids: dict[str, str], name: str) -> None:
    listed = client.get("/").text
    page = client.get(f"/runs/{ids[name]}").text
    choice = client.get("/compare").text
    asked = client.get("/sql", params={"sql": f"SELECT run_id, name FROM runs WHERE run_id = '{ids[name]}'"}).text
    for text in (listed, page, choice, asked):
        assert name in unescape(text)
        assert "<script>alert" not in text
        assert ' onmouseover="' not in text
        assert "49" not in texts(page).split(ids[name])[0].split()
    assert f'href="/runs/{ids[name]}"' in listed


def test_a_hostile_column_stays_text(client: TestClient) -> None:
    column = "</script><img src=x onerror=alert(1)>"
    page = client.get("/sql", params={"sql": f"SELECT 'a' AS b, 1 AS \"{column}\" UNION ALL SELECT 'c', 2"}).text
    assert "<img" not in page
    assert column in unescape(page)
    assert '"\\u003c/script\\u003e' in page  # the title of an axis


def test_every_chart_comes_with_its_rows_or_a_reason(client: TestClient, ids: dict[str, str]) -> None:
    drawn = 0
    for chart in list(RUN_CHARTS)[::3]:
        found = client.get(f"/runs/{ids[LLAMA]}/charts/{chart}").json()
        if "absent" in found:
            assert found["absent"]
            continue
        drawn += 1
        assert found["specification"]["datasets"]["rows"]
        links = dict(found["links"])
        assert client.get(links["json"]).json()
        assert all(client.get(links[m]).status_code == 200 for m in links.keys() - {"rows", "json", "csv"})
    assert drawn > 4


def test_rows_of_steps_and_collectives_lead_to_their_windows(client: TestClient, ids: dict[str, str]) -> None:
    page = client.get(f"/runs/{ids[LLAMA]}").text
    windows = re.findall(rf'href="(/runs/{ids[LLAMA]}/trace/\d+-\d+/)"', page)
    assert len(windows) == 17 + 20  # steps, and the slowest collectives
    sql = f"SELECT run_id, start_ps, until_ps FROM models.run_steps WHERE run_id = '{ids[LLAMA]}' AND step = 3"
    [(start, until)] = [(r["start_ps"], r["until_ps"]) for r in client.get("/sql.json", params={"sql": sql}).json()]
    half = (until - start) // 2 + 1
    assert f"/runs/{ids[LLAMA]}/trace/{start - half}-{until + half}/" in windows


def test_rows_of_any_query_lead_to_their_windows(client: TestClient, ids: dict[str, str]) -> None:
    run_id = ids[LLAMA]
    for columns, window in (
        ("100 AS start_ps, 300 AS end_ps", "0-401"),
        ("1000 AS start_ps, 200 AS duration_ps", "899-1301"),
        ("5 AS start_ps, 4 AS until_ps", None),
        ("NULL::BIGINT AS start_ps, 4::BIGINT AS until_ps", None),
        ("5 AS end_ps", None),
    ):
        page = client.get("/sql", params={"sql": f"SELECT '{run_id}' AS run_id, {columns}"}).text
        found = re.findall(rf'href="/runs/{run_id}/trace/([^/]*)/"', page)
        assert found == ([window] if window else []), columns
    unknown = client.get("/sql", params={"sql": "SELECT '../x' AS run_id, 1 AS start_ps, 2 AS end_ps"}).text
    assert "/trace/" not in unknown


def test_the_trace_of_a_window_is_smaller_than_the_whole(client: TestClient, ids: dict[str, str]) -> None:
    whole = client.get(f"/runs/{ids[LLAMA]}/trace/all/trace.pftrace.gz")
    part = client.get(f"/runs/{ids[LLAMA]}/trace/3570271000-5553215000/trace.pftrace.gz")
    assert (whole.status_code, part.status_code) == (200, 200)
    assert 0 < len(part.content) < len(whole.content) / 4
    for window in ("5-4", "1-1", "x", "-1-4", "1-" + "9" * 30):
        assert client.get(f"/runs/{ids[LLAMA]}/trace/{window}/").status_code == 404
    empty = client.get(f"/runs/{ids[LLAMA]}/trace/1-2/trace.pftrace.gz")
    assert empty.status_code == 400
    assert "has no event in the selection" in empty.text


def test_the_viewer_is_the_bundled_one_or_hands_the_trace_over(
    client: TestClient, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracewarehouse.serve.run_pages.bundled_ui", lambda: None)
    page = client.get(f"/runs/{ids[HOSTILE[0]]}/trace/all/")
    assert "&lt;script&gt;alert" in page.text
    assert client.get(f"/runs/{ids[HOSTILE[0]]}/trace/all/handover.js").headers["content-type"].startswith("text/java")
    monkeypatch.setattr("tracewarehouse.serve.run_pages.bundled_ui", lambda: Path())
    led = client.get(f"/runs/{ids[LLAMA]}/trace/all/", follow_redirects=False).headers["location"]
    trace = f"#!/?url=http://127.0.0.1:8765/runs/{ids[LLAMA]}/trace/all/trace.pftrace.gz"
    shown = re.search(re.escape(trace) + r"&visStart=(\d+)&visEnd=(\d+)&startupCommands=(.*)", led)
    assert shown
    assert 0 < int(shown[1]) < int(shown[2])
    assert json.loads(unquote(shown[3])) == [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}]


def test_a_comparison_has_the_numbers_of_the_command(client: TestClient, folder: Path, ids: dict[str, str]) -> None:
    address = f"/compare?run={ids[LLAMA]}&run={ids[SP]}&unlike=1"
    command = ["-w", str(folder), "compare", SP, LLAMA, "--force", "--format", "json"]
    expected = json.loads(CliRunner().invoke(app, command).stdout)
    found = client.get(address.replace("?", ".json?")).json()
    assert [{k: v for k, v in row.items() if k not in ("run_id", "name")} for row in found] == expected
    page = client.get(address).text
    assert f"{len(expected)} values" in texts(page)
    first = rows(page)[0]
    assert first[-1].endswith("worse")
    worse = client.get(f"{address}&verdict=worse&metric=exposed").text
    assert {r[0] for r in rows(worse)} <= {"exposed_communication"}
    assert len(rows(client.get(f"{address}&from=150").text)) == len(expected) - 150


def test_the_differences_of_a_comparison(client: TestClient, ids: dict[str, str]) -> None:
    address = f"/compare/charts/differences?run={ids[LLAMA]}&run={ids[SP]}&unlike=1"
    assert client.get(f"{address}&split=layer").json()["title"] == "What changed a step, by layer"
    assert client.get(f"{address}&split=colour").status_code == 400


def test_several_runs_are_compared_with_one(client: TestClient, ids: dict[str, str]) -> None:
    tiny = ids["tiny-tp2"]
    page = client.get(f"/compare?baseline={tiny}&run={ids[LLAMA]}&run={ids[SP]}&unlike=1").text
    heading = texts(page.partition("<h1>")[2].partition("</h1>")[0]).split()
    assert heading == [LLAMA, ",", SP, "against", "tiny-tp2", ",", "the", "baseline"]
    assert page.count('class="panel lazy"') == 2
    assert len(rows(page)[0]) == 3 + 2 * 3


def test_unlike_workloads_are_compared_when_asked_for(client: TestClient, ids: dict[str, str]) -> None:
    page = client.get(f"/compare?run={ids[LLAMA]}&run={ids[SP]}")
    assert "the runs differ in workload (output_length 17 and 9)" in texts(page.text)
    anyway = unescape(re.findall(r'href="(/compare\?[^"]*unlike=1)"', page.text)[0])
    assert "What changed a step" in client.get(anyway).text


def test_a_comparison_of_one_run_asks_for_another(
    client: TestClient, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracewarehouse.serve.compare_page._MOST_RUNS", 3)
    page = client.get(f"/compare?run={ids[LLAMA]}").text
    assert f'value="{ids[LLAMA]}" checked' in page
    many = "&".join(f"run={i}" for i in ids.values())
    assert client.get(f"/compare?{many}").status_code == 400


def test_metrics_and_one_of_them(client: TestClient, folder: Path, ids: dict[str, str]) -> None:
    page = client.get("/metrics").text
    with open_warehouse(folder) as opened:
        metrics = opened.definitions.aliases
        values = opened.query(
            "SELECT run_id, avg(value) FROM metric_values WHERE metric = 'exposed_communication' "
            "AND (dimensions ->> '$.phase') = 'decode' GROUP BY run_id"
        ).rows()
    assert {row[0] for row in rows(page)} == set(metrics)
    own = client.get("/metrics/exposed_communication").text
    shown = {row[0]: float(row[5]) for row in rows(own) if row[4] == "decode"}
    assert shown == {run_id: pytest.approx(value, rel=1e-5) for run_id, value in values}
    assert ids[LLAMA] in shown
    assert client.get("/metrics/exposed_communication/charts/over-time").json()["specification"]


@pytest.mark.parametrize("metric", ["roofline", "scaling_efficiency"])
def test_metrics_that_are_not_stored_have_a_page(client: TestClient, metric: str) -> None:
    page = client.get(f"/metrics/{metric}")
    assert page.status_code == 200
    for address in re.findall(r'href="(/sql\?[^"]*)"', page.text):
        assert client.get(unescape(address)).status_code == 200


def test_the_rows_of_a_query_have_an_address_and_files(client: TestClient) -> None:
    sql = "SELECT range AS i, range % 3 = 0 AS third, 'a,' || range AS text FROM range(450)"
    page = client.get("/sql", params={"sql": sql}).text
    assert "Rows 1 to 200 of 450" in texts(page)
    later = unescape(re.findall(r'href="([^"]*from=200)"', page)[0])
    assert rows(client.get(later).text)[0] == ["200", "false", "a,200"]
    assert "Rows 401 to 450 of 450" in texts(client.get(later.replace("from=200", "from=400")).text)
    files = {form: unescape(a) for a, form in re.findall(r'href="(/sql\.(\w+)\?[^"]*)"', page)}
    assert len(client.get(files["json"]).json()) == 450
    assert client.get(files["csv"]).text.splitlines()[:2] == ["i,third,text", '0,true,"a,0"']
    assert pyarrow.parquet.read_table(io.BytesIO(client.get(files["parquet"]).content)).num_rows == 450
    assert pyarrow.ipc.open_file(client.get(files["arrow"]).content).read_all().num_rows == 450


def test_what_a_page_leaves_out_is_said(client: TestClient) -> None:
    page = client.get("/sql", params={"sql": "SELECT range AS i, repeat('x', 400) AS long FROM range(1001)"}).text
    assert "Rows 1 to 200 of more than 1,000" in texts(page)
    assert "… 100 more characters" in texts(page)
    assert "/sql.csv" not in page
    refused = client.get("/sql.csv", params={"sql": "SELECT * FROM range(1001)"})
    assert (refused.status_code, "more than 1,000 rows" in refused.text) == (400, True)
    assert client.get("/sql.csv", params={"sql": "SELECT * FROM range(1000)"}).status_code == 200


def test_an_answer_carries_its_flags(client: TestClient) -> None:
    flagged = [r["name"] for r in client.get("/runs.json").json() if r["flags"]]
    page = client.get("/sql", params={"sql": "SELECT run_id FROM runs"}).text
    assert all(name in texts(page) for name in flagged[:5])
    assert "read with care" in page


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nix FROM runs", "nix"),
        ("DROP TABLE runs", "a query may only read"),
        ("SELECT 1; SELECT 2", "expected one SELECT statement, found 2 statements"),
        ("FROM '/etc/passwd.parquet'", "A read-only query sees only this warehouse"),
        ("COPY (SELECT 1) TO '/tmp/x'", "a query may only read"),
        ("SET memory_limit = '1TB'", "a query may only read"),
        ("SELECT $x", "x"),
        ("\udc80", ""),
    ],
)
def test_a_query_that_is_refused_says_why(client: TestClient, sql: str, said: str) -> None:
    sql = quote(sql.encode("utf-8", "surrogatepass"))
    page = client.get(f"/sql?sql={sql}")
    assert page.status_code in (200, 400)
    if said:
        assert page.status_code == 400
        assert said in texts(page.text)
        answer = client.get(f"/sql.json?sql={sql}")
        assert (answer.status_code, said in answer.json()["error"]) == (400, True)
    assert "Traceback" not in page.text


def test_examples_and_the_catalogue_can_be_asked(client: TestClient) -> None:
    addresses = re.findall(r'href="(/sql\?[^"]*)"', client.get("/sql").text)
    assert len(addresses) >= 5
    catalogue = re.findall(r'href="(/sql\?[^"]*)"', client.get("/catalogue").text)
    assert len(catalogue) > 100
    for address in (*addresses, *catalogue[::10]):
        assert client.get(unescape(address)).status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/runs/nix", 404, "no run 'nix'"),
        ("/runs/%2e%2e%2f%2e%2e%2fetc", 404, "There is no page"),
        ("/runs/nix.json", 404, "no run 'nix'"),
        ("/nowhere", 404, "There is no page /nowhere"),
        ("/metrics/tpott", 404, "did you mean tpot?"),
        ("/metrics/tpot?version=x", 400, "is not a number"),
        ("/?from=x", 400, "is not the number of a row"),
        ("/compare.json", 400, "two runs"),
        ("/static/../application.py", 404, "There is no page"),
        ("/static/%2e%2e/application.py", 404, "There is no page"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(client: TestClient, path: str, status: int, said: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert said in texts(answer.text)


def test_a_mistake_of_the_program_is_a_page_too(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tracewarehouse.serve.sql_pages.quick_chart", lambda *_: 1 / 0)
    answer = client.get("/sql?sql=SELECT+1")
    assert answer.status_code == 500
    assert "a fault in the program: ZeroDivisionError" in texts(answer.text)
    assert capsys.readouterr().err == "error: /sql: ZeroDivisionError: division by zero\n"


def test_new_runs_appear_and_removed_ones_are_gone(tmp_path: Path, host_only: Callable[[int], Path]) -> None:
    with open_warehouse(tmp_path / "warehouse", create=True) as opened, client_of(tmp_path / "warehouse") as client:
        assert "has no runs yet" in client.get("/").text
        opened.ingest(host_only(100), name="first")
        [first] = client.get("/runs.json").json()
        assert client.get(f"/runs/{first['run_id']}").status_code == 200
        opened.ingest(host_only(101), name="second")
        assert [r["name"] for r in client.get("/runs.json").json()] == ["first", "second"]
        opened.remove("first")
        gone = client.get(f"/runs/{first['run_id']}")
        assert gone.status_code == 404
        assert "no run" in texts(gone.text)
        assert [r["name"] for r in client.get("/runs.json").json()] == ["second"]


def test_a_long_query_is_cut_off_and_its_place_is_free_again(folder: Path) -> None:
    long = "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b WHERE hash(a.range + b.range) = 3"
    with client_of(folder, Limits(0.5, 10)) as client:
        for _ in range(FOR_QUESTIONS + 1):
            cut = client.get("/sql", params={"sql": long})
            assert (cut.status_code, "time limit of 0.5 s" in cut.text) == (400, True)
        assert client.get("/sql.json", params={"sql": "SELECT 1 AS a"}).json() == [{"a": 1}]


def test_a_server_without_memory_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), RuntimeError("can't start new thread")):
        monkeypatch.setattr(Warehouses, "one", Mock(side_effect=error))
        answer = client.get("/sql.json", params={"sql": "SELECT 1 AS a"})
        assert (answer.status_code, "memory of the server is in use" in answer.text) == (503, True)


def test_a_warehouse_whose_query_does_not_stop_is_replaced(folder: Path) -> None:
    opened: list[Warehouse] = []

    def open_one() -> Warehouse:
        opened.append(open_warehouse(folder))
        return opened[-1]

    pool = Warehouses(open_one, Limits())
    before = len(opened)
    with pytest.raises(StuckQueryError), pool.one() as left:
        raise StuckQueryError
    assert len(opened) == before + 1
    for _ in range(before):
        with pool.one() as warehouse:
            assert warehouse is not left
    assert pool.close()
