"""The entry points of the command `veilmeans`. Every error ends with one sentence and an exit code."""

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn

from veilmeans.pipelines.cli import agreement_commands, config_commands, run_commands
from veilmeans.pipelines.cli.app import app
from veilmeans.pipelines.cli.json_output import known_error
from veilmeans.pipelines.local.malloc_arenas import limit_arenas
from veilmeans.pipelines.local.unused_modules import skip_unused_modules
from veilmeans.schemas.errors import INTERRUPTED

__all__ = ["agreement_commands", "app", "config_commands", "main", "run", "run_commands"]


def main() -> None:
    """Run a command; end with one sentence and an exit code, never with a traceback for a user's mistake."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get("VEILMEANS_DEBUG"):
            raise
        known = known_error(error)
        print(f"error: {known.sentence}", file=sys.stderr)
        sys.exit(known.code)


def run() -> NoReturn:
    """Run a command as a process that ends immediately when it is done.

    Otherwise the gRPC in Arrow Flight would wait two seconds at every exit for clients that are no longer needed.
    """
    limit_arenas()
    skip_unused_modules()
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    atexit._run_exitfuncs()  # here Beam stops what it has started, such as Prism
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader of a pipe may have closed it
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
