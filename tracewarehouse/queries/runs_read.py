"""Finds the runs that suffice to answer a query, and the flagged ones among those that its rows come from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracewarehouse.queries.result import FlaggedRun, flagged
from tracewarehouse.queries.tables_read import arguments, is_null, literal_text, lower, scoped

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.queries.tables_read import TablesRead

_RUN_ID = "run_id"
_CATALOG = ("metrics", "catalog")
_CONTAINS = ("contains", "list_contains")
"""What DuckDB makes of `run_id IN $runs`, with the list before the column; a text that contains an id is another."""


MacroRuns = tuple[Sequence[str], Collection[str]]
"""The parameters of a macro, and those of them that name all runs that it reads."""


def runs_read(
    tree: dict[str, Any],
    macros: Mapping[str, MacroRuns] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> frozenset[str] | None:
    """The ids of the runs whose rows suffice for a query; None if it may need those of any other run.

    They suffice if every SELECT over tables has `run_id = 'a'` or `run_id IN ('a', 'b')` among its conditions, and
    each of its joins compares run_id: then no row of another run meets a row that is wanted. A macro names its runs in
    its arguments. A parameter may give an id, or a list of them.

    Args:
        tree: the syntax tree of SELECTs, from `tables_read.ParsedSql`, over tables and views whose rows of a run
            follow from that run alone.
        macros: the macros of the warehouse by qualified name; other table functions name no run.
        parameters: the values of the query's parameters by name; without its value, a parameter may be any run.
    """
    run_ids = set[str]()
    given = parameters or {}
    tables = limited = 0
    for node, defined in scoped(tree):
        tables += _reads_runs(node, defined)
        if macros and (macro := macros.get(_function(node))):
            arguments_name = _named_by_macro(node["function"], *macro, given)
            if not arguments_name:
                return None
            run_ids |= arguments_name
        if node.get("type") == "SELECT_NODE":
            aliases = _joined(node.get("from_table") or {}, defined)
            if aliases is None:
                return None
            if aliases:
                named = _named(node.get("where_clause"), aliases, given)
                if named is None:
                    return None
                run_ids |= named
                limited += len(aliases)
    return frozenset(run_ids) if limited == tables else None  # else no SELECT limits some table, as in a PIVOT


def _function(node: dict[str, Any]) -> str:
    """The qualified name of a table function; empty for any other node."""
    if node.get("type") != "TABLE_FUNCTION":
        return ""
    return f"{lower(node['function'], 'schema')}.{lower(node['function'], 'function_name')}"


def _reads_runs(node: dict[str, Any], defined: frozenset[str]) -> bool:
    """Whether a node is a table or view of runs, and not a name that the query defines by WITH."""
    if node.get("type") != "BASE_TABLE":
        return False
    schema, name = lower(node, "schema_name"), lower(node, "table_name")
    return (schema, name) != _CATALOG and (bool(schema) or name not in defined)


def _joined(source: dict[str, Any], defined: frozenset[str]) -> list[str] | None:
    """The names by which a FROM clause knows its tables of runs; None if rows of different runs can meet in it.

    Anything but a table of runs, such as a subquery, has conditions of its own.
    """
    if _reads_runs(source, defined):
        return None if source.get("sample") else [lower(source, "alias") or lower(source, "table_name")]
    if source.get("type") != "JOIN":
        return []
    left, right = (_joined(source[side], defined) for side in ("left", "right"))
    if left is None or right is None or source.get("ref_type") not in ("REGULAR", "CROSS"):
        return None
    return left + right if not left or not right or _is_by_run(source, left, right) else None


def _is_by_run(join: dict[str, Any], left: list[str], right: list[str]) -> bool:
    if _RUN_ID in (str(c).lower() for c in join.get("using_columns") or ()):
        return True
    for condition in _conditions(join.get("condition")):
        if condition.get("type") == "COMPARE_EQUAL":
            first, second = _run_id_table(condition["left"]), _run_id_table(condition["right"])
            if (first in left and second in right) or (first in right and second in left):
                return True
    return False


def _named(where: dict[str, Any] | None, aliases: list[str], given: Mapping[str, Any]) -> set[str] | None:
    """The run ids that a WHERE clause allows; None if it allows any."""
    for condition in _conditions(where):
        kind = condition.get("type")
        if kind == "COMPARE_EQUAL":
            column, *values = condition["left"], condition["right"]
        elif kind == "COMPARE_IN":
            column, *values = condition["children"]
        elif condition.get("function_name") in _CONTAINS and isinstance(given.get(_parameter(condition)), list | tuple):
            [listed, column] = arguments(condition)
            values = [listed]
        else:
            continue
        if _run_id_table(column) in ("", *aliases):
            named = [_run_ids(v, given) for v in values]
            if None not in named:
                return set[str]().union(*(n for n in named if n))
    return None


def _parameter(function: dict[str, Any]) -> str:
    """The parameter that is the first of two arguments; empty if none is."""
    [first, *others] = arguments(function) or [{}]
    return str(first.get("identifier") or "") if len(others) == 1 else ""


def _named_by_macro(
    function: dict[str, Any], parameters: Sequence[str], naming: Collection[str], given: Mapping[str, Any]
) -> set[str] | None:
    """The run ids in the arguments of a macro; none or None if it may read other runs."""
    named = set[str]()
    for position, argument in enumerate(arguments(function)):
        # an argument by position has no alias
        parameter = lower(argument, "alias") or (parameters[position] if position < len(parameters) else "")
        if parameter in naming:
            ids = _run_ids(argument, given)
            if ids is None:
                return None
            named |= ids
    return named


def _run_ids(expression: dict[str, Any], given: Mapping[str, Any]) -> set[str] | None:
    """The run ids of a text, of a list of texts, of a parameter that is one of these, or of NULL; None for others."""
    if expression.get("type") == "OPERATOR_CAST":
        return _run_ids(expression["child"], given)
    if expression.get("type") == "VALUE_PARAMETER":
        value = given.get(str(expression.get("identifier")))
        texts = list(value) if isinstance(value, list | tuple) else [value]
    elif expression.get("function_name") == "list_value":
        texts = [literal_text(member) for member in arguments(expression)]
    else:
        texts = [literal_text(expression)]
    named = {text for text in texts if isinstance(text, str)}
    if len(named) == len(set(map(str, texts))):
        return named
    return set() if is_null(expression) else None


def _conditions(expression: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    left = [expression] if expression else []
    while left:
        condition = left.pop()
        if condition.get("type") == "CONJUNCTION_AND":
            left += condition["children"]
        else:
            yield condition


def _run_id_table(expression: dict[str, Any]) -> str | None:
    """The table that qualifies a column run_id, empty if none does; None if the expression is not such a column."""
    names = [str(n).lower() for n in expression.get("column_names") or ()]
    if expression.get("type") != "COLUMN_REF" or names[-1:] != [_RUN_ID]:
        return None
    return names[-2] if len(names) > 1 else ""


def in_scope(
    read: TablesRead, parameters: Mapping[str, Any] | None, result: QueryResult, runs: Sequence[RunVersion]
) -> list[FlaggedRun]:
    """Return the flagged ones of the runs that a query's rows may come from; see `runs_behind`."""
    return flagged(runs_behind(read, parameters, result, [r for r in runs if r.flags], runs))


def runs_behind(
    read: TablesRead,
    parameters: Mapping[str, Any] | None,
    result: QueryResult,
    suspects: Sequence[RunVersion],
    runs: Sequence[RunVersion],
) -> list[RunVersion]:
    """Return the runs that a query's rows may come from, without reading a file.

    If the result has a column run_id, these are the runs in that column. Otherwise they are the runs whose id or name
    is a string in the query or a parameter. If there is none either, they are all runs, provided that the query reads a
    table or metric.

    Args:
        read: what the query reads.
        suspects: the runs to choose from.
        runs: all runs of the warehouse.
    """
    if not suspects or not result.columns:
        return []
    if "run_id" in result.columns:
        here = result.distinct("run_id")
        return [r for r in suspects if r.run_id in here]
    if not read.reads_runs:
        return []
    texts = [*read.texts, *(str(v) for v in (parameters or {}).values())]
    named = {r.run_id for r in runs if any(r.run_id in t or r.name == t for t in texts)}
    return [r for r in suspects if r.run_id in named] if named else list(suspects)
