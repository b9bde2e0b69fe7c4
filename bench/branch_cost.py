"""What the branch for a decoder's steps costs, part by part: microseconds of a step and of a prompt.

    python bench/branch_cost.py OUT.json [--cpu] [--config llama3_8b_layer] [--bits 4 16] [--work DIR]

Arms: ``flat``, the graph as genai's builder writes it; ``branch``, with its steps apart, as ``optimize``
writes it, but without kernels; ``short``, the same behind a condition of two nodes (wrong in general);
``beside``, flat, with the nodes of the condition. So the condition is ``beside - flat``, the ``If`` what is
left of ``branch - flat``. With ``--cpu`` a decoder so small that what the host does around the nodes is all,
with 4 tokens for a prompt. On a GPU a prompt has 256, and the sum of a mask is timed by itself, as int64 and
by way of floats.
"""

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from genai_graphs import CONFIGS, Config, write
from genai_runs import Decoder, host_us, kernel_times
from protocol import write_text

from mirage_onnx.custom_op.race import rounds_us
from mirage_onnx.importer.steps_apart import ROOM, steps_apart

#: In which a mask is summed; onnxruntime's kernel for int64 adds doubles.
SUMS = {"int64": TensorProto.INT64, "fp32": TensorProto.FLOAT, "double": TensorProto.DOUBLE}
TINY, REPEATS = Config(64, 64, 2, 1, 32, 1, 64, block=32, context=512), 5


def saved(proto, path, nodes, outputs=()):
  """The model with these nodes, and more outputs, beside its weights."""
  made = onnx.ModelProto()
  made.CopyFrom(proto)
  nodes = [*nodes]
  del made.graph.node[:]
  made.graph.node.extend(nodes)
  made.graph.output.extend(outputs)
  onnx.save(made, path)


def arms(folder, room):
  """Name -> file of the arms."""
  flat = onnx.load(folder / "model.onnx", load_external_data=False)
  apart = steps_apart(flat, {"batch_size": 1, ROOM: room})
  *condition, holder = apart.graph.node
  one = helper.make_tensor("", TensorProto.INT64, [1], [1])
  few = [
    helper.make_node("Shape", ["input_ids"], ["few/new"], start=1, end=2),
    helper.make_node("Constant", [], ["few/one"], value=one),
    helper.make_node("Equal", ["few/new", "few/one"], ["few/is_step"]),
  ]
  length = next(n for n in condition if n.op_type == "Shape" and n.input[0] == "attention_mask")
  short = onnx.NodeProto()
  short.CopyFrom(holder)
  short.input[:] = [few[-1].output[0]]
  truth = helper.make_tensor_value_info(condition[-1].output[0], TensorProto.BOOL, [1])
  saved(apart, folder / "branch.onnx", apart.graph.node)
  saved(apart, folder / "short.onnx", [length, *few, short])
  saved(flat, folder / "beside.onnx", [*flat.graph.node, *condition], [truth])
  return {n: folder / f"{n}.onnx" for n in ("model", "branch", "short", "beside")}


def mask_sums(stream, wait):
  """Of masks of 1 and 8 sequences: microseconds of the nodes that make lengths of them."""
  import onnxruntime as ort

  found, device = {}, "cuda" if stream else "cpu"
  info, one = helper.make_tensor_value_info, helper.make_tensor("axis", TensorProto.INT64, [1], [1])
  for batch, length in ((1, 4096), (8, 4096), (1, 32768)):
    runs = {}
    for name, kind in SUMS.items():
      less = helper.make_tensor("less", kind, [1], [1])
      cast = [] if name == "int64" else [helper.make_node("Cast", ["mask"], ["x"], to=kind)]
      nodes = [
        *cast, helper.make_node("ReduceSum", ["x" if cast else "mask", "axis"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "less"], ["y"]),
        helper.make_node("Cast", ["y"], ["lengths"], to=TensorProto.INT32),
      ]  # fmt: skip
      graph = helper.make_graph(
        nodes, "mask", [info("mask", TensorProto.INT64, ["b", "n"])],
        [info("lengths", TensorProto.INT32, None)], [one, less],
      )  # fmt: skip
      model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
      own = [("CUDAExecutionProvider", {"user_compute_stream": str(stream)})] if stream else []
      session = ort.InferenceSession(model.SerializeToString(), providers=[*own, "CPUExecutionProvider"])
      binding, options = session.io_binding(), ort.RunOptions()
      options.add_run_config_entry("disable_synchronize_execution_providers", "1" if stream else "0")
      mask = ort.OrtValue.ortvalue_from_numpy(np.ones((batch, length), np.int64), device, 0)
      binding.bind_ortvalue_input("mask", mask)
      binding.bind_output("lengths", device)

      def run(session=session, binding=binding, options=options, kept=mask):
        session.run_with_iobinding(binding, options)
        wait()

      run()
      runs[name] = run
    us = np.median(rounds_us([*runs.values()]), axis=1)
    row = found[f"{batch}x{length}"] = dict(zip(runs, us.round(1).tolist(), strict=True))
    for name, run in runs.items() if stream else ():
      row[f"{name}_kernels_us"] = round(sum(us for *_, us in kernel_times(run, wait)), 2)
  return found


def measured(folder, c, room, prompt, stream, wait):
  """Of every arm the wall time of a step and of a prompt, and what the host's thread computes for them."""
  write(folder, c)
  rng, row, runs = np.random.default_rng(1), {}, {"step": {}, "prompt": {}}
  for name, path in arms(folder, room).items():
    d = Decoder(path, c, 1, room, stream)
    for kind, new, total in (("step", 1, room // 2), ("prompt", prompt, prompt)):
      run, _ = d.bound(rng.integers(0, c.vocabulary, (1, new)), total)
      for _ in range(3):
        run()
      runs[kind]["flat" if name == "model" else name] = run
  for kind, some in runs.items():
    waited = [lambda run=run: (run(), wait()) for run in some.values()]
    us = np.median([np.median(rounds_us(waited), axis=1) for _ in range(REPEATS)], axis=0)
    row[f"{kind}_us"] = dict(zip(some, us.round(1).tolist(), strict=True))
    row[f"{kind}_host_us"] = host_us(some, wait)
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("out", type=Path)
  parser.add_argument("--cpu", action="store_true")
  parser.add_argument("--config", choices=CONFIGS, default="llama3_8b_layer")
  parser.add_argument("--bits", type=int, nargs="+", default=[4, 16])
  parser.add_argument("--work", type=Path, default=Path("/tmp/branch_cost"))
  args = parser.parse_args()
  stream, wait, scope, of = None, lambda: None, nullcontext(), TINY
  if not args.cpu:
    from mirage_onnx.tune.device import present_target
    from mirage_onnx.tune.measure import gpu_of

    gpu = gpu_of(present_target())
    stream, wait, scope, of = gpu.stream_address, gpu.wait, gpu.scope(), CONFIGS[args.config]
  room, prompt = (512, 4) if args.cpu else (8192, 256)
  record = {"command": "python " + " ".join(sys.argv), "config": "tiny" if args.cpu else args.config}
  with scope:
    record["mask_us"] = mask_sums(stream, wait)
    for bits in args.bits:
      folder = args.work / f"{record['config']}{bits}"
      record[f"{bits} bits"] = measured(folder, replace(of, bits=bits), room, prompt, stream, wait)
      print(json.dumps(record), flush=True)
      write_text(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
  main()
