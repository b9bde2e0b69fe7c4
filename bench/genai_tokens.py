"""Greedy tokens of onnxruntime-genai on the CPU: folders of its builder as they are, and optimized.

    MIRAGE_ONNX_OPS_LIBRARY=build/ops/libmirage_onnx_ops.so PYTHONPATH=. python bench/genai_tokens.py \
        [--out FILE] [--work DIR] [--only NAME ...] [--seconds 60]

Of every kind of model (``genai_models.py``), fp16 and int4 (KIND_cpu: int4 beside fp32, as for CPUs): 64
tokens behind two prompts in one batch by the original folder, by the optimized one with our library (which
runs bodies, without a GPU), and by that without the library. Then the same by the kernels themselves, in the
emulator, where the steps have some: a prompt and ``--emulated`` tokens. Needs onnxruntime-genai, torch and
transformers.
"""

import argparse
import json
import time
from collections import Counter
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
from genai_models import KINDS, build, on_cpu

import mirage_onnx
from mirage_onnx.genai_folder import CONFIG, LIBRARY_OPTION, GenaiFolder

TOKENS, PROMPT, BATCH = 64, 5, 2
#: Of other kinds one: what is around it is searched, too, and layers are alike.
LAYERS = {"gemma3": 2}


def prompts():
  return np.random.default_rng(1).integers(2, 160, (BATCH, PROMPT)).astype(np.int32)


def tokens(folder):
  """By genai; an end of text is a token as any other, up to the length."""
  import onnxruntime_genai as og

  model = og.Model(str(folder))
  params = og.GeneratorParams(model)
  longest = PROMPT + TOKENS
  params.set_search_options(batch_size=BATCH, max_length=longest, min_length=longest, do_sample=False)
  generator = og.Generator(model, params)
  generator.append_tokens(prompts())
  while not generator.is_done():
    generator.generate_next_token()
  return [np.array(generator.get_sequence(i))[PROMPT:].tolist() for i in range(BATCH)]


class Steps:
  """A session of a decoder, its caches one buffer each."""

  def __init__(self, path, make):
    import onnxruntime as ort

    self.ort, self.session = ort, make(str(path), providers=["CPUExecutionProvider"])
    self.caches = {}
    for i in self.session.get_inputs():
      if i.name.startswith("past"):
        dtype = np.float32 if i.type == "tensor(float)" else np.float16
        self.caches[i.name] = self._value(np.zeros((BATCH, i.shape[1], PROMPT + TOKENS, 64), dtype))

  def _value(self, x):
    return self.ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x))

  def step(self, ids, total):
    """Logits of the last token, of which there are ``total``."""
    binding = self.session.io_binding()
    given = {"input_ids": self._value(ids.astype(np.int64)), **self.caches}
    given["attention_mask"] = self._value(np.ones((BATCH, total), np.int64))
    for name, x in given.items():
      binding.bind_ortvalue_input(name, x)
    names = [o.name for o in self.session.get_outputs()]
    for name in names:
      if (past := name.replace("present", "past_key_values")) in self.caches:
        binding.bind_ortvalue_output(name, self.caches[past])
      else:
        binding.bind_output(name)
    self.session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()[:, -1].astype(np.float32)

  def greedy(self, count):
    ids, found = prompts(), []
    for n in range(count):
      logits = self.step(ids, PROMPT + n)
      ids = logits[:, :160].argmax(-1)[:, None]
      found.append(ids[:, 0].tolist())
    return np.array(found).T.tolist()


def optimized(source, out, seconds):
  """As ``optimize MODEL_DIR`` does it, whatever is predicted of its times."""
  folder = GenaiFolder.read(source)
  folder.begin(out)
  (name,) = folder.models
  shapes = {n: list(s) for n, s in folder.sizes(name, {"batch_size": [BATCH]}, steps=True).items()}
  result = mirage_onnx.optimize(
    source / name, out / name, target="h200", budget_s=seconds, margin=-20.0, steps=True,
    shapes=shapes,
  )  # fmt: skip
  folder.finish(out)
  return result


