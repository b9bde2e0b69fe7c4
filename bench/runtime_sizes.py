"""Attention whose batch and length only a run knows, beside the same kernels of known sizes.

    python bench/runtime_sizes.py find FILE          programs and numbers that the search finds
    python bench/runtime_sizes.py run FILE RESULTS   on a GPU: right, and how long each takes

softmax(q k / 8 + mask) v over 12 heads of 64 elements, heads before rows, the result in rows of 768
elements; ``mask`` is added, one number for each key of a sequence. Keys lie as rows or as columns, which
only such lengths let begin at 16 bytes that are multiples of 8. Every size is checked against float64, what
was there before is NaN; times are those of ``Gpu.time_us`` (cold L2), of the text for any size, of
one made for this size with the same numbers, and of torch's scaled_dot_product_attention.
"""

import json
import sys
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.ir import KernelParams, parse_ugraph, print_ugraph, ugraph_extents
from mirage_onnx.superopt.renumber import KnownGraph, renumber
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.target import H200

HEADS, WIDTH = 12, 64
#: Batch and length: declared for the search, and measured.
DECLARED = (8, 512)
SIZES = ((8, 128), (8, 512), (8, 77), (1, 128), (1, 77))
PROGRAMS, NUMBERS, SAMPLES = 2, 3, 11
#: Keys as columns, a mask.
CASES = ((False, True), (True, True), (False, False))


def model(columns, masked):
  from small_models import Net

  net = Net(np.float16, seed=5)
  q, k, v = (
    net.input("batch", HEADS, *((WIDTH, "seq") if turned else ("seq", WIDTH)))
    for turned in (False, columns, False)
  )
  logits = net.Mul(net.MatMul(q, k if columns else net.Transpose(k, perm=[0, 1, 3, 2])), WIDTH**-0.5)
  if masked:
    logits = net.Add(logits, net.input("batch", 1, 1, "seq"))
  y = net.MatMul(net.Softmax(logits), v)
  return net.model(net.Reshape(net.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, HEADS * WIDTH]))


def find(path):
  from small_models import largest, prover

  from mirage_onnx.importer import import_model, load_model
  from mirage_onnx.match.candidates import find_candidates
  from mirage_onnx.match.cuts import TIMED
  from mirage_onnx.superopt.search import search

  found = []
  for columns, masked in CASES:
    built = model(columns, masked)
    declared = dict(zip(("batch", "seq"), DECLARED, strict=True))
    region = largest(find_candidates(import_model(load_model(built)), TIMED, sizes=declared)).region
    assert len(region.inputs) == 3 + masked, region.structure
    scope = SearchScope.of(H200, SearchBound(), region)
    result = search(region, H200, prover(), bound=scope.bound, space=scope.space)
    texts = list(dict.fromkeys(print_ugraph(v.candidate.ugraph) for v in result.candidates))[:PROGRAMS]
    given = [v.name for v in built.graph.input]
    entry = {
      "columns": columns,
      "masked": masked,
      "inputs": {i.name: "qkvm"[given.index(i.source.name)] for i in region.inputs},
      "runtime": {a: m.text for a, m in region.runtime.items()},
      "extents": {a: n for a, n in region.extents.items() if a not in region.runtime},
      "programs": [],
    }
    sizes = {}
    for axis, m in region.runtime.items():
      ((_, d),) = m.dims
      sizes[axis] = "batch" if d == 0 else "seq"
    entry["sizes"] = sizes
    for text in texts:
      numbers = {}
      for batch, seq in ((8, 512), (8, 128), (1, 128)):
        at = {**region.extents, **{a: batch if s == "batch" else seq for a, s in sizes.items()}}
        for ranked in renumber([KnownGraph.of(text)], at, H200, SearchBound()):
          for c in ranked.candidates[:NUMBERS]:
            numbers[" ; ".join(p.to_text() for p in c.params)] = [p.to_text() for p in c.params]
      entry["programs"].append({"text": text, "numbers": list(numbers.values())})
    found.append(entry)
    print(columns, masked, region.structure, sizes, [len(p["numbers"]) for p in entry["programs"]])
  Path(path).write_text(json.dumps(found, indent=1))


def sources_of(entry, program, numbers, sizes=None):
  """The kernels for any size, or for these."""
  graph = parse_ugraph(program["text"])
  runtime = frozenset(entry["sizes"]) if sizes is None else frozenset()
  batch, seq = sizes or DECLARED
  extents = {**entry["extents"], **{a: batch if s == "batch" else seq for a, s in entry["sizes"].items()}}
  params = tuple(map(KernelParams.from_text, numbers))
  every = ugraph_extents(graph, params, extents)
  return [emit_kernel(graph, k, p, every, H200, runtime) for k, p in zip(graph.kernels, params, strict=True)]


def extents_at(entry, sizes):
  return {**entry["extents"], **{a: sizes[s == "seq"] for a, s in entry["sizes"].items()}}


def draw(sizes, columns, masked):
  rng, (batch, seq) = np.random.default_rng(sizes[0] * 1000 + sizes[1]), sizes
  given = {n: rng.standard_normal((batch, HEADS, seq, WIDTH)).astype(np.float16) for n in "qkv"}
  if columns:
    given["k"] = np.ascontiguousarray(given["k"].swapaxes(2, 3))
  if masked:
    given["m"] = np.where(rng.random(sizes) < 0.2, -1e4, rng.standard_normal(sizes)).astype(np.float16)
  return given


