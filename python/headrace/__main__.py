"""`python -m headrace`: the command line."""

from __future__ import annotations

import sys

from headrace import _core


def main() -> int:
    """Runs the command line on this process's arguments, and gives its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    return _core.run_command_line(["headrace", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
