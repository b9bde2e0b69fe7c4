"""The arms of one case on the GPU: ours, onnxruntime, torch and a pure read, timed in turn.

Needs torch and onnxruntime-gpu; ``run.py`` imports it when there is a GPU.
"""

import torch  # isort: skip  (before onnxruntime, which needs the CUDA libraries that it loads)

import gc
import time
from functools import partial

import numpy as np
import onnx
from arm import Arm, Arms
from cases import ROWS
from optimized_model import Predicted, summary
from ort_fused import fused_layer, fused_session
from protocol import gpu_state, graph_nodes, relative_error, statistics, streaming_limit
from speed_table import COMPILED, FUSED, GRAPH, LIMIT, MEASURED, ORT, PREDICTED
from torch_peers import library, plain

import mirage_onnx
from mirage_onnx.tune.ort_run import OrtRun

SAMPLES = 41
#: Largest relative L2 error against float64: fp16 rounding in and between operators.
TOLERANCE = 2e-3


def ort_arm(gpu, model, case, *, cuda_graph, make=None):
  """A session with IOBinding: its own CUDA graph, or its run captured by us.

  A replay of the former may wait for the GPU before it returns.
  """
  run = OrtRun(gpu, str(model), case.feeds, make=make, cuda_graph=cuda_graph)
  call = run if cuda_graph else run.captured()

  def result():
    for out in run.outputs.values():
      out.update_inplace(np.full(out.shape(), np.nan, np.float16))
    torch.cuda.synchronize()
    call()
    return list(run.results().values())

  note = {}
  if not cuda_graph:
    note["nodes"] = graph_nodes(gpu, run)
  if make is not None:
    launches = mirage_onnx.launches(run.session)
    if not all(launches.values()):
      raise RuntimeError(f"a kernel of ours did not run: {launches}")
    note["custom_nodes"] = len(launches)
  return Arm(call, result, note)


def both_graphs(arms, name, gpu, model, case, make=None):
  for cuda_graph, suffix in ((True, GRAPH), (False, "")):
    arms.add(name + suffix, partial(ort_arm, gpu, model, case, cuda_graph=cuda_graph, make=make))


def torch_arm(call, **note):
  """A CUDA graph of ``call``, captured on the current stream."""
  for _ in range(3):
    call()
  torch.cuda.synchronize()
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
    found = call()
  outputs = found if isinstance(found, tuple) else (found,)

  def result():
    for out in outputs:
      out.fill_(float("nan"))
    graph.replay()
    return [out.cpu().numpy() for out in outputs]

  return Arm(graph.replay, result, note, kept=call)


def run_case(row, size, gpu, folder, seconds, *, compiled):
  """All arms of a case; those that no time is left for are named."""
  began = time.monotonic()
  arms = Arms(began + seconds)
  case = ROWS[row].make(**size)
  exact = case.exact()
  source = folder / f"{row}.onnx"
  onnx.save(case.model, source)
  print(f"{case.name}: made in {time.monotonic() - began:.1f} s", flush=True)
  choices = {}
  with torch.no_grad(), gpu.scope():
    predicted = Predicted(source, seconds / 2)
    try:
      _sessions(arms, choices, gpu, source, case, predicted)
    finally:
      predicted.close()
    _peers(arms, row, case, gpu, size, compiled=compiled)
    result = _timed(arms, gpu, exact)
  gc.collect()
  torch.cuda.empty_cache()
  return {
    "name": case.name, "bytes": case.bytes, "seconds": round(time.monotonic() - began, 1),
    "optimize": choices, **result,
  }  # fmt: skip


def _sessions(arms, choices, gpu, source, case, predicted):
  """Ours and onnxruntime's, and the pure read."""
  ours = source.with_name(f"{source.stem}_measured.onnx")
  make = mirage_onnx.InferenceSession

  def measured():
    budget = arms.seconds_left / 2
    found = mirage_onnx.optimize(source, ours, target="local", budget_s=budget)
    choices["measured"] = summary(found.report, ours)

  arms.run("optimize --target local", measured)
  if "measured" in choices:
    both_graphs(arms, MEASURED, gpu, ours, case, make)
  both_graphs(arms, ORT, gpu, source, case)

  def limit():
    call, shape = streaming_limit(gpu, case.bytes)
    return Arm(call, None, {"launch": shape})

  arms.add(LIMIT, limit)

  def wait():
    choices["predicted"] = summary(predicted.report(arms.seconds_left), predicted.model)

  arms.run("optimize --target h200", wait)
  if "predicted" in choices:
    both_graphs(arms, PREDICTED, gpu, predicted.model, case, make)


def fused_arm(gpu, case, size):
  """onnxruntime's own fused operators, as its own CUDA graph."""
  model, feeds = fused_layer(case, size["heads"], size["kv_heads"])
  provider = {"user_compute_stream": str(gpu.stream_address), "enable_cuda_graph": "1"}
  call, result = fused_session(
    model.SerializeToString(), feeds, [("CUDAExecutionProvider", provider)], "cuda"
  )
  return Arm(call, result)


def _peers(arms, row, case, gpu, size, *, compiled):
  if row == "llama_layer":
    arms.add(FUSED + GRAPH, lambda: fused_arm(gpu, case, size))
  tensors = {name: torch.from_numpy(np.array(x)).cuda() for name, x in (case.weights | case.feeds).items()}

  def libraries():
    for name, call in library(row, tensors).items():
      arms.add(name, partial(torch_arm, call))

  arms.run("libraries of torch", libraries)

  def compile_plain():
    torch._dynamo.reset()
    program = torch.compile(plain(row), mode="max-autotune-no-cudagraphs")
    return torch_arm(lambda: program(tensors), mode="CUDA graph by us")

  if compiled:
    arms.add(COMPILED, compile_plain)


def _timed(arms, gpu, exact):
  rows = {}
  for name, arm in arms.made.items():
    row = dict(arm.note)
    if arm.result is not None:
      try:
        pairs = zip(arm.result(), exact.values(), strict=True)
        error = max(relative_error(got, want) for got, want in pairs)
      except Exception as problem:
        arms.failed.append(f"{name}: {type(problem).__name__}: {str(problem)[:500]}")
        continue
      row["error"] = float(f"{error:.3g}")
      if not error <= TOLERANCE:
        row["wrong"] = True
        arms.failed.append(f"{name}: error {error:.1e} against float64")
    rows[name] = row
  before = gpu_state()
  times = gpu.time_us([arms.made[name].call for name in rows], SAMPLES)
  for row, samples in zip(rows.values(), times, strict=True):
    row |= statistics(samples)
  return {
    "gpu": [before, gpu_state()], "arms": rows, "failed": arms.failed,
    "left_out": arms.left_out, "absent": arms.absent,
  }  # fmt: skip
