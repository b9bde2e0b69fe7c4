"""The command line's outer wall: every way a command can end becomes an exit code and one line.

    0 done   1 a check failed   2 usage or input error   3 internal error   4 unchanged   130 interrupted

No traceback reaches the terminal: that of an internal error goes to a log file. With ``--json``
stdout gets exactly one object, also when the command fails: ``{"schema":1,"error":{...}}``.
"""

import contextlib
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage_onnx import deadline
from mirage_onnx.config_file import read_config
from mirage_onnx.errors import ERRORS, Exit, MirageError
from mirage_onnx.report.log_file import write_log
from mirage_onnx.standard_streams import keep_streams

#: New objects until the collector of cycles looks at them: of the million that imports make none is one.
_YOUNG = 200_000


def main(argv: Sequence[str] | None = None) -> int:
  """Run one command and return its exit code."""
  gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
  keep_streams()
  arguments = list(sys.argv[1:] if argv is None else argv)
  as_json = "--json" in arguments
  try:
    with deadline.command(deadline.process_start() if argv is None else time.monotonic()):
      return _run(arguments)
  except MirageError as error:
    return _fail(
      error, as_json, log=write_log(traceback.format_exc()) if error.exit == Exit.INTERNAL else None
    )
  except KeyboardInterrupt:
    _say("interrupted")
    return Exit.INTERRUPTED
  except BrokenPipeError:  # the reader of our stdout went away: nobody is left to tell
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.CHECK_FAILED
  except Exception as error:  # the wall: whatever it is, it is a bug of ours
    detail = f"{type(error).__name__}: {_first_line(error)}"
    return _fail(MirageError("INTERNAL", detail), as_json, log=write_log(traceback.format_exc()))


def _run(arguments: list[str]) -> int:
  from typer.exceptions import Abort, TyperException
  from typer.main import get_command

  from mirage_onnx import commands, machine_commands, model_commands
  from mirage_onnx.command_options import EXAMPLES, to_stdout

  # Each has registered its verbs, in this order.
  assert commands.app is model_commands.app is machine_commands.app
  group: Any = get_command(commands.app)  # once: it takes 20 ms
  group.commands = {name: group.commands[name] for name in EXAMPLES}
  for name, command in group.commands.items():
    command.epilog = f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None
  config = read_config(Path.cwd(), group.commands)
  try:
    # Help is printed by typer, everything else by verbs.
    with to_stdout() if "--help" in arguments else contextlib.nullcontext():
      code = group(
        args=arguments, prog_name="mirage-onnx", standalone_mode=False, default_map=config.defaults
      )
    with to_stdout():  # also what no other one has flushed
      pass
  except TyperException as error:
    said = _first_line(error.format_message()).rstrip(".")
    also = f" (defaults are of {config.source})" if config.source else ""
    raise MirageError("OPTION_INVALID", said + also) from error
  except Abort:
    code = Exit.INTERRUPTED
  if code == Exit.INTERRUPTED:  # typer turns Ctrl-C into this code
    raise KeyboardInterrupt
  return int(code or 0)


def _fail(error: MirageError, as_json: bool, log: str | None) -> int:
  line = " ".join(error.line().split())
  _say(f"error: {line}" + (f" ({log})" if log else ""))
  if as_json:
    advice = ERRORS[error.code].advice if error.code in ERRORS else None
    found = {"code": error.code, "detail": error.detail, "advice": advice, "log": log}
    with contextlib.suppress(OSError):  # of a full disk the line on stderr tells
      print(json.dumps({"schema": 1, "error": found}), flush=True)
  return error.exit


def _say(line: str) -> None:
  print(line, file=sys.stderr)


def _first_line(error: object) -> str:
  return next(iter(str(error).strip().splitlines()), "no message")
