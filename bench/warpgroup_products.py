"""Products of many rows by wgmma against cuBLAS (torch) in one process, cold L2; each checked in float64.

    python bench/warpgroup_products.py OUT.json [CASE ...]

For each case the numbers that ``superopt/warpgroup_numbers.py`` ranks first (``--keep``), the one with mma
besides, and the peers: the bare product as torch has it and by all of cuBLASLt's heuristics (``lt``, with the
epilogue in it ``lt epilogue``), and torch's ways to the same epilogue. Needs a Hopper GPU and torch.
"""

import argparse
import json
import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import sched_getaffinity

import cublaslt
from protocol import facts
from torch_arms import arm_times

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.superopt.fed_numbers import fed_points
from mirage_onnx.superopt.warpgroup_numbers import warpgroup_points
from mirage_onnx.target import H100

#: rows, depth, columns, what follows, element type
CASES = {
  "4096x768x768": (4096, 768, 768, "", "f16"),
  "4096x768x3072": (4096, 768, 3072, "", "f16"),
  "4096x3072x768": (4096, 3072, 768, "", "f16"),
  "4096x768x3072 gelu": (4096, 768, 3072, "gelu", "f16"),
  "4096x3072x768 residual": (4096, 3072, 768, "residual", "f16"),
  "512x4096x4096": (512, 4096, 4096, "", "f16"),
  "512x4096x14336": (512, 4096, 14336, "", "f16"),
  "1024x4096x4096": (1024, 4096, 4096, "", "f16"),
  "4096x4096x4096": (4096, 4096, 4096, "", "f16"),
  "4096x4096x4096 bf16": (4096, 4096, 4096, "", "bf16"),
  "8192x4096x4096": (8192, 4096, 4096, "", "f16"),
  "77x768x768": (77, 768, 768, "", "f16"),
  "4096x768x2304": (4096, 768, 2304, "", "f16"),
  "3152x768x2304": (3152, 768, 2304, "", "f16"),
  "3152x768x768": (3152, 768, 768, "", "f16"),
  "3152x3072x768 residual": (3152, 3072, 768, "residual", "f16"),
  "3152x768x3072 gelu": (3152, 768, 3072, "gelu", "f16"),
  "1500x768x3072 gelu": (1500, 768, 3072, "gelu", "f16"),
  "1500x3072x768 residual": (1500, 3072, 768, "residual", "f16"),
  "512x4096x6144": (512, 4096, 6144, "", "f16"),
  "512x14336x4096": (512, 14336, 4096, "", "f16"),
  "512x14336x4096 residual": (512, 14336, 4096, "residual", "f16"),
  "128x768x768": (128, 768, 768, "", "f16"),
  "128x3072x768": (128, 3072, 768, "", "f16"),
  "128x768x3072": (128, 768, 3072, "", "f16"),
  "128x768x2304": (128, 768, 2304, "", "f16"),
  "128x768x3072 gelu": (128, 768, 3072, "gelu", "f16"),
  "128x3072x768 residual": (128, 3072, 768, "residual", "f16"),
  "128x768x768 residual": (128, 768, 768, "residual", "f16"),
  "197x768x3072": (197, 768, 3072, "", "f16"),
  "333x768x3072": (333, 768, 3072, "", "f16"),
  "1500x1000x3000": (1500, 1000, 3000, "", "f16"),
}
_GELU = (
  "const[6369051672525773/9007199254740992] : f32[]", "mul %6 %7 : f32[a0,a2]", "erf %8 : f32[a0,a2]",
  "const[1] : f32[]", "add %9 %10 : f32[a0,a2]", "mul %6 %11 : f32[a0,a2]", "const[1/2] : f32[]",
  "mul %12 %13 : f32[a0,a2]",
)  # fmt: skip
#: Blocks that share an operand; points that have variants.
SHARED, VARIED = (1, 2, 4), 4
#: The largest error, relative to the largest result.
MOST_WRONG = {"f16": 2e-3, "bf16": 1e-2}


def text(kind, dtype, split=False):
  """The block graph of a product and what follows it; ``split``: ranks of a cluster share out the depth."""
  own = {"": "", "gelu": f"tensor i2 {dtype}[a2] weight\n", "residual": f"tensor i2 {dtype}[a0,a2] input\n"}
  ranks = "a1" if split else "-"
  steps = [
    f"load i0 imap=-,a0 cmap={ranks} fmap=a1 : {dtype}[a0,a1] loop shared",
    f"load i1 imap=a2,- cmap={ranks} fmap=a1 : {dtype}[a2,a1] loop shared",
    "matmul[a1] %0 %1 : f32[a0,a2] loop C_frag", "acc_sum %2 : f32[a0,a2] post C_frag",
  ]  # fmt: skip
  steps += ["red_sum %3 : f32[a0,a2] post C_frag"] if split else []
  last = len(steps) - 1
  if kind:
    axes, at, layout = ("a2", "a2,-", "column") if kind == "gelu" else ("a0,a2", "a2,a0", "C_frag")
    steps += [
      f"load i2 imap={at} cmap=- fmap=- : {dtype}[{axes}] post {layout}",
      f"cast %{last + 1} : f32[{axes}] post {layout}", f"add %{last} %{last + 2} : f32[a0,a2] post C_frag",
    ]  # fmt: skip
  own_gelu = re.sub(r"%(\d+)", lambda m: f"%{int(m[1]) + split}", "\n".join(_GELU)).splitlines()
  more = own_gelu if kind == "gelu" else ()
  steps += [f"{s} post {'uniform' if s.startswith('const') else 'C_frag'}" for s in more]
  steps.append(f"cast %{len(steps) - 1} : {dtype}[a0,a2] post C_frag")
  lines = "".join(f"  %{n} = {s}\n" for n, s in enumerate(steps))
  return (
    f"ugraph 1\ntensor i0 {dtype}[a0,a1] input\ntensor i1 {dtype}[a2,a1] weight\n{own[kind]}"
    f"tensor o0 {dtype}[a0,a2] output\nkernel k0 grid=a2,a0 cluster={ranks} loop=a1\n{lines}"
    f"  save o0 = %{len(steps) - 1} omap=a2,a0\n"
  )


def varied(*given, sharing=(1,), most=VARIED):
  """Of the best fed points with one team those that store late (2: with functions)."""
  found = {replace(p, late=0): us for us, p in fed_points(*given, sharing=sharing) if p.teams == 1}
  for p, us in list(found.items())[:most]:
    yield from ((us, replace(p, late=n)) for n in (1, 2))


def candidates(name, keep):
  """(case, label, predicted us, source) of a case's best numbers, and of one with mma."""
  rows, depth, columns, kind, dtype = CASES[name]
  sizes, jobs = {"a0": rows, "a1": depth, "a2": columns}, []

  def add(split, solve):
    graph = parse_ugraph(text(kind, dtype, split))
    (kernel,), tensors = graph.kernels, {t.name: t for t in graph.tensors}
    known = {job[1] for job in jobs}
    for us, p in solve(kernel, tensors, sizes, H100, keep):
      with suppress(RejectionError):
        if p.to_text() in known:
          continue
        source = emit_kernel(graph, kernel, p, ugraph_extents(graph, (p,), sizes), H100)
        jobs.append((name, p.to_text(), us, source))

  add(False, warpgroup_points)
  add(False, lambda *_: [(0.0, KernelParams((128, 128), 1, 64, 8, 3))])
  for n in SHARED:
    add(False, partial(fed_points, sharing=(n,)))
  add(False, varied)
  add(False, partial(varied, sharing=(2,), most=2))
  add(True, lambda *given: [f for f in warpgroup_points(*given[:-1], 4 * keep) if f[1].cluster > 1][:keep])
  return jobs


def add_choice(parser):
  parser.add_argument("--only", default="", help="numbers whose text has this (a regular expression)")
  parser.add_argument("--without", default="", help="none whose text has this")


def chosen(name, args):
  """Those of ``candidates`` that are asked for."""
  every = [j for j in candidates(name, args.keep) if re.search(args.only, j[1])]
  return [j for j in every if not args.without or not re.search(args.without, j[1])]


def compiled(job):
  try:
    return (*job, compile_cubin(job[3].text, H100, name=job[3].name))
  except RejectionError as error:
    return (*job, f"{error.rejection.code} {error.rejection.reason}")


def arms_of_torch(torch, kind, x, w, i2, out, lt):
  """The bare product, and the same as the kernels'."""
  functional, found = torch.nn.functional, {"cublas": lambda: torch.matmul(x, w.T, out=out)}
  if kind == "gelu":
    between = torch.empty_like(out)

    def eager():
      torch.addmm(i2, x, w.T, out=between)
      torch.ops.aten.gelu.out(between, out=out)

    found["torch"] = eager
  if kind == "residual":
    found["torch"] = lambda: torch.addmm(i2, x, w.T, out=out)
  found |= arms_of_lt(torch, kind, x, w, i2) if lt else {}
  want = x.double() @ w.double().T
  if kind:
    want = functional.gelu(want + i2.double()) if kind == "gelu" else want + i2.double()
  return found, want


def arms_of_lt(torch, kind, x, w, i2):
  """The bare product and that with its epilogue, by each of cuBLASLt's heuristics."""
  epilogue = {"gelu": {"bias": i2, "gelu": True}, "residual": {"residual": i2}}.get(kind)
  found, stream = {}, torch.cuda.current_stream().cuda_stream
  for name, how in (("lt", {}), *((("lt epilogue", epilogue),) if epilogue else ())):
    out = torch.empty(x.shape[0], w.shape[0], device="cuda", dtype=x.dtype)
    try:
      every = cublaslt.ways(torch, x, w, out, stream, **how)
    except (OSError, RuntimeError, AttributeError, TypeError) as error:
      print(f"{name}: {error}", flush=True)
      continue
    want = torch.matmul(x, w.T) if not how else None
    for at, run in enumerate(every):
      with suppress(RuntimeError):  # one that the heuristics name and this GPU does not run
        run()
        if want is None or (out - want).abs().max() <= MOST_WRONG["bf16"] * want.abs().max():
          found[f"{name} {at}"] = run
  return found


def timed(name, jobs, gpu, torch, lt=True):
  """The record of a case."""
  rows, depth, columns, kind, dtype = CASES[name]
  own = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
  record = {"flop": 2 * rows * depth * columns, "us": {}, "refused": {}, "error": {}, "predicted_us": {}}
  with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    torch.manual_seed(0)
    draw = partial(torch.randn, device="cuda")
    x, w = draw(rows, depth).to(own), (draw(columns, depth) * depth**-0.5).to(own)
    i2 = draw(columns).to(own) if kind == "gelu" else draw(rows, columns).to(own)
    y, out = (torch.empty(rows, columns, device="cuda", dtype=own) for _ in range(2))
    peers, want = arms_of_torch(torch, kind, x, w, i2, out, lt)
    for f in [f for f in peers.values() for _ in range(3)]:
      f()
    gpu.wait()
    arms = {n: gpu.capture(f) for n, f in peers.items()}
    at = {"i0": x.data_ptr(), "i1": w.data_ptr(), "i2": i2.data_ptr(), "o0": y.data_ptr()}
    for _, label, predicted_us, source, cubin in jobs:
      if isinstance(cubin, str):
        record["refused"][label] = cubin
        continue
      launch = partial(gpu.launch_source, gpu.load(cubin, source.name, source.smem_bytes), source, at)
      gpu.poison(at["o0"], 2 * rows * columns)
      launch()
      gpu.wait()
      error = ((y.double() - want).abs().max() / want.abs().max()).item()
      record["error"][label], record["predicted_us"][label] = error, round(predicted_us, 2)
      if not error < MOST_WRONG[dtype]:
        record["refused"][label] = f"wrong by {error}"
      else:
        arms[label] = gpu.capture(launch)
  record["us"] = arm_times(gpu, arms)
  return record


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("out")
  parser.add_argument("cases", nargs="*", default=list(CASES))
  parser.add_argument("--keep", type=int, default=12)
  parser.add_argument("--no-lt", action="store_true", help="torch's cuBLAS only")
  add_choice(parser)
  args = parser.parse_args()
  with ProcessPoolExecutor(max(1, len(sched_getaffinity(0)) - 2)) as pool:
    found = list(pool.map(partial(chosen, args=args), args.cases))
    made = [pool.map(compiled, own) for own in found]  # while others are timed
    import torch

    from mirage_onnx.tune.device import Gpu

    result = {**facts(), "cases": {}}
    gpu = Gpu(H100)
    for name, jobs in zip(args.cases, made, strict=True):
      with gpu.scope():
        record = timed(name, list(jobs), gpu, torch, not args.no_lt)
      result["cases"][name] = record
      theirs = {n: v[0] for n, v in record["us"].items() if n == "cublas" or re.match(r"lt \d", n)}
      cublas, ours = min(theirs.values()), {k: v[0] for k, v in record["us"].items() if "wgmma" in k}
      for kind in ("late=1", "late=2", "cluster=[24].*teams", "teams", ""):
        own = {k: v for k, v in ours.items() if re.search(kind, k)}
        best = min(own, key=own.get, default=None)
        if best:
          ratio = f"ours {own[best]} ({cublas / own[best]:.3f}), {best}"
          print(f"{name}: cublas {cublas} (torch {theirs['cublas']}), {ratio}", flush=True)
      with open(args.out, "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
  main()
