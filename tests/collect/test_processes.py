"""Threads that still have work are waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tracewarehouse.collect.processes import wait_until_asleep


def test_a_runnable_thread_is_waited_for(tmp_path: Path) -> None:
    stat = tmp_path / "7" / "stat"
    stat.parent.mkdir()
    stat.write_text("7 (a name) with ) R 1 2 3")
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (wait_until_asleep(tmp_path), done.set()))
    waiting.start()
    time.sleep(0.05)
    assert not done.is_set()
    stat.write_text("7 (a name) with ) S 1 2 3")
    assert done.wait(60)
    waiting.join()


def test_threads_that_have_ended_and_other_systems_need_no_wait(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    wait_until_asleep(tmp_path)
    wait_until_asleep(tmp_path / "none")
