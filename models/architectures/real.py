"""Exports models of real width and puts their graphs, without weights, into ``real.tar.xz``.

    python models/architectures/real.py [NAME ...]
    python models/architectures/real.py --whole GRAPHS.zip

Needs torch, transformers, diffusers and onnxruntime (for quantized models); nothing that is
installed or tested imports this file. What it writes is read by ``real_archive.py``. ``--whole``
takes the graphs of a zip of NAME.onnx and NAME.json (weights with the parameters' distribution).
"""

import json
import multiprocessing
import sys
import time
import traceback
import warnings
import zipfile
from pathlib import Path

import onnx

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import real_archive  # noqa: E402

LIMIT_S = 900


def tables():
  from real_decoders import DECODERS
  from real_encoders import ENCODERS
  from real_quantized import QUANTIZED
  from real_vision import VISION

  return (*ENCODERS, *DECODERS, *VISION, *QUANTIZED)


def one(name):
  """Export one model into the archive; ends the process with 1 if that fails."""
  import torch
  from real_export import export

  warnings.filterwarnings("ignore")
  torch.manual_seed(0)
  start = time.monotonic()
  try:
    (spec,) = (s for s in tables() if s.name == name)
    data = export(spec)
  except Exception:  # the next one may work
    traceback.print_exc()
    sys.exit(1)
  real_archive.store({name: data})
  nodes = len(onnx.load_from_string(data).graph.node)
  seconds = time.monotonic() - start
  print(f"{name}: {len(data)} bytes, {nodes} nodes, {seconds:.0f} s", flush=True)


def whole(path):
  """The graphs of a zip, as the others are kept."""
  found = {}
  with zipfile.ZipFile(path) as archive:
    for member in (n for n in archive.namelist() if n.endswith(".onnx")):
      name = member.removesuffix(".onnx")
      model = onnx.load_from_string(archive.read(member))
      info = json.loads(archive.read(f"{name}.json"))
      rules = {w["name"]: [float(x) for x in w["rule"]] for w in info["weights"]}
      for tensor in model.graph.initializer:
        if tensor.external_data:
          mean, deviation = rules[tensor.name]
          tensor.doc_string = f"{mean:g} {deviation:g} {mean - 6 * deviation:g} {mean + 6 * deviation:g}"
          real_archive.place(tensor, 0, 0)
      said = {"limits": {"input_ids": 1000, "attention_mask": 2, "position_ids": 128, "token_type_ids": 2}}
      model.metadata_props.add(key=real_archive.INPUTS, value=json.dumps(said, separators=(",", ":")))
      found[f"whole_{name}"] = model.SerializeToString(deterministic=True)
  real_archive.store(found)


def main(wanted):
  """Each in a process of its own, which gives its memory back."""
  if wanted[:1] == ["--whole"]:
    whole(Path(wanted[1]))
    return 0
  failed, known = [], [s.name for s in tables()]  # imports torch: processes have it from here
  for name in wanted or known:
    process = multiprocessing.get_context("fork").Process(target=one, args=(name,))
    process.start()
    process.join(LIMIT_S)
    process.kill()
    process.join()
    if process.exitcode:
      failed.append(name)
  print(f"{real_archive.ARCHIVE.name}: {real_archive.ARCHIVE.stat().st_size} bytes; failed: {failed}")
  return bool(failed)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
