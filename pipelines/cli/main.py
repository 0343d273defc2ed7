"""The command line. Each command reads a configuration, does one thing, and ends with one sentence if it cannot.

Exit codes: 0 done · 1 unexpected · 2 configuration · 3 input data · 4 handshake · 5 a peer is absent · 6 a message was
refused · 7 certificate · 8 storage · 130 interrupted.
"""

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

from veilmeans.pipelines.cli import config_commands as begin_commands
from veilmeans.pipelines.cli import run_commands
from veilmeans.pipelines.cli.app import app
from veilmeans.schemas.errors import VeilmeansError, recover_error

__all__ = ["app", "begin_commands", "main", "run", "run_commands"]


def main() -> None:
    """Run a command; end with one sentence and an exit code, never with a traceback for a user's mistake."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("VEILMEANS_DEBUG"):
            raise
        known = recover_error(error) or VeilmeansError(
            f"unexpected {type(error).__name__}; set VEILMEANS_DEBUG=1 to see where, and please report it"
        )
        print(f"error: {known.sentence}", file=sys.stderr)
        sys.exit(known.code)


def run() -> NoReturn:
    """A command as a process of its own, which ends at once when it is done.

    Otherwise the gRPC in Arrow Flight would wait two seconds at every exit for clients that nobody needs any more.
    """
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # who read it may be gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
