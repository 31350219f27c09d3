"""`python -m tracewarehouse` is `tw`."""

from __future__ import annotations

from tracewarehouse.cli import main

main()