def reference(torch, given, sizes, columns):
  q, k, v = (torch.tensor(given[n], device="cuda").double() for n in "qkv")
  k = k.transpose(2, 3) if columns else k
  logits = q @ k.transpose(-1, -2) * WIDTH**-0.5
  if "m" in given:
    logits = logits + torch.tensor(given["m"], device="cuda").double()[:, None, None, :]
  y = torch.softmax(logits, -1) @ v
  return y.transpose(1, 2).reshape(*sizes, HEADS * WIDTH).cpu().numpy()


def run(path, out):
  import torch

  from mirage_onnx.tune.device import Gpu, present_gpu

  entries = json.loads(Path(path).read_text())
  gpu = Gpu(H200)
  jobs, places = [], {}
  for e, entry in enumerate(entries):
    for p, program in enumerate(entry["programs"]):
      for n, numbers in enumerate(program["numbers"]):
        for sizes in (None, *SIZES):
          try:
            made = sources_of(entry, program, numbers, sizes)
          except Exception as error:
            print("refused", e, p, n, sizes, error)
            continue
          places[e, p, n, sizes] = range(len(jobs), len(jobs) + len(made))
          jobs += made
  print(len(jobs), "kernels", flush=True)
  images = compile_many(jobs, H200, 16)
  results = {
    "gpu": str(present_gpu()),
    "torch": torch.__version__,
    "heads": HEADS,
    "width": WIDTH,
    "rows": [],
  }
  stream = torch.cuda.ExternalStream(gpu.stream_address)
  for e, entry in enumerate(entries):
    for sizes in SIZES:
      results["rows"] += measure(torch, gpu, stream, entry, e, sizes, places, jobs, images)
      Path(out).write_text(json.dumps(results, indent=1))
  wrong = [r for r in results["rows"] if r["error"] is not None and not r["error"] < 2e-3]
  print("wrong:", wrong)
  return bool(wrong)


def measure(torch, gpu, stream, entry, e, sizes, places, jobs, images):
  masked, columns = entry["masked"], entry["columns"]
  given = draw(sizes, columns, masked)
  want = reference(torch, given, sizes, columns)
  case = {"columns": columns, "masked": masked, "batch": sizes[0], "seq": sizes[1]}
  rows, arms = [], []
  with gpu.scope():
    buffers = {n: gpu.put(given[n]) for n in given}
    for p, program in enumerate(entry["programs"]):
      graph = parse_ugraph(program["text"])
      for n, numbers in enumerate(program["numbers"]):
        for kind, key in (("any", None), ("fixed", sizes)):
          where = places.get((e, p, n, key), ())
          if not where or not all(isinstance(images[i], Cubin) for i in where):
            print("left out", e, p, n, key, [images[i] for i in where if not isinstance(images[i], Cubin)])
            continue
          every = ugraph_extents(graph, tuple(map(KernelParams.from_text, numbers)), extents_at(entry, sizes))
          row, arm = check(gpu, entry, graph, every, [(jobs[i], images[i]) for i in where], buffers, want)
          rows.append({**case, "arm": kind, "program": p, "numbers": numbers, **row})
          arms.append(arm)
    q, k, v = (torch.tensor(given[n], device="cuda") for n in "qkv")
    k = k.transpose(2, 3) if columns else k
    mask = torch.tensor(given["m"], device="cuda")[:, None, None, :] if masked else None
    attend = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, attn_mask=mask)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
      for _ in range(3):
        attend()
    torch.cuda.synchronize()
    replay = torch.cuda.CUDAGraph()
    with torch.cuda.graph(replay, stream=stream):
      attend()

    def torch_arm():
      with torch.cuda.stream(stream):
        replay.replay()

    rows.append({**case, "arm": "torch sdpa", "program": None, "numbers": None, "error": None})
    times = gpu.time_us([*arms, torch_arm], SAMPLES)
    for row, own in zip(rows, times, strict=True):
      row["us"] = round(float(np.median(own)), 3)
  best = {
    a: min((r["us"] for r in rows if r["arm"] == a), default=None) for a in ("any", "fixed", "torch sdpa")
  }
  print(case, best, "worst error", max(r["error"] or 0 for r in rows), flush=True)
  return rows


def check(gpu, entry, graph, extents, kernels, buffers, want):
  """The largest error relative to the largest output, and what runs the kernels again."""
  at = {**extents, **{name: buffers[n] for name, n in entry["inputs"].items()}}
  for t in graph.tensors:
    if t.name not in at:
      size = prod(extents[a] for a in t.axes) * t.dtype.size_bytes
      at[t.name] = gpu.empty(size)
      gpu.poison(at[t.name], size)
  (output,) = (t for t in graph.tensors if t.role == "output")
  loaded = [(gpu.load(image, s.name, s.smem_bytes), s) for s, image in kernels]

  def work():
    for function, source in loaded:
      gpu.launch_source(function, source, at)

  work()
  got = gpu.get(at[output.name], want.shape, output.dtype.numpy).astype(np.float64)
  error = np.abs(got - want).max() / np.abs(want).max()
  return {"error": float(error) if np.isfinite(error) else 1e9}, gpu.capture(work)


if __name__ == "__main__":
  sys.exit(find(sys.argv[2]) if sys.argv[1] == "find" else run(*sys.argv[2:4]))
