"""Whole models as others run them, beside onnxruntime in the same process on this machine's GPU.

    python3 bench/whole_peers.py [--models NAME ...] [--arms fused compiled] [--total 540] [--out DIR]

``fused``: onnxruntime with the fused operators of its own transformers optimizer (``ops``: how many of each;
with none there is nothing to time). ``compiled``: torch.compile, max-autotune, of the module that the graph
was exported from, with the graph's weights and inputs, captured as one CUDA graph. Timed is as in
``whole.py``: warm runs, arms in turns, onnxruntime among them; ``ratio``: its time over the arm's.
``error``: the largest relative L2 difference of an output from the original's.

Graphs come from ``--graphs`` (``.dev/whole/graphs.zip``), modules from the ``wm_models.py`` beside it
(../shared/whole). A process a model; DIR/whole_peers.jsonl gets a line for every arm, and what is there
already is passed over. bench/whole_table.py takes the lines into the records, and makes columns of the
README's table of them.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from whole_model import TYPES, feeds_of, make, names_in

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RECORD = "whole_peers.jsonl"
ARMS = ("fused", "compiled")
#: Operators that onnxruntime's CUDA provider has, and ONNX does not (or that come out of a fusion).
CONTRIB = "com.microsoft"
NOTHING = "nothing is fused"
#: An output may differ by this much from the original's.
TOLERANCE = 2e-2


def spec_of(o):
  sys.path.insert(0, str(Path(o.graphs).parent))
  import wm_models

  return wm_models, wm_models.MODELS[o.model](False)


def fuse(o, source, path):
  """What onnxruntime's transformers optimizer makes of a model, at ``path``: counts of its operators."""
  from onnxruntime.transformers.optimizer import optimize_model

  _, spec = spec_of(o)
  before = Counter(op for op, domain in _operators(source) if domain == CONTRIB)
  kind = "qwen3" if o.model.startswith("qwen3") else spec.fused_type
  made = optimize_model(
    str(source), kind, num_heads=spec.heads, hidden_size=spec.hidden, opt_level=0, use_gpu=not o.cpu
  )
  found = Counter(n.op_type for n in made.model.graph.node if n.domain == CONTRIB) - before
  if found:
    made.save_model_to_file(str(path), use_external_data_format=True)
  return dict(sorted(found.items()))


def _operators(path):
  import onnx

  return [(n.op_type, n.domain) for n in onnx.load(path, load_external_data=False).graph.node]


class Outputs:
  """The outputs of a module, as those of a session's binding are asked for."""

  def __init__(self, tensors):
    self.tensors = tensors

  def get_outputs(self):
    return [t.cpu() for t in self.tensors]


def filled(torch, wm_models, spec, graphs, folder, device):
  """The module with the weights that ``make`` wrote."""
  import zipfile

  with zipfile.ZipFile(graphs) as z:
    info = json.loads(z.read(f"{spec.name}.json"))
  fill, wm_models.fill = wm_models.fill, lambda module: None
  try:
    module = wm_models.make(spec, device)
  finally:
    wm_models.fill = fill
  every = dict(module.named_parameters(remove_duplicate=False))
  data, taken = np.memmap(folder / "weights.bin", np.uint8, "r"), set()
  for w in info["weights"]:
    flat = data[w["offset"] : w["offset"] + w["bytes"]].view(TYPES[w["dtype"]]).reshape(w["shape"])
    old = every[w["parameter"]]
    # A tied weight that the graph has twice, turned, is two of different numbers here.
    name = next(n for n, p in every.items() if p is old and n not in taken)
    value = torch.from_numpy(np.array(flat)).to(device, old.dtype)
    value = (value.t() if w["fold"] == "T" else value).contiguous()
    owner, _, leaf = name.rpartition(".")
    taken.add(name)
    setattr(module.get_submodule(owner), leaf, torch.nn.Parameter(value.view(old.shape), requires_grad=False))
  tied = {id(every[n]) for n in taken}
  for name, p in every.items():
    if name not in taken and id(p) not in tied:
      p.data.copy_(torch.from_numpy(_inside(folder / "model.onnx", name, tuple(p.shape))))
  return module


def _inside(path, name, shape):
  """A small parameter, which the graph holds itself, perhaps once for each image."""
  import onnx

  graph = onnx.load(path, load_external_data=False).graph
  found = [t for t in graph.initializer if not t.external_data and tuple(t.dims)[1:] == shape[1:] != ()]
  if len(found) != 1:
    raise RuntimeError(f"the graph has no weights for {name}")
  return onnx.numpy_helper.to_array(found[0])[: shape[0]]


def compiled_arm(o, source):
  """(an arm as ``whole_arms`` has them, seconds of the compiler)."""
  import torch

  wm_models, spec = spec_of(o)
  device = "cpu" if o.cpu else "cuda"
  module = filled(torch, wm_models, spec, o.graphs, source.parent, device)
  feeds = feeds_of(source)
  assert list(feeds) == list(spec.inputs), (list(feeds)[:4], list(spec.inputs)[:4])
  inputs = [torch.from_numpy(x).to(device) for x in feeds.values()]
  call = torch.compile(module, **({"backend": "eager"} if o.cpu else {"mode": "max-autotune-no-cudagraphs"}))
  start = time.monotonic()
  with torch.no_grad():
    if o.cpu:
      out = call(*inputs)
      run, stream, kept = (lambda: call(*inputs)), None, (module, inputs)
    else:
      stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
      with torch.cuda.stream(stream):
        for _ in range(3):
          call(*inputs)
      torch.cuda.synchronize()
      with torch.cuda.graph(graph, stream=stream):
        out = call(*inputs)

      def run():
        with torch.cuda.stream(stream):
          graph.replay()

      kept = (module, inputs, graph)
  took = time.monotonic() - start
  for _ in range(4):
    run()
  outputs = Outputs(out if isinstance(out, tuple) else (out,))
  return (None, run, stream, outputs, kept), round(took, 1)


