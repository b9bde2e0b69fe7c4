"""A predicted choice is run once before it ships: reduced, in the CPU emulator.

The text of a kernel holds its sizes, so what runs is the text that the same program and numbers give
at smaller extents: an axis is halved as long as two tiles, or two rounds of a loop, are left and the
code generator takes it. What only a run counts is a tile and a part of one, or less: the text is for
any size, and if nothing else is reduced, it is the text that ships. It is compared with the region in
float64: relative L2 error of an output row at most ``FACTOR`` times that of rounding every step, plus
a slack (DESIGN 4). Without a C++ compiler, or when its share of the time is spent, a kernel is said
never to have run.
"""

import hashlib
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.emulator.toolchain import cache_folder, has_host_compiler, sealed, unsealed
from mirage_onnx.errors import MirageError, Rejection, RejectionError
from mirage_onnx.ir import Candidate, KTensor, Region, RegionTensor, ugraph_extents
from mirage_onnx.ir.dtype import packed
from mirage_onnx.source_digest import EMULATION_SOURCES, source_digest
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.target import Target
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.numeric import FACTOR, SLACK
from mirage_onnx.verify.samples import sample_inputs

EMULATED, NEVER_RAN = "emulated", "never ran"
#: Of the time that a run took before; and what one kernel is taken to need at first.
SHARE, FIRST_S = 0.25, 4.0
#: Products of all extents up to which a reduced program is run.
MOST_WORK = 1 << 22
#: Elements that an axis without tiles keeps; CPU seconds of one kernel.
LEAST, TIMEOUT_S = 64, 20
#: Most elements of what a run counts: a tile and a half and one; less where that is too much to run.
RUN_SIZES = (1 << 20, 97, 33, 7)


@dataclass
class Emulated:
  """``left_s``: the seconds that there are for all regions together, of all threads that ask."""

  target: Target
  left_s: float
  _longest_s: float = field(default=FIRST_S, init=False)
  _counting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

  def __call__(self, region: Region, candidate: Candidate) -> tuple[str, Rejection | None]:
    """Whether the program ran, and why it is refused if it is wrong."""
    if any(_is_part(x) for x in (*region.inputs, *region.outputs)):
      return NEVER_RAN, None
    if not has_host_compiler():
      return NEVER_RAN, None
    try:
      small = _reduced(region, candidate, self.target)
    except (RejectionError, ValueError):
      small = None
    if small is None:
      return NEVER_RAN, None
    extents, sources = small
    kept = _verdict_file(region, sources)
    if (said := unsealed(kept)) is not None:
      return _read(said.decode(errors="replace"), region)
    if self.left_s < self._longest_s:
      return NEVER_RAN, None
    start = time.monotonic()
    try:
      wrong = _complaint(region, candidate, extents, sources)
    except (MirageError, RejectionError, ValueError, LookupError, OSError):  # nothing was found out
      return NEVER_RAN, None
    finally:
      took = time.monotonic() - start
      with self._counting:
        self.left_s, self._longest_s = self.left_s - took, max(self._longest_s, took)
    with suppress(OSError):
      replace_file(kept, sealed(wrong.encode()))
    return _read(wrong, region)


def _read(wrong: str, region: Region) -> tuple[str, Rejection | None]:
  return EMULATED, Rejection("KERNEL_WRONG", wrong, region.nodes) if wrong else None


