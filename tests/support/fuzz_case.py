"""One damaged model file through ``optimize``, and what must hold of it however it ends.

No region can win by the margin, so everything but the search runs; every ``COMMAND_EVERY``-th seed
is the command. As a program it answers seeds on stdin with lines of JSON: a library that ends the
process must not end the run.
"""

import contextlib
import functools
import hashlib
import io
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
  sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "models" / "architectures")]

from exotic_models import EXOTIC
from fuzz_answers import faults_of, serve
from model_mutations import mutant
from small_models import Net
from written_files import data_files_of, is_data_of

from mirage_onnx import api, cli
from mirage_onnx.errors import Exit, MirageError

#: Every so many seeds go through the command line, search included.
COMMAND_EVERY = 50
#: Seconds that the search of such a seed may take.
BUDGET_S = 2
#: A region must be this much faster than ONNX Runtime to be searched: none is.
NO_REGION = 0.9999
#: A model that asks for more memory than this has fooled us.
MEMORY_BYTES = 6 << 30
ARCHITECTURES = ("bert", "deepseek_v3_decode", "gpt2_decode", "lora", "mamba", "mixtral_decode",
                 "ngpt_bfloat16", "t5_encoder", "vit", "whisper_decoder")  # fmt: skip
#: Models in memory are many times faster to check than exported layers: take them more often.
SMALL_TIMES = 3


def small_models():
  net = Net(np.float32)
  x = net.input("batch", "length", 32)
  plain = net.model(net.MatMul(net.rms(x, net.weight(32)), net.weight(32, 16)))
  net = Net()
  q, k, v = (net.input(2, 16, 32) for _ in range(3))
  scores = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 2, 1])), 0.177)
  attention = net.model(net.MatMul(net.Softmax(scores, axis=-1), v))
  net = Net(np.float32, opset=18)
  y = net.Reshape(net.Slice(net.input(4, 12), [0], [8], [1]), [2, 2, -1])
  layout = net.model(net.Concat(net.Unsqueeze(y, [0]), net.Expand(net.input(1), [1, 2, 2, 8]),
                                axis=-1))  # fmt: skip
  return [plain, attention, layout]


@functools.cache
def subjects():
  import weights

  small = [*small_models(), *(e.build() for e in EXOTIC.values())]
  small.append(onnx.load(ROOT / "models" / "rmsnorm_linear.onnx"))
  large = [weights.load(name) for name in ARCHITECTURES]
  large.append(onnx.load(ROOT / "models" / "llama_decode.onnx"))
  return tuple(m.SerializeToString() for m in (*small * SMALL_TIMES, *large))


def state(folder):
  return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def run_case(seed):
  found = mutant(seed, subjects())
  with tempfile.TemporaryDirectory(prefix="mirage-fuzz-") as name:
    folder = Path(name, "model")
    folder.mkdir()
    path, out = folder / "in.onnx", folder / "out.onnx"
    path.write_bytes(found.data)
    for file, data in found.files.items():
      (folder / file).write_bytes(data)
    before = state(folder)
    start = time.process_time()
    command = seed % COMMAND_EVERY == 0
    outcome, faults = (_command if command else _call)(path, out)
    seconds = time.process_time() - start
    after = state(folder)
  made = sorted(after.keys() - before.keys())
  if {k: after.get(k) for k in before} != before:
    faults.append("the input changed")
  if outcome == "DONE" and not all(
    n in ("out.onnx", "out.onnx.lock") or is_data_of("out.onnx", n) for n in made
  ):
    faults.append(f"it left {made}")
  if outcome == "DONE" and "out.onnx" not in made:
    faults.append("it wrote no model")
  if outcome != "DONE" and made:
    faults.append(f"it failed and left {made}")
  return {"seed": seed, "kind": found.kind, "command": command, "outcome": outcome,
          "faults": faults, "seconds": round(seconds, 3)}  # fmt: skip


def _call(path, out):
  try:
    result = api.optimize(path, out, target="h200", margin=NO_REGION, workers=1)
  except MirageError as error:
    return error.code, faults_of(error.code, error.detail)
  except Exception:
    return "TRACEBACK", [traceback.format_exc(limit=-4)]
  if data_files_of(out):
    return "DONE", ["it wrote a data file beside its input"]
  given = onnx.ModelProto.FromString(path.read_bytes())
  if result.model.SerializeToString(deterministic=True) != given.SerializeToString(deterministic=True):
    return "DONE", ["nothing was replaced, yet the model changed"]
  same = out.read_bytes() == path.read_bytes()
  return "DONE", [] if same else ["the file written is not the one that was read"]


def _command(path, out):
  said, told = io.StringIO(), io.StringIO()
  arguments = ["optimize", str(path), "-o", str(out), "--target", "h200", "--json", "-q"]
  with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
    code = cli.main([*arguments, "--budget", str(BUDGET_S)])
  faults = ["it printed a traceback"] if "Traceback" in said.getvalue() else []
  report = json.loads(told.getvalue())
  if code == Exit.DONE:
    return "DONE", faults
  error = report["error"]
  if code != Exit.INPUT:
    log = error["log"]
    text = Path(log).read_text()[-2000:] if log else said.getvalue()
    return "TRACEBACK", [*faults, f"exit code {code}: {text}"]
  return error["code"], faults + faults_of(error["code"], error["detail"])


if __name__ == "__main__":
  serve(subjects, run_case, MEMORY_BYTES)
