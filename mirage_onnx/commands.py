"""The verbs of the command line: arguments to API calls, results to text. No other logic.

Those that only look at models are in ``model_commands.py``, of this machine in ``machine_commands.py``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mirage_onnx.command_options import (
  ExternalOption,
  Json,
  Profile,
  Provider,
  Quiet,
  Shapes,
  Verbose,
  app,
  budget_option,
  event_lines,
  print_json,
  require,
  stdout_kept,
  trace_file,
)
from mirage_onnx.errors import Exit, MirageError
from mirage_onnx.events import both


@app.callback(invoke_without_command=True)
def _root(
  context: typer.Context,
  show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
  if show_version:
    from mirage_onnx.machine_commands import version

    raise typer.Exit(version())
  if context.invoked_subcommand is None:
    with contextlib.redirect_stdout(sys.stderr):  # typer prints it, or returns it
      print(context.get_help())
    raise typer.Exit(Exit.INPUT)


@app.command()
def optimize(
  model: Annotated[
    Path,
    typer.Argument(metavar="IN.onnx", help="The model, or a folder of onnxruntime-genai."),
  ],
  output: Annotated[
    Path | None,
    typer.Option(
      "--output",
      "-o",
      metavar="OUT.onnx",
      help="Where to write it. Default: IN.mirage.onnx or DIR.mirage.",
    ),
  ] = None,
  target: Profile = None,
  budget: Annotated[
    float | None,
    budget_option("End after this time (90, 90s, 10m, 1h; default 5m) with what is found and timed."),
  ] = None,
  margin: Annotated[
    float, typer.Option(help="Without a GPU: predicted gain a kernel must have to be used.")
  ] = 0.2,
  external: Annotated[
    ExternalOption | None,
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
  report: Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write the report as one HTML page (report OUT.onnx does later)."),
  ] = None,
  model_check: Annotated[
    bool,
    typer.Option(
      "--model-check/--no-model-check",
      help="With --target local, time whole runs of the result beside IN.onnx's before it is "
      "written, and drop regions until it is faster with confidence at all declared sizes.",
    ),
  ] = True,
  profile: Annotated[
    Path | None,
    typer.Option(
      metavar="FILE.json",
      help="Rates of the target's GPU that calibrate --profile has measured, here or elsewhere.",
    ),
  ] = None,
  locked: Annotated[
    bool,
    typer.Option(
      "--locked",
      help="Write the same bytes as the run that wrote OUT.onnx.lock, without a search or a GPU, or say "
      "what differs.",
    ),
  ] = False,
  steps: Annotated[
    bool | None,
    typer.Option(
      "--steps/--no-steps",
      help="Of a decoder with GroupQueryAttention: kernels for one new token, in an If beside the graph as "
      "it was, which takes prompts. Default: in a folder that asks for no CUDA graphs.",
    ),
  ] = None,
  room: Annotated[
    int | None,
    typer.Option(
      metavar="ROWS",
      help="As --steps, for caches of so many rows only (max_length of onnxruntime-genai), which is faster; "
      "others go to the graph as it was.",
    ),
  ] = None,
  workers: Annotated[
    str | None,
    typer.Option(
      metavar="N|auto|ray://HOST:PORT",
      help="Processes of the search (default: one a core), or a Ray cluster whose cores search and compile.",
    ),
  ] = None,
  fail_if_unchanged: Annotated[
    bool, typer.Option("--fail-if-unchanged", help="Exit code 4 where no region was replaced.")
  ] = False,
  events: Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write what happens as lines of JSON, as it happens.")
  ] = None,
  trace: Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Write stages, regions and workers as a trace (ui.perfetto.dev)."),
  ] = None,
  dry_run: Annotated[bool, typer.Option("--dry-run", help="Search and report, write no model.")] = False,
  as_json: Json = False,
  verbose: Verbose = False,
  quiet: Quiet = False,
) -> int:
  """Replace regions of a model by faster kernels.

  Ctrl-C once ends the search and keeps the best found so far, twice aborts. The same command
  goes on where a run was interrupted or killed.
  """
  require(room is None or steps is not False, "--room and --no-steps exclude each other")
  if os.path.isdir(model):  # a name of any length
    options = {name: value for name, value in locals().items() if name not in ("model", "output", "shapes")}
    return _optimize_folder(model, output, shapes, options)
  from mirage_onnx import api
  from mirage_onnx.api_reports import check_pages
  from mirage_onnx.deadline import command_began
  from mirage_onnx.interrupt import Interrupt
  from mirage_onnx.report.log import stderr_console
  from mirage_onnx.report.log_file import FailureLog
  from mirage_onnx.report.progress import ProgressLog
  from mirage_onnx.report.schema import check_report
  from mirage_onnx.report.summary import summary
  from mirage_onnx.report.table import region_table
  from mirage_onnx.tune.declared_sizes import parse_sizes

  require(budget is None or budget > 0, f"--budget {budget}: must be more than 0 seconds")
  require(str(output) != "-", "-o -: a model is not written to stdout, give a path")
  require(0 <= margin < 1, f"--margin {margin}: must be at least 0 and less than 1")
  require(not (verbose and quiet), "-v and -q exclude each other")
  console = stderr_console()
  written = None if dry_run else output or model.parent / f"{model.stem}.mirage.onnx"
  require(not (locked and dry_run), "--locked and --dry-run exclude each other")
  kept = journal or (written and Path(f"{written}.journal"))
  lock = written and Path(f"{written}.lock")
  check_pages((report, events, trace), model, written, kept, lock, profile)
  with event_lines(events) as lines, trace_file(trace) as tracks:
    with (
      Interrupt() as interrupt,
      ProgressLog(console, 1 + verbose - quiet, interrupted=lambda: interrupt.asked) as log,
      FailureLog() as failures,
      stdout_kept(as_json),
    ):
      result = api.optimize(
        model,
        written,
        target=target,
        budget_s=budget,
        margin=margin,
        workers=int(workers) if workers and re.fullmatch("[0-9]{1,9}", workers) else workers,
        external=external.value if external else None,
        emit=both(log, both(lines, tracks)),
        journal=kept,
        stop=lambda: interrupt.asked,
        shapes=parse_sizes(shapes or ()),
        check=check,
        page=report,
        model_check=model_check,
        lock=lock,
        locked=locked,
        profile=profile,
        steps=bool(steps) if room is None else room,
        began=command_began(),
      )
    if kept and not journal and not interrupt.asked:
      kept.unlink(missing_ok=True)
    if file := failures.write():
      console.print(f"warning: some regions failed and stay as they were; please report {file}", markup=False)
    told = check_report(result.report)
    if not quiet:
      console.print(region_table(told, console.width))
      console.print(summary(told), highlight=False)
      if report:
        console.print(f"wrote {report}", highlight=False, markup=False)
      if interrupt.asked and kept and kept.exists():
        console.print(f"next: the same command goes on from {kept}", highlight=False, markup=False)
    if as_json:
      print_json(result.report)
    if interrupt.asked:
      return Exit.INTERRUPTED
    unchanged = not any(r.status == "replaced" for r in told.regions)
    return Exit.UNCHANGED if fail_if_unchanged and unchanged else Exit.DONE


def _optimize_folder(
  source: Path, output: Path | None, shapes: list[str] | None, options: Mapping[str, Any]
) -> int:
  """Each model of a folder of onnxruntime-genai, at sizes of its config, and what lies beside them."""
  from mirage_onnx.genai_folder import GenaiFolder
  from mirage_onnx.tune.declared_sizes import parse_sizes

  named = source if source.name not in ("", "..") else source.resolve()
  folder, written = GenaiFolder.read(source), output or named.with_name(f"{source.resolve().name}.mirage")
  several = len(folder.models) > 1
  for name in ("journal", "report", "events", "trace"):
    require(not (several and options[name]), f"--{name}: the folder has {len(folder.models)} models")
  require(not (several and options["as_json"]), f"--json: the folder has {len(folder.models)} models")
  if not options["dry_run"]:
    folder.begin(written)
  given, codes = parse_sizes(shapes or ()), []
  for file in folder.models:
    steps = options["steps"]
    if steps is None:
      steps = options["room"] is not None or not folder.captures(file)
    sizes = folder.sizes(file, given if not several else {}, steps=steps)
    if steps and options["room"] is not None:
      sizes |= {n: (options["room"],) for n in sizes if n == "past_sequence_length"}
    words = [f"{name}={','.join(map(str, s))}" for name, s in sizes.items()]
    codes.append(optimize(folder.path / file, written / file, shapes=words, **{**options, "steps": steps}))
    if codes[-1] == Exit.INTERRUPTED:
      return codes[-1]
  if not options["dry_run"]:
    changed = folder.finish(written)
    if not options["quiet"]:
      said = f"custom_ops_library is set for {', '.join(changed)}" if changed else "no model has custom nodes"
      print(f"wrote {written}: {said}", file=sys.stderr)
  return Exit.UNCHANGED if all(c == Exit.UNCHANGED for c in codes) else Exit.DONE


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
      help="Run B's kernels in the CPU emulator (minutes for a large model). "
      "Default: with cpu, where there is g++.",
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
  """Compare two models on the same inputs, and kernels alone."""
  from mirage_onnx import api
  from mirage_onnx.report.log import stderr_console
  from mirage_onnx.report.schema import check_verify_report
  from mirage_onnx.report.table import verify_tables
  from mirage_onnx.report.verify_progress import VerifyProgress
  from mirage_onnx.tune.declared_sizes import parse_sizes

  require(rtol is None or rtol >= 0, f"--rtol {rtol}: must not be negative")
  console = stderr_console()
  with stdout_kept(as_json), VerifyProgress(console) as progress:
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
      tell=progress,
    )
  found = result.to_dict()
  report = check_verify_report(found)
  for part in verify_tables(report, console.width):
    console.print(part, highlight=False)
  if as_json:
    print_json(found)
  return Exit.DONE if report.passed else Exit.CHECK_FAILED


@app.command()
def demo(
  folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the models go.")] = Path(
    "mirage-demo"
  ),
) -> int:
  """Make a small model, optimize and verify it; needs no GPU."""
  from mirage_onnx.demo_model import gated_mlp
  from mirage_onnx.model_commands import diff

  source, result = folder / "mlp.onnx", folder / "mlp.mirage.onnx"
  made = gated_mlp().SerializeToString(deterministic=True)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists() or source.read_bytes() != made:
      require(not source.exists(), f"{source} is another model: give another folder")
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
