"""The verbs on models that are there: ``bench`` and ``diff`` of two, ``tune``, ``inspect`` ... of one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mirage_onnx.command_options import (
  Json,
  Profile,
  Provider,
  Shapes,
  app,
  budget_option,
  print_json,
  require,
  show,
  stdout_kept,
  write,
)
from mirage_onnx.errors import Exit

if TYPE_CHECKING:
  from mirage_onnx.reduction import ReductionStep


@app.command()
def bench(
  a: Annotated[Path, typer.Argument(metavar="A.onnx", help="The original.")],
  b: Annotated[Path, typer.Argument(metavar="B.onnx", help="The model to time beside it.")],
  provider: Annotated[
    Provider | None,
    typer.Option(help="Execution provider of both. Default: cuda where there is a GPU for B's kernels."),
  ] = None,
  seconds: Annotated[float, typer.Option(help="How long at most, at each size.")] = 20.0,
  seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
  fail_under: Annotated[
    float | None,
    typer.Option(metavar="SPEEDUP", help="Exit code 1 where the mean speedup at some size is less."),
  ] = None,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Time whole runs of two models side by side. Exit code 1 where B is slower."""
  from mirage_onnx import api
  from mirage_onnx.report.bench_report import bench_tables, verdict
  from mirage_onnx.tune.declared_sizes import parse_sizes

  require(fail_under is None or 0 < fail_under < float("inf"), f"--fail-under {fail_under}: no speedup")
  with stdout_kept(as_json):
    report = api.bench(
      a, b, provider=provider.value if provider else None, seconds=seconds, seed=seed,
      shapes=parse_sizes(shapes or ()),
    )  # fmt: skip
  show(report, bench_tables(report), as_json)
  if fail_under is not None and (less := [r for r in report.rows if r.speedup < fail_under]):
    worst = min(less, key=lambda r: r.speedup)
    where = f" at {worst.sizes}" if worst.sizes else ""
    print(f"{worst.speedup:.3f}x{where} is less than --fail-under {fail_under:g}", file=sys.stderr)
    return Exit.CHECK_FAILED
  return Exit.CHECK_FAILED if verdict(report).startswith("slower") else Exit.DONE


@app.command()
def tune(
  model: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="A model that optimize wrote.")],
  budget: Annotated[
    float | None, budget_option("Time for all of it (90, 90s, 10m, 1h); default 120 s.")
  ] = None,
  shapes: Shapes = None,
  check: Annotated[
    bool,
    typer.Option("--check/--no-check", help="Run the new file in a plain onnxruntime before it is kept."),
  ] = True,
  as_json: Json = False,
) -> int:
  """Time an optimized model on this GPU, drop what makes it slower."""
  from mirage_onnx import api
  from mirage_onnx.report.log import stderr_console
  from mirage_onnx.report.tune_report import tune_lines
  from mirage_onnx.tune.declared_sizes import parse_sizes

  require(budget is None or budget > 0, f"--budget {budget}: must be more than 0 seconds")
  with stdout_kept(as_json):
    report = api.tune(model, budget_s=budget, shapes=parse_sizes(shapes or ()), check=check)
  stderr_console().print(tune_lines(report), highlight=False, markup=False)
  if as_json:
    print_json(msgspec.to_builtins(report))
  return Exit.DONE


@app.command()
def diff(
  a: Annotated[Path, typer.Argument(metavar="A.onnx", help="The original.")],
  b: Annotated[Path, typer.Argument(metavar="B.onnx", help="The model that was made of it.")],
  as_json: Json = False,
) -> int:
  """Show what an optimized model has in place of which nodes."""
  from mirage_onnx import api
  from mirage_onnx.report.diff_report import diff_tables

  with stdout_kept(as_json):
    report = api.diff(a, b)
  show(report, diff_tables(report), as_json)
  return Exit.DONE


