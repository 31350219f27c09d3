"""Reads YAML that anybody may have written: only the types that JSON also has, no aliases, and of bounded depth."""

from __future__ import annotations

from typing import Any

import yaml

from tracewarehouse.ingest.errors import shown

MAX_DEPTH = 32
"""Deepest nesting of a document. PyYAML's parser in C ends the process at some 30,000."""

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Loader(_PARSER):  # type: ignore[misc]
    """Dates stay text."""

    yaml_constructors = {t: c for t, c in _PARSER.yaml_constructors.items() if t in _TAGS or t is None}  # noqa: RUF012
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
        for first, resolvers in _PARSER.yaml_implicit_resolvers.items()
    }


def yaml_tree(text: str) -> Any:
    """Return what a YAML document says; None if it is empty.

    Raises:
        ValueError: it is no YAML, nests deeper than MAX_DEPTH, or has an alias, which can stand for any amount of
            memory; one sentence.
    """
    depth = 0
    try:
        for event in yaml.parse(text, _Loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias (*name) is not read; write the value out")  # noqa: TRY004
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError("nested too deeply")
        return yaml.load(text, _Loader)  # noqa: S506, a safe loader
    except (IndexError, KeyError):  # PyYAML's, for a tag such as !!int before another text
        raise ValueError("a value is not of the type of its tag") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{shown(str(error.problem or error))}") from None
    except yaml.YAMLError as error:
        raise ValueError(shown(str(error))) from None
