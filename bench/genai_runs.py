"""Runs of a decoder of genai's builder, its caches one buffer each, and what of it kernels have replaced."""

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx

#: Greedy tokens behind a prompt.
TOKENS = 16


class Decoder:
  """A session whose caches are one buffer each."""

  def __init__(self, path, c, batch, room, stream=None, make=None, profile=None):
    """``stream``: of the GPU; without it on the CPU. ``profile``: where onnxruntime writes its own."""
    import onnxruntime as ort

    self.ort, self.c, self.batch = ort, c, batch
    self.device = "cuda" if stream else "cpu"
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # what a step has for the CPU are single numbers
    if profile:
      options.enable_profiling, options.profile_file_prefix = True, str(profile)
    own = [("CUDAExecutionProvider", {"user_compute_stream": str(stream)})] if stream else []
    providers = [*own, "CPUExecutionProvider"]
    self.session = (make or ort.InferenceSession)(str(path), options, providers=providers)
    self.names = [i.name for i in self.session.get_inputs()]
    # One array each: on a CPU an OrtValue is the array that it is made of.
    shape = (batch, c.own, room, c.size)
    self.caches = {n: self._value(np.zeros(shape, np.float16)) for n in self.names if n.startswith("past")}
    self.options = ort.RunOptions()
    self.options.add_run_config_entry("disable_synchronize_execution_providers", "1" if stream else "0")

  def _value(self, x):
    return self.ort.OrtValue.ortvalue_from_numpy(x, self.device, 0)

  def bound(self, ids, total):
    """A run on ``ids``, the last of ``total`` tokens, and where its logits are."""
    ids = np.asarray(ids, np.int64)
    binding = self.session.io_binding()
    given = {"input_ids": self._value(ids), **self.caches}
    given["attention_mask"] = self._value(np.ones((self.batch, total), np.int64))
    for name, x in given.items():
      binding.bind_ortvalue_input(name, x)
    logits = self._value(np.zeros((*ids.shape, self.c.vocabulary), np.float16))
    binding.bind_ortvalue_output("logits", logits)
    for name, x in self.caches.items():
      binding.bind_ortvalue_output(name.replace("past_key_values", "present"), x)

    def run(kept=given):
      self.session.run_with_iobinding(binding, self.options)

    return run, logits

  def greedy(self, ids, wait):
    """Tokens behind a prompt, and the logits of it and of the last step."""
    found, total, first = [], ids.shape[1], None
    for _ in range(TOKENS):
      run, logits = self.bound(ids, total)
      run()
      wait()
      last = logits.numpy()[:, -1].astype(np.float32)
      first = last if first is None else first
      ids, total = last.argmax(-1)[:, None], total + 1
      found.append(ids[:, 0].tolist())
    return found, first, last

  def fill(self, rng):
    few = rng.standard_normal(1 << 22, np.float32).astype(np.float16)
    for x in self.caches.values():
      x.update_inplace(np.resize(few, x.shape()))


def replaced_share(original, made):
  """The share of the weights' bytes that kernels of ours read in a step, of all that a step reads."""
  sizes = {t.name: np.prod(t.dims) * (1 if t.data_type == 2 else 2) for t in (*original.graph.initializer,)}
  sizes |= {t.name: np.prod(t.dims) * (1 if t.data_type == 2 else 2) for t in made.graph.initializer}
  holder = next((n for n in made.graph.node if n.op_type == "If"), None)
  graph = holder.attribute[0].g if holder else made.graph
  left = [n for n in graph.node if not n.domain.startswith("ai.mirage")]
  tables = {"model.embed_tokens.weight", "cos_cache", "sin_cache"}  # of which a step reads a row
  read = {x for n in original.graph.node for x in n.input if x in sizes} - tables
  kept = {x for n in left for x in n.input if x in sizes} - tables
  whole = sum(sizes[x] for x in read)
  return 1 - sum(sizes[x] for x in kept) / whole, dict(Counter(n.op_type for n in graph.node)), int(whole)


def step_alone(path, to):
  """The branch of steps of a written model as a model of its own, ``to``, beside the same weights.

  A CUDA graph can be captured of it, whatever onnxruntime does for an ``If``. None where the model has no
  branch: nothing was replaced.
  """
  model = onnx.load(path, load_external_data=False)
  holder = model.graph.node[-1]
  branch = next((a.g for a in holder.attribute if a.name == "then_branch"), None)
  if branch is None:
    return None
  own = dict(zip((o.name for o in branch.output), holder.output, strict=True))
  constants = [n for n in model.graph.node if n.op_type == "Constant"]
  del model.graph.node[:]
  model.graph.node.extend(constants)
  for n in branch.node:
    copy = model.graph.node.add()
    copy.CopyFrom(n)
    copy.input[:] = [own.get(i, i) for i in n.input]
    copy.output[:] = [own.get(o, o) for o in n.output]
  model.graph.initializer.extend(branch.initializer)
  model.graph.value_info.extend(branch.value_info)
  onnx.save(model, to)
  return to


def kernel_times(run, wait, runs=5):
  """Kernel -> (launches of one run, microseconds of one run), slowest first; by CUPTI."""
  from torch.profiler import ProfilerActivity, profile

  with profile(activities=[ProfilerActivity.CUDA]) as seen:
    for _ in range(runs):
      run()
    wait()
  found = [(e.key[:120], e.count / runs, round(e.device_time_total / runs, 2)) for e in seen.key_averages()]
  return sorted(found, key=lambda f: -f[2])


def timeline(call, wait, runs=4):
  """Kernels of the last of some runs as they lay in time: (name, began, us), from the first one's beginning.

  By CUPTI; of a CUDA graph, too. Kernels that are launched early count from their first block on.
  """
  from torch.autograd import DeviceType
  from torch.profiler import ProfilerActivity, profile

  with profile(activities=[ProfilerActivity.CUDA]) as seen:
    for _ in range(runs):
      call()
      wait()
  of_gpu = [e for e in seen.events() if e.device_type == DeviceType.CUDA]
  ordered = sorted((e.time_range.start, e.time_range.end, e.name[:80]) for e in of_gpu)
  last = ordered[-(len(ordered) // runs) :]
  return [(name, round(a - last[0][0], 2), round(b - a, 2)) for a, b, name in last]


def host_us(runs, wait, samples=200):
  """Name -> microseconds that the thread which starts a run computes for it, whatever else the cores do.

  The median; the GPU is waited for between runs, and that does not count.
  """
  found = {name: [] for name in runs}
  for _ in range(samples):
    for name, run in runs.items():
      wait()
      began = time.thread_time_ns()
      run()
      found[name].append(time.thread_time_ns() - began)
  return {name: round(float(np.median(us)) / 1e3, 1) for name, us in found.items()}


def host_times(session, run, wait, runs=30):
  """Node -> (runs of it, microseconds of the host in one run of the model), by onnxruntime's own profile."""
  for _ in range(runs):
    run()
    wait()
  events = json.loads(Path(session.end_profiling()).read_text())
  whole = [e for e in events if e.get("name") == "model_run"][runs // 2 :]
  begin, count, found = whole[0]["ts"], len(whole), Counter()
  for e in events:
    if e.get("cat") in ("Node", "Session") and e["ts"] >= begin:
      found[e["name"].removesuffix("_kernel_time")] += e["dur"]
  return sorted(((n, round(us / count, 1)) for n, us in found.items()), key=lambda f: -f[1])
