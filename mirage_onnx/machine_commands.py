"""The verbs about this machine and this program, from ``env`` to ``version``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mirage_onnx import __version__
from mirage_onnx.command_options import Json, Reporting, app, print_json, to_stdout, write
from mirage_onnx.errors import Exit


@app.command()
def version() -> int:
  """Print the version."""
  with to_stdout():
    print(f"mirage-onnx {__version__}")
  return Exit.DONE


@app.command()
def env(as_json: Json = False) -> int:
  """Print versions, providers, compiler, GPUs; is it ready?"""
  from mirage_onnx.collect_env import collect, to_text

  facts = collect()
  if as_json:
    print_json(facts)
  else:
    with to_stdout():
      print(to_text(facts))
  return Exit.DONE


@app.command()
def calibrate(
  profile: Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE.json", help="Write it to FILE, for optimize --profile."),
  ] = None,
  again: Annotated[bool, typer.Option("--again", help="Measure also where it is known already.")] = False,
  as_json: Json = False,
) -> int:
  """Measure the rates of the present GPU: less than a minute.

  They are compared with those of its profile, and kept by GPU, driver and onnxruntime.
  """
  from mirage_onnx.calibration import calibrated, to_lines

  found = calibrated(again=again)
  if profile is not None:
    write(profile, found.to_file())
    print(f"wrote {profile}", file=sys.stderr)
  if as_json:
    print_json(found.to_dict())
  else:
    with to_stdout():
      print(to_lines(found))
  return Exit.DONE


@app.command()
def cache(
  clear: Annotated[bool, typer.Option("--clear", help="Remove what is kept.")] = False, as_json: Json = False
) -> int:
  """Show what runs keep for later ones, and where; or remove it."""
  from mirage_onnx.collect_env import cache_folder
  from mirage_onnx.kept_files import kept_files, remove_kept

  folder = Path(cache_folder())
  if clear:
    remove_kept(folder)
  found = kept_files(folder)
  if as_json:
    print_json({"schema": 1, "folder": str(folder), "kinds": [asdict(k) for k in found]})
    return Exit.DONE
  with to_stdout():
    print(folder)
    for k in found:
      print(f"  {k.files:6} files {k.bytes / 1e6:7.1f} MB  {k.kind}: {k.what}")
  return Exit.DONE


@app.command()
def schema(
  command: Annotated[
    Reporting, typer.Argument(metavar="COMMAND", help="A command that prints JSON.")
  ] = Reporting.OPTIMIZE,
) -> int:
  """Print the JSON Schema of what a command prints with --json."""
  from mirage_onnx.report.schema import json_schema

  with to_stdout():
    print(json.dumps(json_schema(command.value), indent=2))
  return Exit.DONE
