"""`--json` of every command: one JSON object on standard output, for a scheduler or a script.

A command is a function that prints for people and returns its facts. With `--json` what it prints goes to standard
error, and the facts are the last line, and the only one, of standard output; after an error they are its sentence and
exit code.
"""

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial, wraps
from typing import Annotated, Any, ParamSpec

import typer

from veilmeans.schemas.errors import VeilmeansError, recover_error

Options = ParamSpec("Options")
Facts = Mapping[str, Any]
"""What a command did, as names and values for JSON: paths, names and numbers, never a secret."""
Json = Annotated[bool, typer.Option("--json", help="print one JSON object, and the text to standard error")]


def add_command(
    group: typer.Typer, path: str, **settings: Any
) -> Callable[[Callable[Options, Facts]], Callable[Options, Facts]]:
    """Register a function as the command `path` ("train", "config set") of a group, with `--json`."""

    def register(function: Callable[Options, Facts]) -> Callable[Options, Facts]:
        group.command(path.rpartition(" ")[2], **settings)(_with_json(function, path))
        return function

    return register


def known_error(error: Exception) -> VeilmeansError:
    """Return an error as one with a sentence and an exit code."""
    return recover_error(error) or VeilmeansError(
        f"unexpected {type(error).__name__}; set VEILMEANS_DEBUG=1 to see where, and please report it"
    )


def _with_json(function: Callable[..., Facts], path: str) -> Callable[..., None]:
    signature = inspect.signature(function)
    option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)

    @wraps(function)
    def command(*arguments: Any, as_json: bool = False, **options: Any) -> None:
        call = partial(function, *arguments, **options)
        if as_json:
            _print_facts(call, path)
        else:
            call()

    changed: Any = command
    changed.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])
    changed.__annotations__ = {**function.__annotations__, "as_json": Json}
    return command


def _print_facts(call: Callable[[], Facts], path: str) -> None:
    out = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            facts = call()
    except Exception as error:
        known = known_error(error)
        _print_line({"command": path, "error": known.sentence, "code": known.code}, out)
        raise
    _print_line({"command": path, **facts}, out)


def _print_line(facts: Facts, out: Any) -> None:
    print(json.dumps(facts, ensure_ascii=False, default=str), file=out, flush=True)
