"""Shares independent tasks among this process and helper processes, so that every core decodes.

A helper is a new interpreter, since a fork would copy locks that threads of DuckDB, Arrow or the caller hold. It is
started by its own command, not by `multiprocessing`, which would run the caller's script again in each helper, and
leave helpers behind if the caller is killed. A helper ends when its caller has ended.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, cast

from tracewarehouse.ingest.errors import TracewarehouseError

if TYPE_CHECKING:
    import subprocess

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_COMMAND = (  # Ctrl-C reaches the whole group, and the caller decides
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from tracewarehouse.ingest.processes.pool import serve; serve({modules!r})"
)
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of a process without linear algebra; otherwise numpy starts threads, in a third of its import time."""


class HelperError(TracewarehouseError):
    """A helper process ended before its task did."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Helper:
    """One helper process. It does one task after the other, in the order of sending."""

    unsent = b""
    """Pickled state that must be sent before the next task."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, function: Callable[[Any, _Task], _Result], task: _Task) -> _Result:
        """Return the result of one task; see `send` and `answer`."""
        self.send(function, task)
        return cast(_Result, self.answer())

    def send(self, function: Callable[[Any, _Task], object], task: _Task) -> None:
        """Send it the task function(state, task); its result is the next `answer`.

        Raises:
            HelperError: the process ended.
        """
        to = cast(IO[bytes], self._process.stdin)
        try:
            to.write(self.unsent)
            self.unsent = b""
            pickle.dump((function, task), to, pickle.HIGHEST_PROTOCOL)
            to.flush()
        except OSError:
            raise HelperError(_how_it_ended(self._process.wait())) from None

    def answer(self) -> Any:
        """Return the result of the first task that was sent and has no answer yet.

        Raises:
            HelperError: the process ended.
            Exception: the error that the function raised.
        """
        try:
            answer = pickle.load(cast(IO[bytes], self._process.stdout))  # noqa: S301 - written by our own helper
        except (OSError, EOFError, pickle.UnpicklingError):
            raise HelperError(_how_it_ended(self._process.wait())) from None
        is_done, result = answer
        if not is_done:
            raise result
        return result

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that can be read once there is an answer or the process has ended; for `select`."""
        return cast(IO[bytes], self._process.stdout).fileno()

    def terminate(self) -> None:
        """Send SIGTERM; a task may handle it, otherwise it ends the process."""
        self._process.terminate()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # the rest could not be sent any more
                cast(IO[bytes], pipe).close()


class Work(Generic[_Result]):
    """Tasks that helpers are doing; `in_order` and `results` take part in them."""

    def __init__(
        self, ask: Callable[[_Task], _Result], tasks: Sequence[_Task], then: Callable[[_Result], object]
    ) -> None:
        self._ask: Callable[[Any], _Result] = ask
        self._then = then
        self._waiting = deque(enumerate(tasks))
        self._count = len(tasks)
        self._found: dict[int, _Result] = {}
        self._failures: dict[int, Exception] = {}
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.threads: list[Future[None]] = []

    def do(self, ask: Callable[[Any], _Result]) -> None:
        """Do tasks in this thread until all have begun."""
        while self._do_next(ask):
            pass

    def _do_next(self, ask: Callable[[Any], _Result]) -> bool:
        """Do the next task, and return whether there was one."""
        try:
            number, task = self._waiting.popleft()
        except IndexError:
            return False
        try:
            self._found[number] = result = ask(task)
            self._then(result)
        except Exception as error:
            self._failures[number] = error
            self._waiting.clear()
        self._ended.put(number)
        return True

    def in_order(self) -> Generator[_Result, None, None]:
        """Yield the results in the order of the tasks, each as soon as it can be; this thread does tasks meanwhile.

        A caller that stops early leaves tasks undone that have not begun. The first that failed raises its error.
        """
        try:
            for number in range(self._count):
                while number not in self._found and not self._failures:
                    if not self._do_next(self._ask):
                        self._ended.get()
                if self._failures:
                    break
                yield self._found.pop(number)
        finally:  # also after Ctrl-C: the starter of the helpers ends them
            self._waiting.clear()
        for thread in self.threads:
            if not thread.cancel():  # it has begun
                thread.result()
        if self._failures:
            raise self._failures[min(self._failures)]

    def results(self) -> list[_Result]:
        """Return the results in the order of the tasks, once all are done; see `in_order`."""
        return list(self.in_order())


class Processes:
    """This process and its helpers, as `start_helpers` returns them; a context manager that leaves no helper behind."""

    _state: Any = None

    def __init__(self, helpers: Sequence[Helper]) -> None:
        self._helpers = list(helpers)
        self._threads = ThreadPoolExecutor(max(1, len(self._helpers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            helper.end()
        self._helpers = []
        self._threads.shutdown()

    @property
    def count(self) -> int:
        """Number of helpers."""
        return len(self._helpers)

    def share(self, state: Any) -> None:
        """Set the state that tasks read from now on; it goes to each helper once. No task may be running."""
        self._state = state
        pickled = pickle.dumps((None, state), pickle.HIGHEST_PROTOCOL) if self._helpers else b""
        for helper in self._helpers:
            helper.unsent = pickled

    def start(
        self,
        function: Callable[[Any, _Task], _Result],
        tasks: Sequence[_Task],
        then: Callable[[_Result], object] = lambda _: None,
    ) -> Work[_Result]:
        """Let the helpers do function(state, task) for each task; tasks begin in their order.

        Args:
            function: a function of a module, so that helpers find it; it must not change the state.
            tasks: the tasks, independent of each other.
            then: called here with each result, in any order and from any thread.
        """
        work = Work(partial(function, self._state), tasks, then)
        work.threads = [self._threads.submit(work.do, partial(h.ask, function)) for h in self._helpers]
        return work


def start_helpers(count: int, descriptors: Sequence[int] = (), modules: Sequence[str] = ()) -> Processes:
    """Start helper processes, or as many of them as the system allows.

    Args:
        descriptors: open files that the tasks refer to by number.
        modules: modules that helpers import while they wait.
    """
    helpers: list[Helper] = []
    with suppress(OSError):
        for _ in range(count):
            helper = start_helper(modules, descriptors)
            helpers.append(helper)
    return Processes(helpers)


def start_helper(modules: Sequence[str] = (), descriptors: Sequence[int] = ()) -> Helper:
    """Start one helper process; for the arguments see `start_helpers`.

    Raises:
        OSError: it cannot be started.
    """
    import subprocess

    if not sys.executable or getattr(sys, "frozen", False):
        raise FileNotFoundError("this program has no Python interpreter of its own")
    path = dict.fromkeys([str(Path(__file__).absolute().parents[3]), *(str(Path(p).resolve()) for p in sys.path)])
    environment = {**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return Helper(
        subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _COMMAND.format(modules=list(modules))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            env=environment,
        )
    )


def _how_it_ended(code: int) -> str:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    hint = "; memory may have run out, so try again with fewer processes (--jobs 1)" if code == -signal.SIGKILL else ""
    return f"a process that helped to ingest the capture was ended {how} before it was done{hint}"


def serve(modules: Sequence[str]) -> NoReturn:
    """Do the tasks of standard input as a helper, one after the other, until the caller closes it."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that no print gets between the results
    gc.disable()  # tasks make no reference cycles
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


def _receive(source: IO[bytes], messages: queue.SimpleQueue[Any]) -> None:
    """Queue the tasks that arrive; end the process, whatever it is doing, when its caller has ended."""
    try:
        while True:
            messages.put(pickle.load(source))  # noqa: S301 - written by our caller
    except BaseException:  # nobody is left to tell
        os._exit(1)
