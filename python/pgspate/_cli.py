"""The command ``pgspate`` of the package."""

from __future__ import annotations

import signal
import sys

from . import _pgspate


def main() -> int:
    """Runs the command with the arguments of this process.

    Returns:
        The exit status: 0 done, 1 done but the answer is "no", 2 error, 130 interrupted.
    """
    # The command handles SIGINT itself, and rolls back.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _pgspate.main(["pgspate", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
