"""The Python interface to pairs of models: ``verify``, ``bench`` and ``diff``.

What only some of them need is imported there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_file
from mirage_onnx.importer.model_source import ModelSource, said, stored
from mirage_onnx.importer.steps_apart import step_sizes
from mirage_onnx.report.schema import SCHEMA
from mirage_onnx.tune.declared_sizes import checked_sizes

if TYPE_CHECKING:
  from mirage_onnx.custom_op.comparison import Comparison
  from mirage_onnx.custom_op.race import Raced
  from mirage_onnx.custom_op.steps import Tell
  from mirage_onnx.report.bench_report import BenchReport, BenchRow
  from mirage_onnx.report.diff_report import DiffReport

#: Of one size of ``bench``.
_MOST_SECONDS = 3600.0
#: The chance that one of the two is said to be faster, or slower, and is not; at every size.
BENCH_ALPHA = 0.025


def _check_pair(a: Path, b: Path, seed: int, dims: Mapping[str, Sequence[int]]) -> None:
  """That two models are files, and have the dimensions of which ``dims`` gives sizes."""
  for path in (a, b):
    check_file(path)
  if seed < 0:
    raise MirageError("OPTION_INVALID", f"the seed is {seed}: it must not be negative")
  if dims:
    graph = ModelFile.read(a).proto.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    names = sorted({d.dim_param for v in values for d in v.type.tensor_type.shape.dim if d.dim_param})
    if unknown := [n for n in dims if not any(n in name for name in names)]:
      have = ", ".join(names) or "none"
      raise MirageError("OPTION_INVALID", f"no dynamic dimension is called {unknown[0]!r}; there are: {have}")


def verify(
  a: ModelSource,
  b: ModelSource,
  *,
  seed: int = 0,
  provider: str | None = None,
  rtol: float | None = None,
  emulate: bool | None = None,
  inputs: Mapping[str, np.ndarray] | str | Path | None = None,
  bisect: bool = False,
  shapes: Mapping[str, int | Sequence[int]] | None = None,
  tell: Tell | None = None,
) -> Comparison:
  """Run the original ``a`` and the optimized ``b`` on the same inputs and compare.

  The CUDA text of ``b`` is generated again and compared. onnxruntime runs in a child process: what kills
  it is one of the ``failures``, or SESSION_FAILED. With kernels for several targets ``b`` is compared once
  as each of them runs it.

  Args:
      a: the original: its path, or a model in memory, as ``optimize`` takes them.
      b: the optimized model, as ``a``.
      seed: of the random inputs.
      provider: ``cpu`` or ``cuda``. Left out, as ``emulate``: the CUDA provider where there is a GPU for
          ``b``, else the CPU provider with the kernels of ``b`` in the emulator where there is a C++
          compiler.
      rtol: the tolerance of every float output (default: that of its type).
      emulate: run the kernels of ``b`` in the emulator, or not.
      inputs: arrays by name, or an ``.npz`` file.
      bisect: check every custom node by itself on every input, not only on the first.
      shapes: sizes of dynamic dimensions by name; all combinations are run.
      tell: called with each step (``custom_op/steps.py``) and what it is about, to show how far it is.

  Raises:
      MirageError: SOURCE_MISMATCH, those of ``compare_models`` and ``read_inputs``.
  """
  from mirage_onnx.custom_op.compare_inputs import read_inputs
  from mirage_onnx.custom_op.comparison import together
  from mirage_onnx.custom_op.target_view import seen_file, suffixes_of

  dims = checked_sizes(shapes)
  with stored(a) as first, stored(b) as second:
    _check_pair(first, second, seed, dims)
    given = read_inputs(inputs) if isinstance(inputs, (str, Path)) else inputs
    made = ModelFile.read(second).proto
    dims = {**_steps_and_others(made), **dims}
    how: dict[str, Any] = {"seed": seed, "rtol": rtol, "inputs": given, "bisect": bisect, "dims": dims}
    how |= {"tell": tell} if tell else {}
    suffixes = suffixes_of(made)
    if len(suffixes) < 2:
      return _verified(first, second, provider, emulate, how)
    found = {}
    for suffix in suffixes:
      with seen_file(second, suffix) as seen:
        found[suffix] = _verified(first, seen, provider, emulate, how)
    return together(found)


def _steps_and_others(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
  """Sizes with which kernels for a decoder's steps run, and with one sequence those of a prompt.

  onnxruntime's operator takes several new tokens behind others of one sequence only.
  """
  sizes = step_sizes(proto)
  caches = (v.type.tensor_type.shape.dim for v in proto.graph.output)
  batch = {d[0].dim_param for d in caches if len(d) == 4} - {""}
  alone = bool(batch) and all(sizes.get(n) == 1 for n in batch)
  return {n: (size, size + 2) if alone and n not in batch else (size,) for n, size in sizes.items()}


def _verified(
  a: str | Path, b: str | Path, provider: str | None, emulate: bool | None, how: Mapping[str, Any]
) -> Comparison:
  """Of a model for one target."""
  from mirage_onnx.custom_op.choose_path import choose_path
  from mirage_onnx.custom_op.isolated import compare_isolated
  from mirage_onnx.custom_op.sources import check_sources

  provider, emulate, advice = choose_path(b, provider, emulate)
  source = check_sources(b, strict=emulate, original=a)
  found = compare_isolated(str(a), str(b), provider=provider, emulate=emulate, **how)
  note = "; ".join(text for text in (found.note, advice) if text)
  return replace(found.with_source(source.text, source.unseen), note=note)


def bench(
  a: ModelSource,
  b: ModelSource,
  *,
  provider: str | None = None,
  seconds: float = 20.0,
  seed: int = 0,
  shapes: Mapping[str, int | Sequence[int]] | None = None,
) -> BenchReport:
  """Time whole onnxruntime runs of the original ``a`` and of ``b``, side by side.

  Sessions with default options, inputs and outputs on the device; also as CUDA graphs where onnxruntime can
  capture both. What counts is openings, fresh sessions of both (``tune/paired.py`` says why).

  Args:
      a: the original: its path, or a model in memory, as ``optimize`` takes them.
      b: the optimized model, as ``a``.
      provider: ``cpu`` or ``cuda``. Left out: the CUDA provider where there is a GPU for ``b``, else the
          CPU provider, where the function bodies of ``b`` run.
      seconds: at every combination of ``shapes``, at most; it ends when it is decided which is faster.
      seed: of the random inputs.
      shapes: sizes of dynamic dimensions by name.

  Raises:
      MirageError: FILE_MISSING, OPTION_INVALID, SHAPES_DIFFER, SESSION_FAILED.
  """
  from mirage_onnx.custom_op.arm_session import Arm
  from mirage_onnx.custom_op.choose_path import choose_path
  from mirage_onnx.custom_op.compare_inputs import combinations
  from mirage_onnx.custom_op.race import Failed, Race, race
  from mirage_onnx.report.bench_report import BenchNode, BenchReport

  dims = checked_sizes(shapes)
  if not 0 < seconds <= _MOST_SECONDS:
    raise MirageError("OPTION_INVALID", f"{seconds} seconds: more than 0, {_MOST_SECONDS:.0f} at most")
  points = tuple(combinations(dims))
  with stored(a) as first, stored(b) as second:
    _check_pair(first, second, seed, dims)
    provider, _, _ = choose_path(second, provider, False if provider == "cpu" else None)
    arms, every = (Arm(str(first)), Arm(str(second))), seconds * len(points)
    found = race(Race(arms, ((0, 1),), every, BENCH_ALPHA, points, provider, seed))
  if isinstance(found, Failed):
    raise MirageError(found.code, found.reason)
  if found.skipped:
    raise MirageError("SESSION_FAILED", f"{said(a)} does not run at {found.skipped[0]}")
  nodes = [BenchNode(name=name, launches=count) for name, count in found.by_node[1].items()]
  bodies = "B's kernels need their GPU; here its function bodies ran, which are the original's nodes"
  return BenchReport(
    schema=SCHEMA, a=said(a), b=said(b), provider="cuda" if provider == "cuda" else "cpu",
    rows=[_bench_row(row) for row in found.rows], nodes=nodes,
    note=bodies if nodes and not any(n.launches for n in nodes) else "",
  )  # fmt: skip


def _bench_row(row: Raced) -> BenchRow:
  from mirage_onnx.report.bench_report import BenchRow

  (a_us, b_us), (s,) = row.us, row.speedups
  return BenchRow(
    sizes=row.sizes, how="graph" if row.how == "graph" else "run", a_us=a_us, b_us=b_us, speedup=s.mean,
    low=s.low, high=s.high if isfinite(s.high) else None, openings=s.openings,
  )  # fmt: skip


def diff(a: ModelSource, b: ModelSource) -> DiffReport:
  """What the model ``b`` has in place of its original ``a``: node by node, and of the weights.

  Raises:
      MirageError: FILE_MISSING, NOT_ONNX.
  """
  from mirage_onnx.inspection import model_diff
  from mirage_onnx.report.diff_report import DiffNode, DiffReport, DiffWeight

  with stored(a) as first, stored(b) as second:
    found = model_diff(ModelFile.read(first), ModelFile.read(second))
  nodes = [
    DiffNode(
      node=r.node, replaces=list(r.nodes), ops=dict(Counter(r.ops)), inputs=list(r.inputs),
      outputs=list(r.outputs),
    )
    for r in found.replaced
  ]  # fmt: skip
  added, gone = (
    [DiffWeight(name=name, bytes=size) for name, size in weights]
    for weights in (found.weights_added, found.weights_gone)
  )
  return DiffReport(
    schema=SCHEMA, a=said(a), b=said(b), nodes=nodes, unchanged=found.unchanged, changed=list(found.changed),
    gone=list(found.gone), added=list(found.added), weights_added=added, weights_gone=gone,
    interface=list(found.interface),
  )  # fmt: skip
