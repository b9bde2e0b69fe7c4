"""The verbs of the command line: arguments to API calls, results to text. No other logic."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from mirage_onnx import __version__
from mirage_onnx.errors import Exit, MirageError
from mirage_onnx.target import TARGETS

if TYPE_CHECKING:
  from rich.table import Table

app = typer.Typer(
  name="mirage-onnx",
  help="Superoptimize regions of ONNX models into verified CUDA kernels.",
  add_completion=True,
  pretty_exceptions_enable=False,
  no_args_is_help=False,
  context_settings={"help_option_names": ["-h", "--help"]},
)


class Provider(StrEnum):
  """Where ``verify`` runs the models."""

  CPU = "cpu"
  CUDA = "cuda"


class External(StrEnum):
  """What becomes of untouched weights outside the model file."""

  KEEP = "keep"
  COPY = "copy"
  INLINE = "inline"


class Reporting(StrEnum):
  """Commands with ``--json``, as ``schema`` takes them."""

  OPTIMIZE = "optimize"
  VERIFY = "verify"
  INSPECT = "inspect"
  EXPLAIN = "explain"
  BENCH = "bench"
  DIFF = "diff"


Profile = Annotated[
  str | None,
  typer.Option(
    "--target",
    metavar="NAME",
    help=f"Device profile: {', '.join(sorted(TARGETS))}, or local (the present GPU). "
    "Default: local where there is a GPU, else h200.",
  ),
]
Shapes = Annotated[
  list[str] | None,
  typer.Option(metavar="NAME=SIZES", help="Sizes of a dynamic dimension, as of optimize."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every region.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")]


def _require(holds: bool, text: str) -> None:
  if not holds:
    raise MirageError("OPTION_INVALID", text)


def _print_json(value: dict[str, Any]) -> None:
  print(json.dumps(value, ensure_ascii=False, allow_nan=False))


@app.callback(invoke_without_command=True)
def _root(
  context: typer.Context,
  show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
  if show_version:
    raise typer.Exit(version())
  if context.invoked_subcommand is None:
    with contextlib.redirect_stdout(sys.stderr):  # typer prints it, or returns it
      print(context.get_help())
    raise typer.Exit(Exit.INPUT)


@app.command()
def optimize(
  model: Annotated[Path, typer.Argument(metavar="IN.onnx", help="The model to optimize.")],
  output: Annotated[
    Path | None,
    typer.Option(
      "--output", "-o", metavar="OUT.onnx", help="Where to write it. Default: IN.mirage.onnx beside IN.onnx."
    ),
  ] = None,
  target: Profile = None,
  budget: Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="End after this time, with what is found and timed by then."),
  ] = None,
  margin: Annotated[
    float, typer.Option(help="Without a GPU: predicted gain a kernel must have to be used.")
  ] = 0.2,
  external: Annotated[
    External | None,
    typer.Option(
      help="Untouched weights outside the model: keep the references, copy the data to "
      "a data file beside OUT.onnx, or take it into the model. Default: keep beside IN.onnx, else copy."
    ),
  ] = None,
  journal: Annotated[
    Path | None,
    typer.Option(
      metavar="FILE",
      help="Keep what the search finds in FILE and go on from what is there. Default: "
      "OUT.onnx.journal, which only a run that did not end leaves.",
    ),
  ] = None,
  tiled: Annotated[
    bool | None,
    typer.Option(
      "--tiled/--no-tiled",
      help="Also search regions in which two activations are contracted (attention), which "
      "may take minutes. Default: where kernels are timed (--target local).",
    ),
  ] = None,
  shapes: Annotated[
    list[str] | None,
    typer.Option(
      metavar="NAME=SIZES",
      help="Sizes of a dynamic dimension, as batch=1,8 or seq=1,128..2048:128 (several in "
      "one word, or the option several times): a region is replaced if that is faster at "
      "all of them. Default: 1,16,256. The result runs at any size.",
    ),
  ] = None,
  check: Annotated[
    bool,
    typer.Option(
      "--check/--no-check",
      help="Before OUT.onnx is replaced, run it in a plain onnxruntime on the CPU against IN.onnx "
      "(up to 512 MiB of weights); regions with which that fails stay as they were.",
    ),
  ] = True,
  dry_run: Annotated[bool, typer.Option("--dry-run", help="Search and report, write no model.")] = False,
  as_json: Json = False,
  verbose: Verbose = False,
  quiet: Quiet = False,
) -> int:
  """Replace regions of a model by faster kernels.

  Ctrl-C once ends the search and keeps the best found so far, twice aborts. The same command
  goes on where a run was interrupted or killed.
  """
  from mirage_onnx import api
  from mirage_onnx.interrupt import Interrupt
  from mirage_onnx.report.log import stderr_console
  from mirage_onnx.report.log_file import FailureLog
  from mirage_onnx.report.progress import ProgressLog
  from mirage_onnx.report.schema import check_report
  from mirage_onnx.report.summary import summary
  from mirage_onnx.report.table import region_table
  from mirage_onnx.tune.declared_sizes import parse_sizes

  _require(budget is None or budget > 0, f"--budget {budget}: must be more than 0 seconds")
  _require(0 <= margin < 1, f"--margin {margin}: must be at least 0 and less than 1")
  _require(not (verbose and quiet), "-v and -q exclude each other")
  console = stderr_console()
  written = None if dry_run else output or model.with_name(f"{model.stem}.mirage.onnx")
  kept = journal or (written and written.with_name(f"{written.name}.journal"))
  with (
    Interrupt() as interrupt,
    ProgressLog(console, 1 + verbose - quiet, interrupted=lambda: interrupt.asked) as log,
    FailureLog() as failures,
    _stdout_kept(as_json),
  ):
    result = api.optimize(
      model,
      written,
      target=target,
      budget_s=budget,
      margin=margin,
      external=external.value if external else None,
      emit=log,
      journal=kept,
      stop=lambda: interrupt.asked,
      tiled=tiled,
      shapes=parse_sizes(shapes or ()),
      check=check,
    )
  if kept and not journal and not interrupt.asked:
    kept.unlink(missing_ok=True)
  if file := failures.write():
    console.print(f"warning: some regions failed and stay as they were; please report {file}", markup=False)
  report = check_report(result.report)
  if not quiet:
    console.print(region_table(report, console.width))
    console.print(summary(report), highlight=False)
    if interrupt.asked and kept:
      console.print(f"the same command goes on from {kept}", highlight=False, markup=False)
  if as_json:
    _print_json(result.report)
  return Exit.INTERRUPTED if interrupt.asked else Exit.DONE


@app.command()
def verify(
  a: Annotated[Path, typer.Argument(metavar="A.onnx", help="The original.")],
  b: Annotated[Path, typer.Argument(metavar="B.onnx", help="The model to compare with it.")],
  rtol: Annotated[float | None, typer.Option(help="Largest relative L2 error of an output.")] = None,
  seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
  provider: Annotated[
    Provider | None,
    typer.Option(
      help="Execution provider that runs both models. "
      "Default: cuda where there is a GPU for B's kernels, else cpu."
    ),
  ] = None,
  emulate: Annotated[
    bool | None,
    typer.Option(
      "--emulate/--no-emulate",
      help="Run B's kernels in the CPU emulator. Default: with cpu, where there is g++.",
    ),
  ] = None,
  inputs: Annotated[
    Path | None,
    typer.Option(metavar="FILE.npz", help="Inputs by name, instead of random ones."),
  ] = None,
  bisect: Annotated[
    bool,
    typer.Option(
      "--bisect",
      help="Check every custom node by itself on every input, and name the first that diverges.",
    ),
  ] = False,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Run two models on the same inputs and compare their outputs, and each kernel by itself."""
  from mirage_onnx import api
  from mirage_onnx.report.log import stderr_console
  from mirage_onnx.report.schema import check_verify_report
  from mirage_onnx.report.table import verify_tables
  from mirage_onnx.tune.declared_sizes import parse_sizes

  _require(rtol is None or rtol >= 0, f"--rtol {rtol}: must not be negative")
  with _stdout_kept(as_json):
    result = api.verify(
      a,
      b,
      seed=seed,
      provider=provider.value if provider else None,
      rtol=rtol,
      emulate=emulate,
      inputs=inputs,
      bisect=bisect,
      shapes=parse_sizes(shapes or ()),
    )
  console = stderr_console()
  found = result.to_dict()
  report = check_verify_report(found)
  for part in verify_tables(report):
    console.print(part, highlight=False)
  if as_json:
    _print_json(found)
  return Exit.DONE if report.passed else Exit.CHECK_FAILED


