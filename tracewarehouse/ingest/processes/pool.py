"""Shares independent tasks among this process and helper processes, so that every core decodes.

A process with a single thread forks its helpers, which then start at once and share the memory of imported modules. If
DuckDB, Arrow or the caller has started another thread, each helper is a new interpreter: a fork would copy locks that
the thread holds, and nothing would release them. The interpreter is started by its own command, not by
`multiprocessing`, which would run the caller's script again in each helper, and leave helpers behind if the caller is
killed. A helper ends when its caller has ended.
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
import warnings
from collections import deque
from collections.abc import Callable, Collection, Sequence
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
_COMMAND = "from tracewarehouse.ingest.processes.pool import serve_as_interpreter as serve; serve({modules!r})"
_JEMALLOC = "jemalloc_bg_thd"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of a process without linear algebra; otherwise numpy starts threads, in a third of its import time."""


class HelperError(TracewarehouseError):
    """A helper process ended before its task did."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Fork:
    """A forked process that does tasks, with the part of `subprocess.Popen`'s interface that is used here."""

    def __init__(self, descriptors: Collection[int]) -> None:
        tasks, to = os.pipe()
        back, results = os.pipe()
        self.stdin, self.stdout = os.fdopen(to, "wb"), os.fdopen(back, "rb")
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts jemalloc's thread too
                self.pid = os.fork()
            if not self.pid:
                _serve_as_fork(tasks, results, descriptors)
        finally:
            os.close(tasks)
            os.close(results)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has been waited for."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has been waited for."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        with self._waiting:
            if self.returncode is None:
                try:
                    self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                except ChildProcessError:  # the caller's program waits for all processes
                    self.returncode = 1
            return self.returncode


class Helper:
    """One helper process. It does one task after the other, in the order of sending."""

    unsent = b""
    """Pickled state that must be sent before the next task."""

    def __init__(self, process: _Fork | subprocess.Popen[bytes]) -> None:
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

    def dismiss(self) -> None:
        """End the process without waiting for it."""
        self._process.kill()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # the rest could not be sent any more
                cast(IO[bytes], pipe).close()


def forked() -> Helper | None:
    """Fork a helper that shares the memory of imported modules.

    Returns None if there is no second core, if there are other threads, or if the system refuses.
    """
    if usable_cores() == 1 or not _is_single_threaded():
        return None
    try:
        return Helper(_Fork(()))
    except OSError:
        return None


class Work(Generic[_Result]):
    """Tasks that helpers are doing; `results` takes part in them."""

    def __init__(
        self, ask: Callable[[_Task], _Result], tasks: Sequence[_Task], then: Callable[[_Result], object]
    ) -> None:
        self._ask: Callable[[Any], _Result] = ask
        self._then = then
        self._waiting = deque(enumerate(tasks))
        self._count = len(tasks)
        self._found: dict[int, _Result] = {}
        self._failures: dict[int, Exception] = {}
        self.threads: list[Future[None]] = []

    def do(self, ask: Callable[[Any], _Result]) -> None:
        """Do tasks in this thread until all have begun."""
        while True:
            try:
                number, task = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._found[number] = result = ask(task)
                self._then(result)
            except Exception as error:
                self._failures[number] = error
                self._waiting.clear()

    def results(self) -> list[_Result]:
        """Return the results in the order of the tasks, once all are done.

        Raises:
            HelperError: a helper was ended from outside.
            Exception: the error that the function raised in the first task that failed.
        """
        try:
            self.do(self._ask)
        except BaseException:  # Ctrl-C: the starter of the helpers ends them
            self._waiting.clear()
            raise
        for thread in self.threads:
            thread.result()
        if self._failures:
            raise self._failures[min(self._failures)]
        return [self._found[i] for i in range(self._count)]


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
        count: helpers to start.
        descriptors: open files that the tasks refer to by number.
        modules: modules that helpers import while they wait, if they are new interpreters.
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
    start = partial(_interpreter, modules=modules) if not _is_single_threaded() else _Fork
    return Helper(start(descriptors))


def _how_it_ended(code: int) -> str:
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    hint = "; memory may have run out, so try again with fewer processes (--jobs 1)" if code == -signal.SIGKILL else ""
    return f"a process that helped to ingest the capture was ended {how} before it was done{hint}"


def _is_single_threaded() -> bool:
    """Return whether the system counts one thread in this process, including threads that Python does not know.

    The jemalloc thread that Arrow starts does not count: jemalloc takes its own locks before a fork.
    """
    try:
        threads = [(p / "comm").read_text().strip() for p in Path("/proc/self/task").iterdir()]
    except OSError:
        return False
    return len(threads) - threads.count(_JEMALLOC) == 1


def _interpreter(descriptors: Sequence[int], modules: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a new interpreter that does tasks.

    Raises:
        OSError: it cannot be started.
    """
    import subprocess

    if not sys.executable or getattr(sys, "frozen", False):
        raise FileNotFoundError("this program has no Python interpreter of its own")
    path = dict.fromkeys([str(Path(__file__).absolute().parents[3]), *(str(Path(p).resolve()) for p in sys.path)])
    environment = {**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", _COMMAND.format(modules=list(modules))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
        env=environment,
    )


def serve_as_interpreter(modules: Sequence[str]) -> NoReturn:
    """Run as a helper in a new interpreter."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that no print gets between the results
    _serve(sys.stdin.buffer, results, modules)


def _serve_as_fork(tasks: int, results: int, descriptors: Collection[int]) -> NoReturn:
    """Run as a forked helper, after releasing the caller's descriptors and objects."""
    try:
        gc.freeze()  # so that no object of the caller is finalized here, and no search copies memory
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for own in {int(p.name) for p in Path("/proc/self/fd").iterdir()} - {2, null, tasks, results, *descriptors}:
            os.dup2(null, own)  # locks and pipes; not closed: an object of the caller may still close the number
        os.dup2(2, 1)
        _serve(os.fdopen(tasks, "rb"), os.fdopen(results, "wb"))
    finally:
        os._exit(1)


def _serve(source: IO[bytes], results: IO[bytes], modules: Sequence[str] = ()) -> NoReturn:
    """Do tasks from the source, one after the other, until it is closed."""
    gc.disable()  # tasks make no reference cycles
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the caller decides
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, messages), daemon=True).start()
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