def row_of(kind, precision, work, seconds, emulated):
  name = f"{kind}_{precision}"
  source, out = work / name, work / f"{name}.fast"
  if not (source / CONFIG).exists():
    build(kind, precision, source, layers=LAYERS.get(kind, 1))
  on_cpu(source)
  began = time.monotonic()
  result = optimized(source, out, seconds)
  row = {"model": name, "optimize_s": round(time.monotonic() - began, 1)}
  graph = onnx.load(out / "model.onnx", load_external_data=False).graph
  branches = [a.g for n in graph.node if n.op_type == "If" for a in n.attribute if a.name == "then_branch"]
  step = branches[0] if branches else graph
  row["step"] = dict(Counter(n.op_type for n in step.node))
  row["custom"] = sum(n.domain.startswith("ai.mirage") for n in step.node)
  row["regions"] = [r["ops"] for r in result.report["regions"] if r["status"] == "replaced"]
  want = tokens(source)
  row["different_tokens"] = len({t for own in want for t in own})
  row["with_library"] = compared(source, tokens(out), want)
  config = json.loads((out / CONFIG).read_text())
  config["model"]["decoder"]["session_options"].pop(LIBRARY_OPTION, None)
  (out / CONFIG).write_text(json.dumps(config))
  row["without_library"] = compared(source, tokens(out), want)
  if emulated and row["custom"]:
    began = time.monotonic()
    own = Steps(out / "model.onnx", partial(mirage_onnx.InferenceSession, emulate=True))
    row["emulated"] = compared(source, own.greedy(emulated), [w[:emulated] for w in want])
    row["launches"] = sum(mirage_onnx.launches(own.session).values())
    row["emulated_s"] = round(time.monotonic() - began, 1)
  return row


def compared(source, found, want):
  """How many tokens are equal until the first that is not; of that, how near a choice it was.

  ``apart``: what the original's logits of the two tokens differ by, in standard deviations of all: its own
  CPU kernels round fp16 less in a graph than in a branch, and random weights have no sure choices.
  """
  differ = [k for k, own in enumerate(zip(*found, strict=True)) if own != tuple(w[k] for w in want)]
  row = {"equal": differ[0] if differ else len(want[0]), "of": len(want[0])}
  if differ:
    import onnxruntime as ort

    session, ids = Steps(source / "model.onnx", ort.InferenceSession), prompts()
    for k in range(differ[0] + 1):
      logits = session.step(ids, PROMPT + k)
      ids = np.array([[w[k]] for w in want])
    gaps = [
      float((row_of[w[differ[0]]] - row_of[f[differ[0]]]) / row_of.std())
      for row_of, w, f in zip(logits, want, found, strict=True)
    ]
    row["apart"] = round(max(gaps), 4)
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", type=Path, default=Path("genai_tokens.json"))
  parser.add_argument("--work", type=Path, default=Path("/tmp/genai_tokens"))
  parser.add_argument("--only", nargs="*", default=[f"{k}_{p}" for k in KINDS for p in ("fp16", "int4")])
  parser.add_argument("--seconds", type=float, default=60.0)
  parser.add_argument("--emulated", type=int, default=TOKENS)
  args = parser.parse_args()
  args.work.mkdir(parents=True, exist_ok=True)
  packages = ("onnxruntime-genai", "onnxruntime", "torch", "transformers")
  record = {"versions": {p: metadata.version(p) for p in packages}, "rows": []}
  if args.out.exists():
    record["rows"] = [r for r in json.loads(args.out.read_text())["rows"] if r["model"] not in args.only]
  for name in args.only:
    kind, precision = name.split("_")
    try:
      row = row_of(kind, precision, args.work, args.seconds, args.emulated)
    except Exception as error:
      row = {"model": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    print(json.dumps({k: v for k, v in row.items() if k != "regions"}), flush=True)
    record["rows"].append(row)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
  main()
