"""The generated pages are current."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from transcripts import check, transcripts

from tracewarehouse.warehouse import Warehouse

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import generate  # noqa: E402


def test_generated_pages_are_current(all_captures: Warehouse) -> None:
    assert generate.not_current(generate.texts(all_captures)) == [], "run `make docs`"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_places_that_a_page_names_are_there(page: str) -> None:
    """Whole paths, and names of modules and folders that follow one, as in `ingest/tables/lines.py` and `ops.py`."""
    tops = [ROOT / top for top in ("collect", "dashboards", "data", "ingest", "sql", "tests", "tracewarehouse")]
    places = [p for top in tops for p in (top, *top.rglob("*"))]
    names = {f"/{p.relative_to(ROOT)}{'/' if p.is_dir() else ''}" for p in places}
    named = re.findall(r"`([\w./-]+(?:\.(?:py|sql|yaml|json)|/))`", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 10
    for name in named:
        assert any(place.endswith(f"/{name}") for place in names), f"{page}: {name}"


def test_transcripts_are_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    """What stands below a `$ tw` line is what the command prints; where nothing does, it is not shown."""
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    shown = sum(check(*each, capsys, pytestconfig.getoption("--update-golden")) for each in transcripts(on_spark=False))
    assert shown >= 3


def test_every_extra_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "faq.md").read_text(), re.M)
    explained = {name for cell in table for name in re.findall(r"`([^`]+)`", cell)}
    assert explained == set(project["project"]["optional-dependencies"])


MOST_WORDS = 25_000


def test_what_people_write_can_be_read_in_two_hours() -> None:
    """Words of README, CONTRIBUTING, changelog and docs/, without generated pages and parts, code blocks and tables.

    A word has a letter and stands between spaces.
    """
    generated = {DOCS / "tables.md", DOCS / "metrics.md", DOCS / "agreement.md", *(DOCS / "metrics").iterdir()}
    pages = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md")} - generated)
    words = {p.relative_to(ROOT).as_posix(): _words(p.read_text(encoding="utf-8")) for p in pages}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"} <= words.keys()
    assert sum(words.values()) <= MOST_WORDS, words


def _words(page: str) -> int:
    page = re.sub(
        r"^<!-- [^\n]* from here -->\n.*?<!-- to here -->|^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE
    )
    page = re.sub(r"^ *\|.*|<!--.*?-->", "", page, flags=re.MULTILINE)
    return len(re.findall(r"\S*[A-Za-z]\S*", page))


def test_generated_parts_code_and_tables_are_no_words() -> None:
    generated = "<!-- x writes from here -->\nnot these\n<!-- to here -->\n"
    page = f"Two words\n{generated}| a | b |\n```sql\nSELECT 1\n```\n- 2 `three`"
    assert _words(page) == 3