@app.command()
def reduce(
  model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model on which the command fails.")],
  command: Annotated[
    list[str],
    typer.Argument(metavar="-- COMMAND", help="The command, with {} where the path of a model stands."),
  ],
  output: Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT.onnx", help="Default: MODEL.reduced.onnx beside MODEL.onnx."),
  ] = None,
  match: Annotated[
    str, typer.Option(metavar="TEXT", help="A failure also prints TEXT (then its exit code may be 0).")
  ] = "",
  budget: Annotated[
    float | None, budget_option("End after this time (90, 90s, 10m, 1h), with the smallest so far.")
  ] = None,
  as_json: Json = False,
) -> int:
  """Find the smallest model on which a command still fails.

  In the same way, for a bug report. Ctrl-C keeps the smallest so far.
  """
  from mirage_onnx import api
  from mirage_onnx.interrupt import Interrupt
  from mirage_onnx.report.reduce_report import reduce_line, step_line

  require(budget is None or budget > 0, f"--budget {budget}: must be more than 0 seconds")
  path = output or model.with_name(f"{model.stem}.reduced.onnx")
  live, last = sys.stderr.isatty(), 0

  def tell(step: ReductionStep) -> None:
    nonlocal last
    line = step_line(step)
    if live:
      print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif step.nodes != last:
      print(line, file=sys.stderr, flush=True)
    last = step.nodes

  with Interrupt() as interrupt:
    found = api.reduce(
      model, path, command, match=match, budget_s=budget, stop=lambda: interrupt.asked, tell=tell
    )
  if live:
    print("\r\x1b[K", end="", file=sys.stderr)
  print(reduce_line(found), file=sys.stderr)
  if as_json:
    print_json(msgspec.to_builtins(found))
  return Exit.INTERRUPTED if interrupt.asked else Exit.DONE


@app.command()
def report(
  model: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="A model that optimize wrote.")],
  output: Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.html", help="Default: OUT.html beside OUT.onnx."),
  ] = None,
  node_data: Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="Also write the nodes' times, for Model Explorer (--node_data)."),
  ] = None,
) -> int:
  """Write the report of an optimized model as one HTML page."""
  from mirage_onnx import api
  from mirage_onnx.api_reports import check_pages, node_times

  path = output or model.with_suffix(".html")
  check_pages((node_data, path), model)
  if node_data is not None:
    write(node_data, json.dumps(node_times(model), ensure_ascii=False, indent=1) + "\n")
    print(f"wrote {node_data}", file=sys.stderr)
  write(path, api.report_page(model))
  print(f"wrote {path}", file=sys.stderr)
  return Exit.DONE


@app.command()
def inspect(
  model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to look at.")],
  target: Profile = None,
  every: Annotated[bool, typer.Option("--all", help="Show all regions that the model offers.")] = False,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Show what could be fused, and what that brings at most; no GPU."""
  from mirage_onnx import api
  from mirage_onnx.report.inspection_table import inspect_tables
  from mirage_onnx.report.log import stdout_console
  from mirage_onnx.tune.declared_sizes import parse_sizes

  with stdout_kept(as_json):
    report = api.inspect(model, target=target, every=every, shapes=parse_sizes(shapes or ()))
  show(report, inspect_tables(report, stdout_console().width), as_json)
  return Exit.DONE


@app.command()
def explain(
  model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model to look at.")],
  region: Annotated[
    str, typer.Argument(metavar="REGION", help="A key that inspect shows, or the name of any node or tensor.")
  ],
  target: Profile = None,
  budget: Annotated[float | None, budget_option("Stop searching after this time (90, 90s, 10m, 1h).")] = None,
  dot: Annotated[Path | None, typer.Option(metavar="FILE.dot", help="Write the µGraph for Graphviz.")] = None,
  svg: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the µGraph as a picture.")] = None,
  cuda: Annotated[Path | None, typer.Option(metavar="FILE.cu", help="Write the CUDA of the kernels.")] = None,
  shapes: Shapes = None,
  as_json: Json = False,
) -> int:
  """Search one region; or say why a node is in none.

  Its borders, candidates, refusals, µGraph, kernels and proof; of a node in no region the reason, and what
  you can do.
  """
  from mirage_onnx import api
  from mirage_onnx.api_reports import check_pages
  from mirage_onnx.report.inspection_table import explain_tables
  from mirage_onnx.tune.declared_sizes import parse_sizes

  require(budget is None or budget > 0, f"--budget {budget}: must be more than 0 seconds")
  check_pages((dot, svg, cuda), model)
  with stdout_kept(as_json):
    sizes = parse_sizes(shapes or ())
    report = api.explain(model, region, target=target, budget_s=budget, shapes=sizes)
  show(report, explain_tables(report), as_json)
  wanted = [(path, name) for path, name in ((dot, "dot"), (svg, "svg"), (cuda, "cuda")) if path is not None]
  for path, name in wanted:
    if report.chosen is None:
      print(f"{path} is not written: no kernel was found", file=sys.stderr)
      return Exit.CHECK_FAILED
    write(path, getattr(report.chosen, name))
  return Exit.DONE
