"""A decoder as onnxruntime-genai's builder writes it: onnxruntime's own operators against ours, one token.

    python3 bench/genai_decoder.py [--out DIR] [--seconds 120] [--config llama3_8b_layer] [--bits 16]
                                   [--room 8192] [--length 4096] [--batch 1] [--fixed] [--keep] [--work DIR]
                                   [--target h100]

The graph is the builder's (``genai_graphs.py``), weights are random, the cache is one buffer with ``--room``
rows. The folder is optimized as ``optimize MODEL_DIR`` does it, with its steps apart, in ``--seconds``. Then
both sessions take a prompt and greedy tokens, and a step is timed: captured from one stream, interleaved,
cold (``Gpu.time_us``) and warm, and as runs of onnxruntime (``run_us``; ``host_us`` is what the thread that
starts them computes, which other work on the machine does not change); so is a prompt of 256 tokens. Beside
them the graph with a branch but without kernels (``branch``), and the branch alone (``step``). What was
searched when, the times of single kernels, how they lie in one replay and what nodes take on the host
are in the record, too. With ``--target h100`` kernels are chosen by predictions, without a run.
Writes DIR/genai_CONFIG_BITS_bBATCH.json (``_predicted`` behind it).
"""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from genai_graphs import CONFIGS, write
from genai_runs import (
  TOKENS,
  Decoder,
  host_times,
  host_us,
  kernel_times,
  replaced_share,
  step_alone,
  timeline,
)
from packed import warm_us
from protocol import facts, streaming_limit, write_text

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import mirage_onnx
from mirage_onnx.custom_op.race import rounds_us
from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.steps_apart import ROOM, steps_apart
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

PROMPT, SAMPLES = 256, 15
#: What of a row is too long for one line.
LONG = ("regions", "kernels", "seen", "host", "timeline")


class Seen:
  """What was searched and timed, and when."""

  def __init__(self, began):
    self.began, self.rows = began, []

  def __call__(self, event):
    kind = type(event).__name__
    if kind in ("RegionDone", "RegionTuned", "StageEnded", "Warned"):
      of = ("ops", "best_us", "kernel_us", "reason", "stage", "detail", "text")
      said = {f: getattr(event, f) for f in of if hasattr(event, f)}
      self.rows.append([round(time.monotonic() - self.began, 1), kind, said])


def told(row):
  print(json.dumps({k: v for k, v in row.items() if k not in LONG}, default=str), flush=True)


