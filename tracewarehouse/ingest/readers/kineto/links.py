"""Links the events of a device to what launched them: the call, the operator, the modules and the marks around it.

A launch and its kernels share a correlation; a replay of a CUDA graph gives one to all its kernels. Where the trace
lacks the call, External id names the operator. Around a launch, on
its thread, are the operator that called it and the modules and annotations in which that ran. A launch of the backward
pass runs on a thread without modules, so it takes those of the operator of the forward pass with its sequence number.
What is around the kernels of a replay is what was around the calls that captured them, see `captures.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.columns.profiler_names import COALESCED_MARK, COLLECTIVE_MARK, GRAPH_LAUNCH, LAYER_SCOPE
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.readers.kineto.captures import agrees, captured_calls
from tracewarehouse.ingest.readers.kineto.events import Family, Table

_MODULE = "nn.Module: "
_MOST_CAPTURES = 16
"""Most captures of as many calls, of which a graph may be either."""
_PIECE = 1 << 16
"""Events of a thread that are nested at once."""
_BACKWARD = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Links:
    """What launched the events of the devices; arrays of shape (k,), one for each of `rows`.

    Attributes:
        rows: the rows of the device's events in the table, ascending.
        launch: row of the call that launched it, or of its operator where the file lacks the call; -1 for none.
        operator: row of the innermost operator around the launch, or around the captured call; -1 for none.
        op_name: number in `op_names` of the path of modules and the operator around the launch; 0 for none.
        annotation: row of the annotation of a collective around the launch, -1 for none.
        is_graph: whether the launch replays a graph.
        op_names: the paths by number.
    """

    rows: Int64
    launch: Int64
    operator: Int64
    op_name: Int64
    annotation: Int64
    is_graph: np.ndarray
    op_names: list[str]


def link(table: Table) -> Links:
    """Link all events of the devices."""
    rows = table.rows(Family.KERNEL, Family.COPY, Family.SET)
    names = list(table.names)
    launch = _launches(table, rows)
    is_graph_name = np.array([bool(GRAPH_LAUNCH.search(n)) for n in names] or [False], bool)
    is_graph = (launch >= 0) & np.append(is_graph_name[table.name], False)[launch]
    around = _Around(table, names)
    said = _said(table, names, around, launch)
    eager: dict[int, set[int]] | None = None
    source = launch.copy()
    alike: dict[int, dict[tuple[bytes, bytes], tuple[Int64, Int64]]] = {}  # by size, captures that say different things
    for replays, captures in captured_calls(table, rows, launch, is_graph):
        if eager is None:
            ran = (launch >= 0) & ~is_graph
            eager = {}
            pairs = np.unique(np.stack([table.name[rows[ran]], _names_of(table, said[0][ran])]), axis=1)
            for name, called in pairs.T.tolist():
                eager.setdefault(name, set()).add(called)
        size = replays.shape[1]
        if size not in alike:
            told = ((calls, *around.of(calls)[:2]) for calls in captures)
            alike[size] = {(_names_of(table, op).tobytes(), path.tobytes()): (calls, op) for calls, op, path in told}
        if len(alike[size]) > _MOST_CAPTURES:
            continue
        kernel = table.name[rows[replays[0]]]
        fitting = [c for c, op in alike[size].values() if agrees(kernel, _names_of(table, op), eager)]
        if len(fitting) == 1:
            source[replays] = fitting[0]
    operator, op_name, annotation, op_names = _said(table, names, around, source)
    return Links(rows, launch, operator, op_name, annotation, is_graph, op_names)


def coalesced_calls(table: Table, around: Int64) -> Iterator[tuple[int, Int64]]:
    """Yield the marks of coalesced collectives among annotations, and the rows of the calls that each launches.

    Before such a mark, and after the collective's mark before it, its thread calls for what one kernel then does.

    Args:
        table: the events.
        around: rows of the annotations of collectives, -1 for none.
    """
    coalesced = np.unique(around[around >= 0])
    coalesced = coalesced[table.name[coalesced] == table.names.get(COALESCED_MARK, -1)]
    if not len(coalesced):
        return
    calls = np.array([row for row in table.message if table.family[row] == Family.OPERATOR], np.int64)
    is_mark = np.array([bool(COLLECTIVE_MARK.match(name)) for name in table.names], bool)
    marks = table.rows(Family.ANNOTATION)
    marks = marks[is_mark[table.name[marks]]]
    for line in np.unique(table.line[coalesced]).tolist():
        own, others, after = (rows[table.line[rows] == line] for rows in (calls, marks, coalesced))
        own, others = own[np.argsort(table.start[own])], others[np.argsort(table.start[others])]
        ends = np.append(-1, np.maximum.accumulate(table.end(others)))
        first = table.start[own].searchsorted(ends[table.start[others].searchsorted(table.start[after])])
        last = table.start[own].searchsorted(table.start[after])
        for mark, low, high in zip(after.tolist(), first.tolist(), last.tolist(), strict=True):
            yield mark, own[low:high]


def _names_of(table: Table, rows: Int64) -> Int64:
    """Return the numbers of the names of rows, -1 for none."""
    return np.where(rows >= 0, table.name[rows], -1).astype(np.int64)


def _said(table: Table, names: list[str], around: _Around, source: Int64) -> tuple[Int64, Int64, Int64, list[str]]:
    """Return operator, number of the path, annotation of each call, as `Links` has them, and the paths."""
    used, place = np.unique(source[source >= 0], return_inverse=True)
    operator, path, annotation = around.of(used)
    op_names: dict[str, int] = {"": 0}
    keys, which = np.unique(np.stack([path, _names_of(table, operator)]), axis=1, return_inverse=True)
    paths = around.paths
    said = [
        op_names.setdefault("/".join(filter(None, (paths[p], names[n] if n >= 0 else ""))), len(op_names))
        for p, n in keys.T.tolist()
    ]
    of_call = np.array(said, np.int64)[which.ravel()] if len(used) else np.zeros(0, np.int64)
    columns = []
    for values, lacking in ((operator, -1), (of_call, 0), (annotation, -1)):
        columns.append(np.full(len(source), lacking, np.int64))
        columns[-1][source >= 0] = values[place]
    return columns[0], columns[1], columns[2], list(op_names)


def _launches(table: Table, rows: Int64) -> Int64:
    """Return the row of the call that launched each event, -1 for none.

    Correlations are unique in a process. Where processes share one, the last call before the event counts.
    """
    calls = table.rows(Family.LAUNCH)
    calls = calls[table.link[calls] > 0]
    calls = calls[np.lexsort((table.start[calls], table.link[calls]))]
    known, wanted = table.link[calls], table.link[rows]
    low, high = known.searchsorted(wanted), known.searchsorted(wanted, side="right")
    found = np.where((high > low) & (wanted > 0), high - 1, -1)
    for i in np.flatnonzero(high - low > 1).tolist():
        if wanted[i] > 0:
            starts = table.start[calls[low[i] : high[i]]]
            before = int(starts.searchsorted(table.start[rows[i]], side="right")) - 1
            found[i] = low[i] + max(before, 0)
    launch = np.full(len(rows), -1, np.int64)
    launch[found >= 0] = calls[found[found >= 0]]
    lacking = np.flatnonzero(launch < 0)
    launch[lacking] = _operators_by_id(table, rows[lacking])
    return launch


def _operators_by_id(table: Table, rows: Int64) -> Int64:
    """Return the row of the operator whose External id each event has, -1 for none.

    It stands for the launch where the trace lacks the call, which begins a little after its operator.
    """
    operators = table.rows(Family.OPERATOR)
    operators = operators[table.external[operators] > 0]
    operators = operators[np.argsort(table.external[operators], kind="stable")]
    if not len(operators):
        return np.full(len(rows), -1, np.int64)
    known, wanted = table.external[operators], table.external[rows]
    place = np.minimum(known.searchsorted(wanted), len(known) - 1)
    return np.where((known[place] == wanted) & (wanted > 0), operators[place], -1)


class _Around:
    """Finds what is around launches on their threads.

    Attributes:
        paths: paths of modules by number; 0 is none.
    """

    def __init__(self, table: Table, names: list[str]) -> None:
        self._table = table
        self._names = names
        self.paths: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}
        kinds = [(n.startswith(_MODULE), bool(LAYER_SCOPE.search(n)), bool(COLLECTIVE_MARK.match(n))) for n in names]
        is_module, is_scope, is_collective = np.array(kinds or [(False, False, False)], bool).T
        frames, annotations = table.rows(Family.FRAME), table.rows(Family.ANNOTATION)
        frames = frames[is_module[table.name[frames]]]
        scopes = annotations[is_scope[table.name[annotations]]]
        self._scopes = _Stacks(table, np.concatenate([frames, scopes]))
        self._collectives = _Stacks(table, annotations[is_collective[table.name[annotations]]])
        operators = table.rows(Family.OPERATOR)
        self._operators = _Stacks(table, operators)
        self._path_of_scope = self._scope_paths()
        backward = np.array(table.backward, np.int64)
        self._backward = _Stacks(table, backward)
        forward = operators[(table.link[operators] > 0) & ~np.isin(operators, backward)]
        order = np.lexsort((table.start[forward], table.link[forward]))
        self._forward = forward[order]
        self._of_sequence = table.link[self._forward]

    def of(self, calls: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the operator's row, the number of the path and the row of a collective's annotation of each call."""
        line, at = self._table.line[calls], self._table.start[calls]
        operator = self._operators.row(self._operators.innermost(line, at))
        annotation = self._collectives.row(self._collectives.innermost(line, at))
        path = self._path_of_scope[self._scopes.innermost(line, at)]
        lacking = np.flatnonzero(path == 0)
        if len(lacking) and len(self._forward):
            backward = self._backward.row(self._backward.innermost(line[lacking], at[lacking]))
            is_known = backward >= 0
            lacking, backward = lacking[is_known], backward[is_known]
            wanted = self._table.link[backward]
            first = np.minimum(self._of_sequence.searchsorted(wanted), len(self._forward) - 1)
            has = self._of_sequence[first] == wanted
            forward = self._forward[first]
            scope = self._scopes.innermost(self._table.line[forward], self._table.start[forward])
            path[lacking] = np.where(has, self._backward_path(self._path_of_scope[scope], backward), 0)
        return operator, path, annotation

    def _scope_paths(self) -> Int64:
        """Return the number of the path of each scope by place, and of none; its parents' paths come first."""
        stacks = self._scopes
        numbers = np.zeros(len(stacks.rows) + 1, np.int64)
        by_path: dict[tuple[int, int], int] = {}
        for place in np.argsort(stacks.depth, kind="stable").tolist():
            key = int(numbers[stacks.parent[place]]), int(self._table.name[stacks.rows[place]])
            if key not in by_path:
                own = self._names[key[1]].removeprefix(_MODULE)
                by_path[key] = self._number("/".join(filter(None, (self.paths[key[0]], own))))
            numbers[place] = by_path[key]
        return numbers

    def _backward_path(self, path: Int64, backward: Int64) -> Int64:
        keys, which = np.unique(np.stack([path, self._table.name[backward]]), axis=1, return_inverse=True)
        numbers = [
            self._number(f"{self.paths[p]}/{self._names[n].removeprefix(_BACKWARD)}") if p else 0
            for p, n in keys.T.tolist()
        ]
        return np.array(numbers, np.int64)[which.ravel()] if len(path) else path

    def _number(self, path: str) -> int:
        number = self._numbers.setdefault(path, len(self.paths))
        if number == len(self.paths):
            self.paths.append(path)
        return number


