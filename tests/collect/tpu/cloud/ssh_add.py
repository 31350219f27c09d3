"""A stand-in for ssh-add: the agent has the key, unless told otherwise."""

import os
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Print the keys of the agent."""
    assert arguments == ["-L"], arguments
    if not (Path(os.environ["FAKE_CLOUD"]) / "no_key_in_agent").exists():
        print("ssh-rsa AAAA me")
