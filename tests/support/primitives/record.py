"""What a run on the GPU says beside the emulator, as a table for people and one for programs."""

import json
from dataclasses import asdict, dataclass

import numpy as np

from tests.support.primitives import tensor_core
from tests.support.primitives.case import ulps_apart
from tests.support.primitives.matrix import SHAPES


@dataclass(frozen=True)
class Row:
  """A case on the GPU: ``identical`` of its ``values`` are the emulator's, bit for bit.

  ``repeats`` runs gave the same bits if ``repeatable``. ``ulps``: the largest distance of a
  floating-point output from the emulator's and from the reference's.
  """

  case: str
  covers: tuple[str, ...]
  values: int
  identical: int
  repeats: int
  repeatable: bool
  ulps_emulator: int
  ulps_reference: int


@dataclass(frozen=True)
class MmaRow:
  """One kind of data of one mma, on the GPU.

  Distances of finite results are in units of the last fp32 place of the largest partial sum
  |c| + sum |a b|: from the emulator, from the exact result, and from fp32 additions in the order
  of k.
  """

  case: str
  data: str
  results: int
  identical: int
  emulator: float
  exact: float
  sequential: float


def _bits(x):
  return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def row(case, runs, emulated):
  reference = case.reference(case.inputs())
  first = runs[0]
  floats = [n for n in case.outputs if first[n].dtype == np.float32]

  def furthest(other):
    return max((int(ulps_apart(first[n], other[n]).max()) for n in floats), default=0)

  return Row(
    case.name,
    case.covers,
    sum(first[n].size for n in case.outputs),
    sum(int((_bits(first[n]) == _bits(emulated[n])).sum()) for n in case.outputs),
    len(runs),
    all((_bits(r[n]) == _bits(first[n])).all() for r in runs for n in case.outputs),
    furthest(emulated),
    furthest(reference),
  )


@np.errstate(all="ignore")
def mma_rows(case, found, emulated):
  """A row for each kind of data; ``found`` is what the GPU computed."""
  shape = next(s for s in SHAPES if s.name == case.name)
  given = case.inputs()
  a, b, c = given["a"].view(shape.dtype), given["b"].view(shape.dtype), given["c"]
  if shape.dtype == np.float32:
    a, b = tensor_core.tf32(a), tensor_core.tf32(b)
  rows = []
  exact = c + a.astype(np.float64) @ b.astype(np.float64)
  bound = tensor_core.largest_partial_sum(a, b, c)
  in_order = c.copy()
  for k in range(shape.k):
    term = a[:, :, k, None].astype(np.float64) * b[:, None, k].astype(np.float64)
    in_order += term.astype(np.float32)
  ulp = np.exp2(np.maximum(np.floor(np.log2(np.maximum(bound, 1e-300))), -126) - 23)
  finite = np.isfinite(found) & np.isfinite(exact) & np.isfinite(in_order) & (bound > 0)

  def furthest(other, tiles):
    apart = np.abs(found[tiles].astype(np.float64) - other[tiles]) / ulp[tiles]
    return round(float(apart[finite[tiles]].max()), 3)

  for i, kind in enumerate(tensor_core.DATA):
    tiles = slice(i * tensor_core.TILES, (i + 1) * tensor_core.TILES)
    x = found[tiles]
    identical = int((_bits(x) == _bits(emulated[tiles])).sum())
    distances = (furthest(other, tiles) for other in (emulated, exact, in_order))
    rows.append(MmaRow(case.name, kind, x.size, identical, *distances))
  return rows


def write(to, machine, rows, mma):
  """``to``.txt and ``to``.json."""
  lines = [
    "Every function of ptx.cuh: the same text and data on the GPU and in the emulator.",
    machine,
    "",
    f"{'case':<20} {'values':>8} {'identical':>9} {'runs':>5} {'ulp emu':>8} {'ulp ref':>8}  functions",
  ]
  for r in rows:
    runs = f"{r.repeats}{'' if r.repeatable else '!'}"
    lines.append(
      f"{r.case:<20} {r.values:>8} {r.identical:>9} {runs:>5} {r.ulps_emulator:>8}"
      f" {r.ulps_reference:>8}  {' '.join(r.covers)}"
    )
  lines += [
    "",
    "mma by kind of data; distances in ulps of the largest partial sum |c| + sum |a b|: from",
    "the emulator, from the exact result, and from fp32 additions in the order of k.",
    "",
    f"{'case':<16} {'data':<12} {'results':>8} {'identical':>9} {'emulator':>9} {'exact':>8} {'in order':>9}",
  ]
  for m in mma:
    lines.append(
      f"{m.case:<16} {m.data:<12} {m.results:>8} {m.identical:>9} {m.emulator:>9.3f}"
      f" {m.exact:>8.3f} {m.sequential:>9.3f}"
    )
  functions = {f for r in rows for f in r.covers}
  same = sum(r.identical == r.values for r in rows)
  lines += ["", f"{len(functions)} functions, {len(rows)} cases, {same} of them bit for bit."]
  to.with_suffix(".txt").write_text("\n".join(lines) + "\n")
  table = {
    "machine": machine,
    "cases": [asdict(r) for r in rows],
    "mma": [asdict(m) for m in mma],
  }
  to.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
