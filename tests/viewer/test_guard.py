"""What a server on this machine answers, by the headers of the request."""

from __future__ import annotations

import socket

import pytest

from tracewarehouse.viewer.perfetto import refusal

OWN = {"Host": "127.0.0.1:8765"}


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "LocalHost:8765", "[::1]:8765", "127.0.0.2:8765"])
def test_names_of_this_machine_are_answered(host: str) -> None:
    assert refusal({"Host": host}, 8765) is None


@pytest.mark.parametrize(
    "host",
    ["", "127.0.0.1", "127.0.0.1:80", "example.com:8765", "localhost.example.com:8765", "192.168.1.9:8765",
     "127.0.0.1:8765:8765", "0x7f.1:8765", " localhost:8765", "localhost:08765"],
)  # fmt: skip
def test_other_hosts_are_refused(host: str) -> None:
    assert refusal({"Host": host}, 8765) == "This server answers only to the name of its own machine."


def test_an_open_server_has_addresses_and_the_name_of_the_machine() -> None:
    for host in ("192.168.1.9:8765", "[fe80::1]:8765", f"{socket.gethostname()}:8765", "localhost:8765"):
        assert refusal({"Host": host}, 8765, is_open=True) is None
    assert refusal({"Host": "example.com:8765"}, 8765, is_open=True)


def test_no_host_is_refused() -> None:
    assert refusal({}, 8765)


@pytest.mark.parametrize("origin", ["http://example.com", "https://127.0.0.1:8765", "http://localhost:8765", "null"])
def test_other_origins_are_refused(origin: str) -> None:
    assert refusal(OWN | {"Origin": origin}, 8765) == "This server answers only its own pages."
    assert refusal(OWN | {"Origin": "http://127.0.0.1:8765"}, 8765) is None


def test_a_link_of_another_page_is_followed_and_nothing_else() -> None:
    foreign = OWN | {"Sec-Fetch-Site": "cross-site"}
    link = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert refusal(foreign | link, 8765) is None
    assert refusal(foreign, 8765)
    assert refusal(foreign | link | {"Sec-Fetch-Dest": "iframe"}, 8765)
    assert refusal(foreign | {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 8765)
    assert refusal(OWN | {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 8765)
    for site in ("same-origin", "none"):
        assert refusal(OWN | {"Sec-Fetch-Site": site}, 8765) is None