class _Stacks:
    """Some events of threads, nested; finds the innermost one that is open at a time.

    Attributes:
        rows: their rows in the table, ordered by line and start, longer ones first.
        parent: place in `rows` of the event that holds each, -1 for none.
        depth: number of events that hold each.
    """

    def __init__(self, table: Table, rows: Int64) -> None:
        self._table = table
        rows = np.sort(rows)
        start, end = table.start[rows], table.end(rows)
        order = np.lexsort((-end, start, table.line[rows]))
        self.rows: Int32 = rows[order].astype(np.int32)
        self.parent, self.depth = np.full((2, len(rows)), -1, np.int32)
        self._lines = table.line[self.rows]
        del start, end, order
        for first, stop in self._bounds():
            for low, high in pairwise(self._apart(first, stop)):
                own = self.rows[low:high]
                nesting = nest(table.start[own], table.end(own))
                self.parent[low:high] = np.where(nesting.parent >= 0, nesting.parent + low, -1)
                self.depth[low:high] = nesting.depth

    def _bounds(self) -> list[tuple[int, int]]:
        edges = np.flatnonzero(np.diff(self._lines, prepend=-1, append=-1)) if len(self._lines) else np.zeros(0, int)
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))

    def _apart(self, first: int, stop: int) -> list[int]:
        """Return places of a line between which no event is open, about as far from each other as _PIECE."""
        own = self.rows[first:stop]
        is_cut = self._table.start[own[1:]] >= np.maximum.accumulate(self._table.end(own))[:-1]
        cuts = np.append(np.flatnonzero(is_cut) + first + 1, stop)
        wanted = np.minimum(np.arange(first + _PIECE, stop + _PIECE, _PIECE), stop)
        return [first, *np.unique(cuts[cuts.searchsorted(wanted)]).tolist()]

    def row(self, place: Int64) -> Int64:
        """Return the row of each place, -1 for none."""
        return np.append(self.rows, -1)[place].astype(np.int64)

    def innermost(self, line: np.ndarray, at: Int64) -> Int64:
        """Return the place of the innermost event around each time on its line, -1 for none."""
        found = np.full(len(at), -1, np.int64)
        for low, high in self._bounds():
            of_line = np.flatnonzero(line == self._lines[low])
            if not len(of_line):
                continue
            place = self._table.start[self.rows[low:high]].searchsorted(at[of_line], side="right") - 1 + low
            place[place < low] = -1
            while (is_over := (place >= 0) & (self._table.end(self.rows[place]) < at[of_line])).any():
                place[is_over] = self.parent[place[is_over]]
            found[of_line] = place
        return found
