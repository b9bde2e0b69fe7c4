"""Products of many rows against float64 at full size, on inputs that are chosen to be hard.

    python bench/adversarial_products.py OUT.json [CASE ...] [--keep 4] [--again 500]

Every kernel that ``warpgroup_products.py`` would time (fed ones, stored late, out of step, blocks that share,
ranks that share out the depth) gets inputs of each kind below. An error is held against what rounding may do
to that element: half a unit of the result's type, and a unit of fp32 for each addition, of the sum of all
magnitudes (``late=2``: half a unit of what the last function is of, too). Exit 1 where one is larger, where
a NaN or an infinity is elsewhere than in float64, or where one of ``--again`` launches gives other bits than
the first: sums have one order, so that would be a race. Needs a Hopper GPU and torch.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import sched_getaffinity
from pathlib import Path

import warpgroup_products as products
from protocol import facts, write_text
from torch_arms import unlike

from mirage_onnx.target import H100

CASES = (
  "4096x768x3072 gelu", "4096x3072x768 residual", "4096x4096x4096", "4096x4096x4096 bf16", "8192x4096x4096",
  "512x4096x4096", "512x14336x4096 residual", "1500x1000x3000", "1500x768x3072 gelu", "197x768x3072",
  "128x3072x768", "128x768x768", "77x768x768",
)  # fmt: skip
#: Half a unit of a result, its smallest step, and the largest number of the type.
TYPES = {"f16": (2.0**-11, 2.0**-24, 65504.0), "bf16": (2.0**-8, 2.0**-126, 3.3895e38)}
#: The largest slope of a result by its sum, and how far x N(x) may be off, of |x| N(-|x|).
SLOPE, NEAR = 1.13, 1e-4


def drawn(torch, kind, rows, depth, columns):
  """x and w in float64, before they are rounded."""
  draw = partial(torch.randn, device="cuda", dtype=torch.float64)
  x, w = draw(rows, depth), draw(columns, depth) * depth**-0.5
  if kind == "cancels":  # what is left is a thousandth of its terms
    x[:, 1::2] = -x[:, ::2]
    w[:, 1::2] = w[:, ::2] * (1 + 1e-3 * draw(columns, depth // 2))
  elif kind == "ranges":
    for v in (x, w):
      v *= torch.exp2(torch.rand_like(v) * 16 - 12)
  elif kind == "outliers":
    x[:, :: max(1, depth // 5)] *= 500
    w[::7] *= 20
  elif kind == "subnormal":
    x = torch.round(x * 300) * 2.0**-24
    w *= 2.0**8
  elif kind == "not finite":
    x[rows // 2, depth // 3] = torch.nan
    x[rows // 3, depth - 1] = torch.inf
  return x, w


KINDS = ("normal", "cancels", "ranges", "outliers", "subnormal", "not finite")


def wanted(torch, kind, x, w, i2, half):
  """The result in float64, what its sum may be off before it is rounded, and more if GELU's argument is."""
  total, terms = x @ w.T, x.abs() @ w.abs().T
  off = terms * (x.shape[1] * 2.0**-24)
  if not kind:
    return total, off, 0.0
  total = total + i2
  off = off + 2.0**-23 * (total.abs() + i2.abs())
  if kind == "residual":
    return total, off, 0.0
  a = total.abs().clamp(max=1e4)  # of an infinity 0, not infinity times 0
  tail = a * torch.special.ndtr(-a)
  bell = torch.exp(-0.5 * a * a) * 0.3989422804
  slope, step = torch.special.ndtr(total) + total.clamp(-1e4, 1e4) * bell, half * a + 2.0**-25
  more = torch.nan_to_num(1.1 * slope.abs() * step + 0.5 * step * step)
  return torch.where(total > 0, total, 0.0) - tail, SLOPE * off + NEAR * tail, more


def complaint(torch, got, want, off, dtype):
  """(the largest error over what it may be, what is wrong)."""
  half, step, most = TYPES[dtype]
  finite = want.abs() + off <= most
  over = want.abs() - off > most * (1 + half)
  if (torch.isnan(got) & finite).any() or not torch.isnan(got[torch.isnan(want)]).all():
    return None, "NaN elsewhere than in float64"
  if torch.isfinite(got[over | torch.isinf(want)]).any():
    return None, "a number in place of an infinity"
  allowed = off + half * (want.abs() + off) + step
  ratio = ((got - want).abs() / allowed)[finite]
  worst = ratio.max().item() if ratio.numel() else 0.0
  return worst, "" if worst <= 1 else f"wrong: {worst:.3g} of what rounding may do"


def checked(name, jobs, gpu, torch, again):
  """Of a case: kernels, the worst of each kind, complaints."""
  rows, depth, columns, kind, dtype = products.CASES[name]
  own = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
  record = {"kernels": 0, "refused": {}, "worst": {}, "wrong": {}}
  loaded = []
  for _, label, _, source, cubin in jobs:
    if isinstance(cubin, str):
      record["refused"][label] = cubin
    else:
      loaded.append((label, source, gpu.load(cubin, source.name, source.smem_bytes)))
  record["kernels"] = len(loaded)
  with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    torch.manual_seed(1)
    for how in KINDS:
      x, w = (v.to(own) for v in drawn(torch, how, rows, depth, columns))
      i2 = torch.randn((columns,) if kind == "gelu" else (rows, columns), device="cuda").to(own)
      want, off, more = wanted(torch, kind, x.double(), w.double(), i2.double(), TYPES[dtype][0])
      y = torch.empty(rows, columns, device="cuda", dtype=own)
      at = {"i0": x.data_ptr(), "i1": w.data_ptr(), "i2": i2.data_ptr(), "o0": y.data_ptr()}
      for label, source, function in loaded:
        gpu.poison(at["o0"], 2 * rows * columns)
        launch = partial(gpu.launch_source, function, source, at)
        launch()
        gpu.wait()
        worst, why = complaint(torch, y.double(), want, off + more * ("late=2" in label), dtype)
        record["worst"][how] = max(record["worst"].get(how, 0.0), worst or 0.0)
        if why:
          record["wrong"][f"{how}: {label}"] = why
        if how == KINDS[0] and (other := unlike(torch, gpu, launch, y, again)):
          record["wrong"][f"again: {label}"] = f"{other} of {again} launches differ"
  return record


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("out", type=Path)
  parser.add_argument("cases", nargs="*", default=list(CASES))
  parser.add_argument("--keep", type=int, default=4)
  parser.add_argument("--again", type=int, default=500)
  products.add_choice(parser)
  args = parser.parse_args()
  with ProcessPoolExecutor(max(1, len(sched_getaffinity(0)) - 2)) as pool:
    found = list(pool.map(partial(products.chosen, args=args), args.cases))
    made = [pool.map(products.compiled, own) for own in found]
    import torch

    from mirage_onnx.tune.device import Gpu

    result, gpu = {**facts(), "kinds": KINDS, "cases": {}}, Gpu(H100)
    for name, jobs in zip(args.cases, made, strict=True):
      with gpu.scope():
        result["cases"][name] = record = checked(name, list(jobs), gpu, torch, args.again)
      print(f"{name}: {record['kernels']} kernels, worst {record['worst']}, {record['wrong']}", flush=True)
      write_text(args.out, json.dumps(result, indent=1) + "\n")
  return int(any(r["wrong"] for r in result["cases"].values()))


if __name__ == "__main__":
  sys.exit(main())
