"""Models as onnxruntime sessions side by side: times of whole runs, outputs, launches."""

import time

import numpy as np
import onnx
import onnxruntime as ort
from whole_model import feeds_of

import mirage_onnx
from mirage_onnx.custom_op.widen import widened

#: Microseconds of a sample, about, and how many runs at most.
SAMPLE_US, MOST_CALLS = 8000.0, 50
FP32_BYTES = 1 << 29
DTYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(int64)": np.int64}


class Arms:
  """Sessions of a model and of others beside it, with bound inputs and outputs."""

  def __init__(self, original, *others, cpu=False):
    self.cpu, self.model, self.refused = cpu, original, ""
    self.feeds = feeds_of(original)
    for graph in (False,) if cpu else (True, False):
      try:
        self.graph, self.arms = graph, [self._session(p, graph) for p in (original, *others)]
        break
      except Exception as error:  # a node on the CPU cannot be captured
        if not graph:
          raise
        self.refused = f"{type(error).__name__}: {str(error)[:200]}"
    once_us = max(self._sample(arm, 5)[0] for arm in self.arms)
    self.calls = int(np.clip(SAMPLE_US / once_us, 3, MOST_CALLS))

  def _session(self, path, graph, **more):
    options, run_options = ort.SessionOptions(), ort.RunOptions()
    options.log_severity_level = 3
    if self.cpu:
      session = mirage_onnx.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
      stream = None
    else:
      import torch

      stream = torch.cuda.Stream()
      cuda = {"user_compute_stream": str(stream.cuda_stream), "enable_cuda_graph": str(int(graph)), **more}
      run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
      providers = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
      session = mirage_onnx.InferenceSession(str(path), options, providers=providers)
      assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
    binding, device = session.io_binding(), "cpu" if self.cpu else "cuda"
    kept = [ort.OrtValue.ortvalue_from_numpy(x, device, 0) for x in self._fit(session).values()]
    for name, value in zip(self._fit(session), kept, strict=True):
      binding.bind_ortvalue_input(name, value)
    for x in session.get_outputs():
      value = ort.OrtValue.ortvalue_from_shape_and_type(list(x.shape), DTYPES[x.type], device, 0)
      binding.bind_ortvalue_output(x.name, value)
    arm = (session, lambda: session.run_with_iobinding(binding, run_options), stream, binding, kept)
    for _ in range(4):  # allocations, the capture
      arm[1]()
    self._wait()
    return arm

  def _fit(self, session):
    """The inputs in the types that a session wants (fp32 of a widened model)."""
    wide = {i.name for i in session.get_inputs() if i.type == "tensor(float)"}
    return {n: x.astype(np.float32) if n in wide else x for n, x in self.feeds.items()}

  def _wait(self):
    if not self.cpu:
      import torch

      torch.cuda.synchronize()

  def _sample(self, arm, calls):
    """Microseconds of a run: on the GPU, and what the host took to start it."""
    _, call, stream, *_ = arm
    call()
    if self.cpu:
      start = time.perf_counter()
      for _ in range(calls):
        call()
      took = (time.perf_counter() - start) * 1e6 / calls
      return took, took
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record(stream)
    start = time.perf_counter()
    for _ in range(calls):
      call()
    host = (time.perf_counter() - start) * 1e6 / calls
    events[1].record(stream)
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) * 1e3 / calls, host

  def times(self, rounds):
    """(arms, rounds) of microseconds, and the host's; the first goes first in every other round."""
    for arm in self.arms:  # clocks up
      self._sample(arm, self.calls)
    found = np.empty((2, len(self.arms), rounds))
    for r in range(rounds):
      order = range(len(self.arms)) if r % 2 == 0 else reversed(range(len(self.arms)))
      for k in order:
        found[:, k, r] = self._sample(self.arms[k], self.calls)
    return found

  def outputs(self):
    self._wait()
    return [[np.float64(v.numpy()) for v in binding.get_outputs()] for _, _, _, binding, _ in self.arms]

  def launches(self):
    return mirage_onnx.launches(self.arms[1][0])

  def fp32(self):
    """The outputs of the original in fp32; None where that does not fit into one message."""
    weights = self.model.with_name("weights.bin")
    if (weights.stat().st_size if weights.is_file() else self.model.stat().st_size) > FP32_BYTES:
      return None
    wide = widened(onnx.load(self.model, load_external_data=False), self.model.parent)
    path = self.model.with_name("fp32.onnx")
    onnx.save(wide, path)
    _, call, _, binding, _ = self._session(path, False, use_tf32="0")
    call()
    self._wait()
    return [np.float64(v.numpy()) for v in binding.get_outputs()]


def ratio_of(times, draws=4000):
  """First over second, of medians, and the interval that holds 95 % of it over draws of rounds."""
  picks = np.random.default_rng(0).integers(0, times.shape[1], (draws, times.shape[1]))
  first, second = (np.median(t[picks], axis=1) for t in times[:2])
  low, high = np.percentile(first / second, [2.5, 97.5])
  found = (np.median(times[0]) / np.median(times[1]), low, high)
  ratio, *interval = (round(float(x), 4) for x in found)
  return ratio, interval


def worst_difference(got, want):
  """The largest relative L2 difference of an output; infinite where only one of them is finite."""
  worst = 0.0
  for g, w in zip(got, want, strict=True):
    if not np.array_equal(np.isfinite(g), np.isfinite(w)):
      return float("inf")
    g, w = (np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0) for x in (g, w))
    worst = max(worst, float(np.linalg.norm(g - w) / max(np.linalg.norm(w), 1e-30)))
  return float(f"{worst:.3g}")