@app.command()
def bench(
  a: Annotated[Path, typer.Argument(metavar="A.onnx", help="The original.")],
  b: Annotated[Path, typer.Argument(metavar="B.onnx", help="The model to time beside it.")],
  provider: Annotated[
    Provider | None,
    typer.Option(help="Execution provider of both. Default: cuda where there is a GPU for B's kernels."),
  ] = None,
  seconds: Annotated[float, typer.Option(help="How long, at each size.")] = 5.0,
  seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Time whole runs of two models side by side. Exit code 1 where B is slower."""
  from mirage_onnx import api
  from mirage_onnx.report.bench_report import bench_tables, verdict
  from mirage_onnx.tune.declared_sizes import parse_sizes

  with _stdout_kept(as_json):
    report = api.bench(
      a, b, provider=provider.value if provider else None, seconds=seconds, seed=seed,
      shapes=parse_sizes(shapes or ()),
    )  # fmt: skip
  _show(report, bench_tables(report), as_json)
  return Exit.CHECK_FAILED if verdict(report).startswith("slower") else Exit.DONE


@app.command()
def diff(
  a: Annotated[Path, typer.Argument(metavar="A.onnx", help="The original.")],
  b: Annotated[Path, typer.Argument(metavar="B.onnx", help="The model that was made of it.")],
  as_json: Json = False,
) -> int:
  """Show what an optimized model has in place of its original, node by node."""
  from mirage_onnx import api
  from mirage_onnx.report.diff_report import diff_tables

  with _stdout_kept(as_json):
    report = api.diff(a, b)
  _show(report, diff_tables(report), as_json)
  return Exit.DONE


@app.command()
def inspect(
  model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to look at.")],
  target: Profile = None,
  every: Annotated[bool, typer.Option("--all", help="Show all regions that the model offers.")] = False,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Show what could be fused and what that would bring at most; no search, no GPU."""
  from mirage_onnx import api
  from mirage_onnx.report.inspection_table import inspect_tables
  from mirage_onnx.report.log import stdout_console
  from mirage_onnx.tune.declared_sizes import parse_sizes

  with _stdout_kept(as_json):
    report = api.inspect(model, target=target, every=every, shapes=parse_sizes(shapes or ()))
  _show(report, inspect_tables(report, stdout_console().width), as_json)
  return Exit.DONE


@app.command()
def explain(
  model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to look at.")],
  region: Annotated[
    str, typer.Argument(metavar="REGION", help="A key that inspect shows, or a node's name.")
  ],
  target: Profile = None,
  budget: Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Stop searching after this time.")
  ] = None,
  dot: Annotated[Path | None, typer.Option(metavar="FILE.dot", help="Write the µGraph as a drawing.")] = None,
  cuda: Annotated[Path | None, typer.Option(metavar="FILE.cu", help="Write the CUDA of the kernels.")] = None,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Search one region and show its borders, candidates, µGraph and proof."""
  from mirage_onnx import api
  from mirage_onnx.report.inspection_table import explain_tables
  from mirage_onnx.tune.declared_sizes import parse_sizes

  _require(budget is None or budget > 0, f"--budget {budget}: must be more than 0 seconds")
  with _stdout_kept(as_json):
    sizes = parse_sizes(shapes or ())
    report = api.explain(model, region, target=target, budget_s=budget, shapes=sizes)
  _show(report, explain_tables(report), as_json)
  wanted = [(path, name) for path, name in ((dot, "dot"), (cuda, "cuda")) if path is not None]
  for path, name in wanted:
    if report.chosen is None:
      print(f"{path} is not written: no kernel was found", file=sys.stderr)
      return Exit.CHECK_FAILED
    _write(path, getattr(report.chosen, name))
  return Exit.DONE


def _show(report: msgspec.Struct, parts: Iterable[Table | str], as_json: bool) -> None:
  """The whole result on stdout: one JSON object, or tables."""
  from mirage_onnx.report.log import stdout_console

  if as_json:
    _print_json(msgspec.to_builtins(report))
    return
  console = stdout_console()
  for part in parts:
    console.print(part)


def _write(path: Path, text: str) -> None:
  try:
    path.write_text(text, encoding="utf-8")
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error


@app.command()
def demo(
  folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the models go.")] = Path(
    "mirage-demo"
  ),
) -> int:
  """Make a small model, optimize it, show what changed and verify it: half a minute, no GPU needed."""
  from mirage_onnx.demo_model import gated_mlp

  source, result = folder / "mlp.onnx", folder / "mlp.mirage.onnx"
  made = gated_mlp().SerializeToString(deterministic=True)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists() or source.read_bytes() != made:
      _require(not source.exists(), f"{source} is another model: give another folder")
      source.write_bytes(made)
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{folder}: {error.strerror or error}") from error
  steps = (
    ("optimize", (source,), lambda: optimize(source)),
    ("diff", (source, result), lambda: diff(source, result)),
    ("verify", (source, result), lambda: verify(source, result)),
  )
  for verb, paths, run in steps:
    print(f"\n$ {shlex.join(('mirage-onnx', verb, *map(str, paths)))}", file=sys.stderr, flush=True)
    code = run()
    if code != Exit.DONE:
      return code
  return Exit.DONE


@app.command()
def version() -> int:
  """Print the version."""
  print(f"mirage-onnx {__version__}")
  return Exit.DONE


@app.command()
def env(as_json: Json = False) -> int:
  """Print versions, execution providers, compiler, GPUs and folders, for bug reports."""
  from mirage_onnx.collect_env import collect, to_text

  facts = collect()
  if as_json:
    _print_json(facts)
  else:
    print(to_text(facts))
  return Exit.DONE


@app.command()
def schema(
  command: Annotated[
    Reporting, typer.Argument(metavar="COMMAND", help="A command that prints JSON.")
  ] = Reporting.OPTIMIZE,
) -> int:
  """Print the JSON Schema of what a command prints with --json."""
  from mirage_onnx.report.schema import json_schema

  print(json.dumps(json_schema(command.value), indent=2))
  return Exit.DONE


@contextlib.contextmanager
def _stdout_kept(for_json: bool) -> Iterator[None]:
  """Send what a library prints to stderr, so that stdout holds one JSON object only."""
  with contextlib.redirect_stdout(sys.stderr) if for_json else contextlib.nullcontext():
    yield
