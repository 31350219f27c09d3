"""A stand-in for ssh-add: the agent has the key, unless told otherwise."""

import os
import sys
from pathlib import Path

assert sys.argv[1:] == ["-L"], sys.argv
if not (Path(os.environ["FAKE_CLOUD"]) / "no_key_in_agent").exists():
    print("ssh-rsa AAAA me")