def _reduced(
  region: Region, candidate: Candidate, target: Target
) -> tuple[dict[str, int], tuple[KernelSource, ...]] | None:
  """Smaller extents and the texts at these; None where that is too much to run."""
  least: dict[str, int] = {}
  for kernel, numbers in zip(candidate.ugraph.kernels, candidate.params, strict=True):
    tiles = list(zip(kernel.grid, numbers.tile, strict=False))
    if kernel.loop is not None:
      tiles.append((kernel.loop, numbers.loop_tile * max(1, numbers.cluster)))
    for axis, tile in tiles:
      whole = axis.split("/")[0]
      least[whole] = max(least.get(whole, 1), 2 * tile)
  extents = dict(region.extents)
  sources = emit_candidate(candidate, extents, target, "reduced", region.runtime)
  for axis in sorted(extents, key=lambda a: -extents[a]):
    while (
      axis not in region.runtime and extents[axis] % 2 == 0 and extents[axis] // 2 >= least.get(axis, LEAST)
    ):
      smaller = {**extents, axis: extents[axis] // 2}
      try:
        sources = emit_candidate(candidate, smaller, target, "reduced", region.runtime)
      except (RejectionError, ValueError):
        break
      extents = smaller
  for most in RUN_SIZES if region.runtime else (0,):
    extents |= {a: min(most, least.get(a, 2) * 3 // 4 + 1) for a in region.runtime}
    if prod(extents.values()) <= MOST_WORK:
      return extents, sources
  return None


def _complaint(
  region: Region, candidate: Candidate, extents: Mapping[str, int], sources: tuple[KernelSource, ...]
) -> str:
  """What is wrong with the program's outputs, or nothing.

  Raises:
      RejectionError: INCONCLUSIVE, the original is finite nowhere.
  """
  drawn = sample_inputs(region, extents, {}, np.random.default_rng(0), ("normal",))
  inputs = {i.name: (i, _in_blocks(i, drawn[i.name][0])) for i in region.inputs}
  sizes = ugraph_extents(candidate.ugraph, candidate.params, extents)
  memory = {}
  for t in candidate.ugraph.tensors:
    if t.name in inputs:
      i, x = inputs[t.name]
      memory[t.name] = _stored(t, x.transpose([i.axes.index(a) for a in t.axes]))
    else:
      shape = [sizes[a] for a in t.axes]
      poison = b"\xff" * (prod(shape) * t.dtype.size_bytes)
      memory[t.name] = np.frombuffer(poison, t.dtype.numpy).reshape(shape).copy()
  try:
    module = compile_kernels(sources)
    module.run(
      memory, uninitialised=[n for n in memory if n not in inputs],
      timeout_s=TIMEOUT_S, sizes={a: extents[a] for a in region.runtime},
    )  # fmt: skip
  except EmulationError as error:
    if error.kind == "timeout":
      raise RejectionError("INCONCLUSIVE", "it takes too long") from error
    return "emulated at reduced sizes: " + " ".join(str(error).split())[:300]
  feeds = {i.tensor.name: positional(i, x) for i, x in inputs.values()}
  exact, rounded = (interpret_steps(region, feeds, rounded=r, extents=extents) for r in (False, True))
  for o in region.outputs:
    axes = candidate.ugraph.tensor(o.name).axes
    got = memory[o.name].astype(np.float64).transpose([axes.index(a) for a in o.axes])
    want, base = (by_axes(o, x[o.tensor.name], extents) for x in (exact, rounded))
    if not (np.isfinite(want).all() and np.isfinite(base).all()):
      raise RejectionError("INCONCLUSIVE", "the original is not finite")
    off, allowed = _worst_row(want, got), FACTOR * _worst_row(want, base) + SLACK
    if not off <= allowed:
      return f"{o.tensor.name} is off by {off:.2e}, {allowed:.2e} allowed (emulated at reduced sizes)"
  return ""


def _is_part(x: RegionTensor) -> bool:
  """Whether memory has more than the tensor where it lies; weights of few bits are all that is there."""
  if x.view is None:
    return False
  few_bits = x.dtype.is_packed or x.repeat > 1
  return bool(x.view.picks) or any(x.view.starts) or not few_bits or any(len(w.axes) != 1 for w in x.windows)


def _in_blocks(i: RegionTensor, x: np.ndarray) -> np.ndarray:
  """``x``, with one number for all neighbours that are one element of memory."""
  for d, w in enumerate(i.windows):
    if w.repeat > 1:
      at = np.arange(x.shape[d]) // w.repeat * w.repeat
      x = x.take(at, axis=d)
  return x


def _stored(t: KTensor, values: np.ndarray) -> np.ndarray:
  """What memory holds of a tensor with these values."""
  for d, w in enumerate(t.windows):
    values = values[(slice(None),) * d + (slice(None, None, w.repeat),)]
    if w.full is not None:
      room = [(0, w.full - n if k == d else 0) for k, n in enumerate(values.shape)]
      values = np.pad(values, room)
  made = packed(values, t.dtype) if t.dtype.is_packed else values.astype(t.dtype.numpy)
  return np.ascontiguousarray(made)


def _worst_row(want: np.ndarray, got: np.ndarray) -> float:
  """The largest relative L2 error; of small rows, relative to the typical one. NaN is infinite."""
  axis = -1 if want.ndim else None
  norms = np.sqrt(np.square(want).sum(axis=axis))
  typical = float(np.sqrt(np.mean(np.square(norms))))
  errors = np.sqrt(np.square(got - want).sum(axis=axis)) / np.maximum(norms, max(0.1 * typical, 1e-30))
  return float(np.nan_to_num(errors, nan=np.inf).max(initial=0.0))


def _verdict_file(region: Region, sources: tuple[KernelSource, ...]) -> Path:
  """Where the verdict on these texts is kept; what runs and judges them is part of its key."""
  digest = hashlib.sha256(region.text.encode())
  for source in sources:
    digest.update(source.text.encode())
  digest.update(source_digest(*EMULATION_SOURCES).encode())
  return cache_folder() / f"{digest.hexdigest()}.verdict"
