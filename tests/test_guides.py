"""The pages for people: every command, query and program in them runs, and what they show is what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.text_table import draw
from tracewarehouse.warehouse import Warehouse, open_warehouse

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COOKBOOK = DOCS / "cookbook.md"
_TEXT = r"```text\n(?P<shown>(?:(?!^```).)*)^```"
_ANSWERED = re.compile(r"^```sql\n(?P<sql>(?:(?!^```).)*)^```\n\n" + _TEXT, re.DOTALL | re.MULTILINE)
_RUN = re.compile(
    r"^```(?P<language>bash|python)\n(?P<text>(?:(?!^```).)*)^```(?:\n\n" + _TEXT + ")?", re.DOTALL | re.MULTILINE
)


def printed(warehouse: Warehouse, sql: str) -> str:
    result = warehouse.query(sql)
    return "".join(f"{line}\n" for line in draw(result.columns, result.rows()))


def test_every_question_of_the_cookbook_has_its_answer(all_captures: Warehouse, pytestconfig: pytest.Config) -> None:
    text = COOKBOOK.read_text(encoding="utf-8")
    answered = list(_ANSWERED.finditer(text))
    if pytestconfig.getoption("--update-golden"):
        for found in reversed(answered):
            text = text[: found.start("shown")] + printed(all_captures, found["sql"]) + text[found.end("shown") :]
        COOKBOOK.write_text(text, encoding="utf-8")
        return
    assert len(answered) == 30 == len(re.findall(r"^### \d+\. ", text, re.MULTILINE))
    for found in answered:
        assert printed(all_captures, found["sql"]) == found["shown"], found["sql"]


def test_the_backends_move_what_the_page_of_the_collector_shows(all_captures: Warehouse) -> None:
    (found,) = _ANSWERED.finditer((DOCS / "collecting.md").read_text(encoding="utf-8"))
    assert printed(all_captures, found["sql"]) == found["shown"]


@pytest.mark.parametrize("page", ["tutorial.md", "reading.md"])
def test_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """What stands below a block is what the block prints; where nothing does, it is not shown."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    if page == "reading.md":
        with open_warehouse(tmp_path / "warehouse", create=True) as opened:
            opened.ingest(ROOT / "data" / "captures" / "llama-tp4-b4-i16-o17")
    environment = {k: v for k, v in os.environ.items() if k != "TRACEWAREHOUSE"}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = list(_RUN.finditer(text))
    assert blocks
    outputs = []
    for block in blocks:
        command = ["bash", "-euo", "pipefail", "-c"] if block["language"] == "bash" else [sys.executable, "-c"]
        done = subprocess.run(
            [*command, block["text"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block['text']}\n{done.stderr}"
        outputs.append("".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()))
    if pytestconfig.getoption("--update-golden"):
        for block, output in reversed([*zip(blocks, outputs, strict=True)]):
            if block["shown"] is not None:
                text = text[: block.start("shown")] + output + text[block.end("shown") :]
        (DOCS / page).write_text(text, encoding="utf-8")
        return
    for block, output in zip(blocks, outputs, strict=True):
        assert block["shown"] in (None, output), block["text"]


def test_links_of_all_pages_lead_somewhere() -> None:
    for page in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_the_diagram_has_every_table_and_joins_by_columns_of_both() -> None:
    text = (DOCS / "data-model.md").read_text(encoding="utf-8")
    lines = re.findall(r"^  (\w+) [|o{}.-]+ (\w+) : (\w+)$", text, re.MULTILINE)
    assert {name for a, b, _ in lines for name in (a, b)} == set(TABLES)
    for first, second, column in lines:
        assert all(column in {c.name for c in TABLES[table].columns} for table in (first, second)), (first, second)
