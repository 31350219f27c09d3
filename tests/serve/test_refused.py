"""Who is not answered, and what browsers are told that a page may load."""

from __future__ import annotations

import re

import pytest
from page_client import OWN
from starlette.testclient import TestClient

PATHS = ("/", "/sql?sql=SELECT+1", "/sql.json?sql=SELECT+1", "/static/site.js", "/nowhere")


@pytest.mark.parametrize("path", PATHS)
def test_another_host_or_origin_gets_nothing(client: TestClient, path: str) -> None:
    for headers in (
        {"Host": "example.com:8765"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:8766"},
        {"Origin": "http://example.com"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 403, headers
        assert re.fullmatch(r"This server answers only (to the name of its own machine|its own pages)\.", answer.text)
        assert "access-control-allow-origin" not in answer.headers


def test_own_pages_and_links_are_answered(client: TestClient) -> None:
    for headers in (
        {"Origin": OWN, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Host": "localhost:8765"},
        BROWSER | {"Referer": f"{OWN}/sql?sql=SELECT+1"},
    ):
        answer = client.get("/sql?sql=SELECT+40%2B2+AS+a", headers=headers)
        assert answer.status_code == 200
        assert "42" in answer.text


LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
"""Of another machine, to which it sends no Sec-Fetch headers without TLS; so do old ones."""


@pytest.mark.parametrize(
    "headers",
    [
        LINK | {"Sec-Fetch-Site": "cross-site"},
        LINK | {"Sec-Fetch-Site": "same-site"},
        BROWSER,
        BROWSER | {"Referer": "http://example.com/"},
        BROWSER | {"Referer": OWN + ".example.com/"},
    ],
)
def test_a_link_on_a_page_of_others_asks_before_its_query_runs(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/metrics", headers=headers).status_code == 200
    answer = client.get("/sql?sql=SELECT+40%2B2+AS+a", headers=headers)
    assert answer.status_code == 200
    assert "SELECT 40+2 AS a" in answer.text
    assert "comes from another page" in answer.text
    assert "42" not in answer.text
    for form in ("json", "csv"):
        answer = client.get(f"/sql.{form}?sql=SELECT+40%2B2+AS+a", headers=headers)
        assert answer.status_code == 403
        assert "42" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(client: TestClient, method: str) -> None:
    for path in ("/", "/sql"):
        answer = client.request(method, path, content=b"sql=SELECT+1")
        assert answer.status_code == 405
        assert "Pages can only be read." in answer.text


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_policy(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["referrer-policy"] == "same-origin"  # tells queries of our pages from those of others
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert client.head(path).headers["content-security-policy"] == headers["content-security-policy"]


def test_pages_have_no_script_or_style_of_their_own(client: TestClient, ids: dict[str, str]) -> None:
    for path in ("/", f"/runs/{ids['tiny-tp2']}", "/metrics/step_time", "/sql?sql=SELECT+1+AS+a,+2+AS+b"):
        page = client.get(path).text
        for attributes, content in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL):
            assert 'type="application/json"' in attributes or not content
        assert not re.search(r'<style|\sstyle=|\son\w+="|javascript:', page)
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []
