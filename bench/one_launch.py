"""Several products of the same rows: each in a launch, all in one, and by cuBLAS; cold L2.

    python bench/one_launch.py OUT.json [--keep 6] [CASE ...]

The kernels are those of ``warpgroup_products.py`` with a bias, by what ``superopt/warpgroup_numbers.py``
ranks first; in one launch as ``codegen/tiled/alike.py`` says; each is checked in float64. Peers, of torch:
the bare products one after the other, and one product of all weights together. Needs a Hopper GPU and torch.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from os import sched_getaffinity

from protocol import facts
from torch_arms import arm_times

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, parse_ugraph
from mirage_onnx.superopt.fed_numbers import fed_points
from mirage_onnx.superopt.warpgroup_numbers import warpgroup_points
from mirage_onnx.target import H100

#: rows, depth, columns of each, how many
CASES = {
  "4096x768x768 x3": (4096, 768, 768, 3),
  "3152x768x768 x3": (3152, 768, 768, 3),
  "1500x768x768 x3": (1500, 768, 768, 3),
  "512x768x768 x3": (512, 768, 768, 3),
  "128x768x768 x3": (128, 768, 768, 3),
  "512x4096x1024 x2": (512, 4096, 1024, 2),
}
KERNEL = """kernel k{n} grid={c},a0 cluster=- loop=a1
  %0 = load x imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load w{n} imap={c},- cmap=- fmap=a1 : f16[{c},a1] loop shared
  %2 = matmul[a1] %0 %1 : f32[a0,{c}] loop C_frag
  %3 = acc_sum %2 : f32[a0,{c}] post C_frag
  %4 = load b{n} imap={c},- cmap=- fmap=- : f16[{c}] post column
  %5 = cast %4 : f32[{c}] post column
  %6 = add %3 %5 : f32[a0,{c}] post C_frag
  %7 = cast %6 : f16[a0,{c}] post C_frag
  save y{n} = %7 omap={c},a0
"""
MOST_WRONG = 2e-3


def graph_of(count):
  tensors = "ugraph 1\ntensor x f16[a0,a1] input\n"
  for n in range(count):
    tensors += (
      f"tensor w{n} f16[c{n},a1] weight\ntensor b{n} f16[c{n}] weight\ntensor y{n} f16[a0,c{n}] output\n"
    )
  return parse_ugraph(tensors + "".join(KERNEL.format(n=n, c=f"c{n}") for n in range(count)))


def jobs_of(name, keep):
  """(case, label, sources) of the best numbers, apart and in one launch."""
  rows, depth, columns, count = CASES[name]
  graph, sizes = graph_of(count), {"a0": rows, "a1": depth, **{f"c{n}": columns for n in range(count)}}
  tensors, found = {t.name: t for t in graph.tensors}, []
  wide = {**sizes, "c0": columns * count}  # as many tiles as all together have
  points = [p for of in (sizes, wide) for _, p in warpgroup_points(graph.kernels[0], tensors, of, H100, keep)]
  points += [p for _, p in fed_points(graph.kernels[0], tensors, wide, H100, 3 * keep, (1, 2, 4))]
  for p in dict.fromkeys(points):
    for how, beside in (("apart", False), ("one", True)) if not p.teams else (("one", True),):
      params = (p, *(replace(p, beside=beside) for _ in graph.kernels[1:]))
      found.append((name, f"{how} {p.to_text()}", emit_candidate(Candidate(graph, params), sizes, H100, "k")))
  return found


def compiled(job):
  try:
    return (*job, [compile_cubin(s.text, H100, name=s.name) for s in job[2]])
  except RejectionError as error:
    return (*job, f"{error.rejection.code} {error.rejection.reason}")


def timed(name, jobs, gpu, torch):
  """The record of a case."""
  rows, depth, columns, count = CASES[name]
  record = {"flop": 2 * rows * depth * columns * count, "us": {}, "refused": {}, "error": {}}
  with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    torch.manual_seed(0)
    draw = partial(torch.randn, device="cuda")
    x, w = draw(rows, depth).half(), (draw(count, columns, depth) * depth**-0.5).half()
    b = draw(count, columns).half()
    y, out = (torch.empty(count, rows, columns, device="cuda").half() for _ in range(2))
    whole, wide = w.reshape(-1, depth), torch.empty(rows, count * columns, device="cuda").half()
    want = x.double() @ w.double().transpose(1, 2) + b.double()[:, None]

    def one_by_one():
      for n in range(count):
        torch.matmul(x, w[n].T, out=out[n])

    peers = {"cublas apart": one_by_one, "cublas together": lambda: torch.matmul(x, whole.T, out=wide)}
    for f in [f for f in peers.values() for _ in range(3)]:
      f()
    gpu.wait()
    arms = {n: gpu.capture(f) for n, f in peers.items()}
    at = {"x": x.data_ptr()} | {
      f"{t}{n}": of[n].data_ptr() for n in range(count) for t, of in (("w", w), ("b", b), ("y", y))
    }
    for _, label, sources, cubins in jobs:
      if isinstance(cubins, str):
        record["refused"][label] = cubins
        continue
      loaded = [(gpu.load(c, s.name, s.smem_bytes), s) for c, s in zip(cubins, sources, strict=True)]
      launch = partial(_all, gpu, loaded, at)
      gpu.poison(at["y0"], y.numel() * 2)
      launch()
      gpu.wait()
      error = ((y.double() - want).abs().max() / want.abs().max()).item()
      record["error"][label] = error
      if error < MOST_WRONG:
        arms[label] = gpu.capture(launch)
      else:
        record["refused"][label] = f"wrong by {error}"
  record["us"] = arm_times(gpu, arms)
  return record


def _all(gpu, loaded, at):
  for function, source in loaded:
    gpu.launch_source(function, source, at)


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("out")
  parser.add_argument("cases", nargs="*", default=list(CASES))
  parser.add_argument("--keep", type=int, default=6)
  args = parser.parse_args()
  with ProcessPoolExecutor(len(sched_getaffinity(0))) as pool:
    found = pool.map(jobs_of, args.cases, [args.keep] * len(args.cases))
    jobs = list(pool.map(compiled, [job for own in found for job in own]))
  import torch

  from mirage_onnx.tune.device import Gpu

  result, gpu = facts() | {"cases": {}}, Gpu(H100)
  for name in args.cases:
    with gpu.scope():
      record = timed(name, [j for j in jobs if j[0] == name], gpu, torch)
    result["cases"][name] = record
    us = {k: v[0] for k, v in record["us"].items()}
    best = {how: min((t, k) for k, t in us.items() if k.startswith(how)) for how in ("apart", "one")}
    print(name, {k: t for k, t in us.items() if k.startswith("cublas")}, best, record["refused"], flush=True)
    with open(args.out, "w") as file:
      json.dump(result, file, indent=1)


if __name__ == "__main__":
  main()
