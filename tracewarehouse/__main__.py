"""Runs `tw` for `python -m tracewarehouse`."""

from __future__ import annotations

from tracewarehouse.cli import main

main()
