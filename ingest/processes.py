"""Shares independent tasks among this process and helper processes, so that every core decodes.

A helper is a new interpreter, not a fork: threads of DuckDB, Arrow or the caller may hold locks that a fork would
copy and nobody would open. It is started by its own command and not by `multiprocessing`, which would run the caller's
script again in each helper and leave helpers behind when the caller is killed. A helper that loses its caller ends.
"""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Generic, Self, TypeVar, cast

from ingest.errors import TracewarehouseError

_State = TypeVar("_State")
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_COMMAND = "from ingest.processes import serve; serve({modules!r})"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of a process without linear algebra, for which numpy would start threads: a third of its import."""


class HelperError(TracewarehouseError):
    """A helper process ended before its task did."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Helper:
    """One helper process; it knows the state from the first task on."""

    unsent = b""
    """What it is told before its next task."""

    def __init__(self, descriptors: Sequence[int], environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._is_asked = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _COMMAND.format(modules=list(modules))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            env=environment,
        )

    def ask(self, function: Callable[[Any, _Task], _Result], task: _Task) -> _Result:
        """The result of one task.

        Raises:
            HelperError: the process ended.
            Exception: what the function raised.
        """
        to, back = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        with self._is_asked:
            try:
                to.write(self.unsent)
                self.unsent = b""
                pickle.dump((function, task), to, pickle.HIGHEST_PROTOCOL)
                to.flush()
                is_done, found = pickle.load(back)  # noqa: S301 - written by our own helper
            except (OSError, EOFError, pickle.UnpicklingError):
                raise HelperError(_how_it_ended(self._process.wait())) from None
        if not is_done:
            raise found
        return cast(_Result, found)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # of what it was not told any more
                cast(IO[bytes], pipe).close()


class Processes(Generic[_State]):
    """This process and its helpers, which start at once; a context manager that leaves none behind.

    Args:
        helpers: helper processes to start; fewer are started where the system allows no more.
        descriptors: open files that the state refers to by number.
        modules: what the helpers import while they wait.
    """

    _state: _State

    def __init__(self, helpers: int, descriptors: Sequence[int] = (), modules: Sequence[str] = ()) -> None:
        self._helpers: list[_Helper] = []
        if helpers < 1 or not sys.executable or getattr(sys, "frozen", False):
            return
        path = dict.fromkeys([str(Path(__file__).resolve().parents[1]), *(str(Path(p).resolve()) for p in sys.path)])
        environment = {**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(path)}
        with suppress(OSError):
            for _ in range(helpers):
                self._helpers.append(_Helper(descriptors, environment, modules))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            helper.end()
        self._helpers = []

    def share(self, state: _State) -> None:
        """Say what all tasks read, before the first of them; it goes to each helper once."""
        self._state = state
        pickled = pickle.dumps((None, state), pickle.HIGHEST_PROTOCOL) if self._helpers else b""
        for helper in self._helpers:
            helper.unsent = pickled

    def begin(self, function: Callable[[None, _Task], _Result], task: _Task) -> Future[_Result] | None:
        """Have a helper do a task that needs no state, before any other; None where there is no helper."""
        if not self._helpers:
            return None
        thread = ThreadPoolExecutor(1)
        future = thread.submit(self._helpers[0].ask, function, task)
        thread.shutdown(wait=False)
        return future

    def map(self, function: Callable[[_State, _Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        """The results of function(state, task), in the order of the tasks, which are begun in that order.

        Args:
            function: of a module, so that helpers find it; it must not change the state.
            tasks: independent of each other.

        Raises:
            HelperError: a helper was ended from outside.
            Exception: what the function raised, of the first task that failed.
        """
        waiting = deque(enumerate(tasks))
        results: dict[int, _Result] = {}
        failures: dict[int, Exception] = {}

        def work(ask: Callable[[_Task], _Result]) -> None:
            while True:
                try:
                    number, task = waiting.popleft()
                except IndexError:
                    return
                try:
                    results[number] = ask(task)
                except Exception as error:
                    failures[number] = error
                    waiting.clear()

        with ThreadPoolExecutor(max(1, len(self._helpers))) as threads:
            for helper in self._helpers:
                threads.submit(work, partial(helper.ask, function))
            try:
                work(partial(function, self._state))
            except BaseException:  # Ctrl-C: the threads wait for their helpers
                waiting.clear()
                self.__exit__()
                raise
        if failures:
            raise failures[min(failures)]
        return [results[i] for i in range(len(tasks))]


def _how_it_ended(code: int) -> str:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    hint = "; memory may have run out, so try again with fewer processes (--jobs 1)" if code == -signal.SIGKILL else ""
    return f"a process that helped to read the capture was ended {how} before it was done{hint}"


def serve(modules: Sequence[str]) -> None:
    """What a helper does: tasks from standard input, one after the other, until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the caller decides
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not get between the results
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
    for module in modules:
        importlib.import_module(module)
    state = None
    while True:
        function, task = messages.get()
        if function is None:
            state = task
            continue
        try:
            answer = True, function(state, task)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
        results.flush()


def _receive(source: BinaryIO, messages: queue.SimpleQueue[Any]) -> None:
    """Queue what comes; end the process, whatever it is doing, when its caller is gone."""
    try:
        while True:
            messages.put(pickle.load(source))  # noqa: S301 - written by our caller
    except BaseException:  # there is no one left to tell
        os._exit(1)
