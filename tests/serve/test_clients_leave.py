"""Questions of many clients at once: long ones do not hold up short ones, and each ends when its client leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest
from page_client import PORT

from tracewarehouse.queries.read_only import Limits
from tracewarehouse.serve.application import SHORT_SECONDS, _NewestFirst, application
from tracewarehouse.serve.warehouses import FOR_LONG_QUESTIONS, FOR_QUESTIONS, Warehouses
from tracewarehouse.warehouse import open_warehouse

LONG = "SELECT count(*) FROM range(100000000000) AS a, range(1000) AS b WHERE hash(a.range + b.range) = 3"

MANY = 6


class Client:
    """Asks one question of an application, and leaves when told to."""

    def __init__(self, app: Any, sql: str) -> None:
        self._app, self._sql = app, sql
        self._left = anyio.Event()
        self.status: int | None = None

    def leave(self) -> None:
        self._left.set()

    async def ask(self) -> None:
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> dict[str, Any]:
            if message := next(messages, None):
                return message
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.status = message.get("status", self.status)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/sql.json",
            "query_string": f"sql={quote(self._sql)}".encode(),
            "headers": [(b"host", f"127.0.0.1:{PORT}".encode())],
        }
        await self._app(scope, receive, send)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.sleep(0.01)


def test_short_questions_are_answered_beside_long_ones_which_end_with_their_clients(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any limit of time, the long ones would hold their places for ever."""
    warehouses = Warehouses(lambda: open_warehouse(folder), Limits())
    begun: list[object] = []
    ended: list[object] = []
    one = warehouses.one

    @contextmanager
    def counted(*given: Any) -> Iterator[Any]:
        try:
            with one(*given) as warehouse:
                begun.append(warehouse)
                yield warehouse
        finally:
            ended.append(warehouse)

    monkeypatch.setattr(warehouses, "one", counted)
    app = application(warehouses, "test", PORT)

    async def play() -> list[int | None]:
        long, short = [Client(app, LONG) for _ in range(MANY)], []
        async with app.router.lifespan_context(app), anyio.create_task_group() as group:
            for client in long:
                group.start_soon(client.ask)
            await until(lambda: len(begun) >= FOR_QUESTIONS)
            for waits_for in (
                0,
                len(SHORT_SECONDS) * len(long) + FOR_LONG_QUESTIONS + 1,
            ):  # at once, and beside long ones in their places
                await until(lambda n=waits_for: len(begun) >= n)  # type: ignore[misc]
                short.append(Client(app, "SELECT 1 AS a"))
                await short[-1].ask()
            assert {client.status for client in long} == {None}
            for client in long:
                client.leave()
            await until(lambda: len(ended) == len(begun))
            return [client.status for client in short]

    assert anyio.run(play) == [200, 200]
    # the short ones are at least tried once, and on a busy machine twice
    assert len(begun) - len(SHORT_SECONDS) * MANY - FOR_LONG_QUESTIONS in (
        2,
        3,
        4,
    )  # those that waited for a place for long ones never had it
    assert warehouses.close()  # each is free again


def test_all_that_come_at_once_are_tried_before_any_is_tried_again() -> None:
    places, order = _NewestFirst(1), []

    async def client(number: int, tries: int) -> None:
        for n in range(tries):
            async with places.place(n):
                order.append((n, number))
                await anyio.sleep(0)

    async def play() -> None:
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(client, number, 1 if number == 1 else 2)

    anyio.run(play)
    firsts = [number for n, number in order if n == 0]
    assert [n for n, _ in order] == [0] * 4 + [1] * 3
    assert firsts[1:] == sorted(firsts[1:], reverse=True)  # after the first, who came last
    assert places._free == 1