def tell_arms(o):
  """A line of each arm of one model, as soon as it is known: what was timed stays if the next is ended."""
  if not o.cpu:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)

  from whole_arms import Arms

  folder = o.work / o.model
  source, arms = make(o.graphs, o.model, folder), None
  for name in o.arms:
    row = {"model": o.model, "target": name}
    try:
      if name == "fused":
        row["ops"] = fuse(o, source, folder / "fused.onnx")
      if row.get("ops") == {}:  # nothing that would need the GPU
        row["failed"] = NOTHING
      else:
        arms = arms or Arms(source, cpu=o.cpu)
        row |= {"graph": int(arms.graph), "rounds": o.rounds}
        if name == "fused":
          arm = arms._session(folder / "fused.onnx", arms.graph)
        else:
          arm, row["compile_s"] = compiled_arm(o, source)
        row |= timed(arms, arm, o.rounds)
    except Exception as error:  # an arm that fails is no loss of the other
      row["failed"] = f"{type(error).__name__}: {str(error)[-400:]}"
    print("RESULT", json.dumps(row), flush=True)


def timed(arms, arm, rounds):
  """``arm`` beside the original: its figures, and the original's own."""
  from whole_arms import MOST_CALLS, SAMPLE_US, ratio_of, worst_difference

  arms.arms[1:] = [arm]
  arms.calls = int(np.clip(SAMPLE_US / max(arms._sample(a, 5)[0] for a in arms.arms), 3, MOST_CALLS))
  times, host = arms.times(rounds)
  want, got = arms.outputs()
  ratio, interval = ratio_of(times)
  row = {
    "calls": arms.calls, "onnxruntime_us": round(float(np.median(times[0])), 2),
    "us": round(float(np.median(times[1])), 2),
    "quartiles": [round(float(v), 2) for v in np.percentile(times[1], [25, 75])],
    "host_us": round(float(np.median(host[1])), 1), "error": worst_difference(got, want),
  }  # fmt: skip
  if not row["error"] <= TOLERANCE:
    return row | {"failed": f"outputs differ by {row['error']}"}
  return row | {"ratio": ratio, "ratio_95": interval}


def stage(o, model, arms, seconds):
  """The lines of ``arms``, by a process of its own; one that it has told nothing of says why."""
  command = [
    sys.executable, __file__, "--stage", "--models", model, "--arms", *arms, "--graphs", str(o.graphs),
    "--rounds", str(o.rounds), "--work", str(o.work), *(["--cpu"] if o.cpu else []),
  ]  # fmt: skip
  try:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    out, tail = done.stdout, f"exit {done.returncode}: {done.stderr.strip()[-400:]}"
  except subprocess.TimeoutExpired as ended:
    out, tail = (ended.stdout or b"").decode(errors="replace"), f"ended after {seconds:.0f} s"
  rows = [json.loads(line[7:]) for line in out.splitlines() if line.startswith("RESULT ")]
  told = {r["target"] for r in rows}
  return rows + [{"model": model, "target": a, "failed": tail} for a in arms if a not in told]


def facts_of(o):
  if o.cpu:
    return {"cpu": True, "command": " ".join(sys.argv)}
  from importlib import metadata

  from protocol import facts

  found = facts()
  found["versions"]["transformers"] = metadata.version("transformers")
  return {**found, "protocol": "bench/whole_peers.py: whole runs, warm, arms in turns"}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--models", nargs="+", default=[])
  add("--arms", nargs="+", default=list(ARMS), choices=ARMS)
  add("--graphs", default=str(ROOT / ".dev" / "whole" / "graphs.zip"))
  add("--total", type=float, default=540.0, help="seconds of this call")
  add("--each", type=float, default=240.0, help="seconds of a model")
  add("--rounds", type=int, default=41)
  add("--out", type=Path, default=Path("out"))
  add("--work", type=Path, default=Path("/tmp/whole_peers"))
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--stage", action="store_true", help=argparse.SUPPRESS)
  o = parser.parse_args()
  if o.stage:
    o.model = o.models[0]
    tell_arms(o)
    return 0
  end, record, failed = time.monotonic() + o.total, o.out / RECORD, 0
  o.out.mkdir(parents=True, exist_ok=True)
  known = set()
  if record.is_file():
    known = {(r["model"], r["target"]) for r in map(json.loads, record.read_text().splitlines())}
  facts = facts_of(o)
  for model in o.models or names_in(o.graphs):
    arms = [a for a in o.arms if (model, a) not in known]
    left = min(o.each, end - time.monotonic())
    if arms and left < 20:
      print(f"{model}: no time left", flush=True)
      failed = 1
      continue
    for row in stage(o, model, arms, left) if arms else ():
      failed |= row.get("failed", NOTHING) != NOTHING
      print(json.dumps(row), flush=True)
      with record.open("a") as file:
        file.write(json.dumps({**row, **facts}) + "\n")
  return int(failed)


if __name__ == "__main__":
  sys.exit(main())