def measured(args, c, work):
  gpu = gpu_of(present_target())
  source, out = work / "model", work / "fast"
  began = time.monotonic()
  write(source, c)
  row = {"written_s": round(time.monotonic() - began, 1)}
  began = time.monotonic()
  shapes = {"batch_size": [args.batch], "sequence_length": [1], "past_sequence_length": [args.room],
            "total_sequence_length": [args.length]}  # fmt: skip
  out.mkdir(exist_ok=True)
  seen = Seen(began)
  found = mirage_onnx.optimize(
    source / "model.onnx", out / "model.onnx", target=args.target, budget_s=args.seconds,
    steps=args.room if args.fixed else True,
    shapes=shapes, model_check=not args.keep, check=False, emit=seen,
  )  # fmt: skip
  row["seen"] = seen.rows
  row["optimize_s"] = round(time.monotonic() - began, 1)
  keys = ("count", "ops", "status", "reason", "reason_text", "predicted_us", "measured_us", "baseline_us")
  row["regions"] = [
    {k: r.get(k) for k in (*keys, *(("ugraph",) if r["status"] == "replaced" else ()))}
    for r in sorted(
      found.report["regions"], key=lambda r: (r["status"] != "replaced", -(r["baseline_us"] or 0))
    )
  ]
  row["measured"] = found.report.get("measured")
  proto = onnx.load(source / "model.onnx", load_external_data=False)
  row["share"], row["step"], row["weight_bytes"] = replaced_share(proto, found.model)
  row["custom"] = sum(n.domain.startswith("ai.mirage") for n in nodes_of(found.model.graph))
  told(row)
  for r in row["regions"]:
    print(json.dumps(r, default=str)[:400], flush=True)
  write_text(args.file, json.dumps({"facts": facts(), "row": row}, indent=1, default=str) + "\n")
  rng, captured, runs, prompts = np.random.default_rng(1), {}, {}, {}
  prompt = rng.integers(0, c.vocabulary, (args.batch, 8))
  with gpu.scope():
    tokens = {}
    plain, own = source / "model.onnx", mirage_onnx.InferenceSession
    sizes = {"batch_size": args.batch, **({ROOM: args.room} if args.fixed else {})}
    onnx.save(steps_apart(proto, sizes), source / "apart.onnx")
    alone = step_alone(out / "model.onnx", out / "step.onnx")
    for name, path, make in (
      ("ort", plain, None), ("ours", out / "model.onnx", own), ("branch", source / "apart.onnx", None),
      ("step", alone, own),
    ):  # fmt: skip
      if path is None:
        continue
      d = Decoder(path, c, args.batch, args.room, gpu.stream_address, make)
      if name != "step":  # of which a prompt is none
        tokens[name] = d.greedy(prompt, gpu.wait)
      d.fill(np.random.default_rng(2))
      run, _ = d.bound(rng.integers(0, c.vocabulary, (args.batch, 1)), args.length)
      for _ in range(3):
        run()
      runs[name] = lambda run=run: (run(), gpu.wait())
      captured[name] = run
      if name != "step":
        long, _ = d.bound(rng.integers(0, c.vocabulary, (args.batch, PROMPT)), PROMPT)
        for _ in range(3):
          long()
        prompts[name] = lambda long=long: (long(), gpu.wait())
        captured[f"{name}_prompt"] = long
      gpu.wait()
      if name == "ours":
        row["launches"] = sum(mirage_onnx.launches(d.session).values())
    same = sum(a == b for a, b in zip(tokens["ort"][0], tokens["ours"][0], strict=True))
    row["tokens_equal"] = f"{same} of {TOKENS}"
    for at, of in ((1, "prompt"), (2, "logits")):  # tokens may be the same whatever a layer computes
      a, b = (tokens[n][at].astype(float) for n in ("ort", "ours"))
      row[f"{of}_differ"] = float(np.abs(a - b).max() / np.abs(a).max())
    for key, of in (("run_us", runs), ("prompt_us", prompts)):
      times = np.median(rounds_us(list(of.values())), axis=1)
      row[key] = dict(zip(of, times.round(1).tolist(), strict=True))
    steps = {n: r for n, r in captured.items() if not n.endswith("_prompt")}
    row["host_us"] = host_us(steps, gpu.wait)
    told(row)
    write_text(args.file, json.dumps({"facts": facts(), "row": row}, indent=1, default=str) + "\n")
    cache = 2 * c.layers * args.batch * c.own * args.length * c.size * 2
    arms = {"read": streaming_limit(gpu, row["weight_bytes"] + cache)[0]}
    for name, run in steps.items():
      try:
        arms[name] = gpu.capture(run)
      except Exception as error:
        row[f"capture_{name}"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    calls = list(arms.values())
    cold = np.median(gpu.time_us(calls, SAMPLES), axis=1)
    row["cold_us"] = dict(zip(arms, cold.round(1).tolist(), strict=True))
    row["warm_us"] = dict(zip(arms, (round(x, 1) for x in warm_us(gpu, calls, SAMPLES)), strict=True))
    told(row)
    write_text(args.file, json.dumps({"facts": facts(), "row": row}, indent=1, default=str) + "\n")
    row["kernels"] = {}
    for name in ("ort", "ours", "ort_prompt", "ours_prompt"):
      row["kernels"][name] = kernel_times(captured[name], gpu.wait)
      print(name, *row["kernels"][name], sep="\n  ", flush=True)
    write_text(args.file, json.dumps({"facts": facts(), "row": row}, indent=1, default=str) + "\n")
    row["timeline"] = {}
    for name, call in zip(arms, calls, strict=True):
      if name in ("ort", "ours", "step"):
        row["timeline"][name] = timeline(call, gpu.wait)
        print(f"{name}, one replay", *row["timeline"][name], sep="\n  ", flush=True)
    row["host"] = {}
    for name, path, make in (("ort", plain, None), ("ours", out / "model.onnx", own)):
      d = Decoder(path, c, args.batch, args.room, gpu.stream_address, make, profile=args.work / name)
      run, _ = d.bound(rng.integers(0, c.vocabulary, (args.batch, 1)), args.length)
      row["host"][name] = host_times(d.session, run, gpu.wait)
      print(name, *row["host"][name][:40], sep="\n  ", flush=True)
  told(row)
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
  parser.add_argument("--work", type=Path, default=Path("/tmp/genai_decoder"))
  parser.add_argument("--seconds", type=float, default=120.0)
  parser.add_argument("--config", choices=CONFIGS, default="llama3_8b_layer")
  parser.add_argument("--bits", type=int, choices=(4, 16), default=16)
  parser.add_argument("--room", type=int, default=8192)
  parser.add_argument("--length", type=int, default=4096)
  parser.add_argument("--batch", type=int, default=1)
  parser.add_argument("--fixed", action="store_true", help="steps are for caches of --room rows only")
  parser.add_argument("--keep", action="store_true", help="keep what is no gain for the whole model")
  parser.add_argument("--target", default="local", help="a GPU's name: chosen by predictions")
  args = parser.parse_args()
  c = replace(CONFIGS[args.config], bits=args.bits)
  how = "_fixed" * args.fixed + "_predicted" * (args.target != "local")
  args.file = args.out / f"genai_{args.config}_{args.bits}_b{args.batch}{how}.json"
  record = {"facts": facts(), "row": measured(args, c, args.work / f"{args.config}{args.bits}")}
  write_text(args.file, json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
  main()
