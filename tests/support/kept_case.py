"""One file of the cache folder, or a journal, damaged or edited: read by what reads it.

Raw damage has to be noticed, or to change nothing; an edit with a right checksum ends in JOURNAL, in
nothing, or in programs that are proven. As a program it answers seeds on stdin with lines of JSON.
"""

import functools
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
  sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import model_case
import numpy as np
from fuzz_answers import serve
from one_search import search_structure
from small_models import Net, region_of, search_region

from mirage_onnx import deadline
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.compiler.kept_cubins import KeptCubins
from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.journal_lines import entry_line, header_line
from mirage_onnx.superopt.kept_results import KeptResults
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.superopt.structures import StructureStore, family
from mirage_onnx.target import H200
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.prover import structure_prover

SETTING = {"target": "a"}
KINDS = ("journal", "structure", "result", "cubin")
#: Values that stand for another, of any type.
ODD = (
  None,
  True,
  0,
  1,
  -1,
  1 << 70,
  1.5,
  -1e308,
  "",
  "x",
  "%0",
  [],
  [0],
  [[]],
  {},
  {"a": 1},
  "ugraph 1\n",
  "9" * 40,
)


KERNEL = KernelSource(
  "k", 'extern "C" __global__ void __launch_bounds__(32) k(float* x) { x[threadIdx.x] += 1.0f; }',
  (1, 1, 1), 32, 1, 0, ("x",), False,
)  # fmt: skip


@dataclass(frozen=True)
class File:
  kind: str
  data: bytes
  edited: bool


@functools.cache
def region():
  net = Net(np.float16, seed=3)
  return region_of(net.model(net.Tanh(net.Mul(net.rms(net.input(4, 64)), net.weight(64)))))


def scope():
  return SearchScope.of(H200, SearchBound(), region())


@functools.cache
def _image():
  return compile_cubin(KERNEL.text, H200, name="k").image


def _structures(folder):
  store = StructureStore(folder, SETTING)
  return search_structure(region(), scope(), structure_prover(region()), store, budget_s=900.0, hooks=Hooks())


@functools.cache
def originals():
  """Kind -> the bytes of a right file."""
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    with Journal(folder / "journal", SETTING) as journal:
      result = search_region(region(), hooks=Hooks(journal))
    kept = KeptResults(folder / "results", SETTING)
    kept.put(region(), "w", 9.0, result)
    _structures(folder / "structures")
    cubins = KeptCubins(folder / "cubins", "c")
    cubins.put(KERNEL, H200.arch, compile_cubin(KERNEL.text, H200, name="k"))
    found = {"journal": (folder / "journal").read_bytes()}
    for kind in KINDS[1:]:
      (path,) = (folder / f"{kind}s").iterdir()
      found[kind] = path.read_bytes()
    return found


def made(seed):
  rng = random.Random(f"kept {seed}")
  kind = KINDS[seed % len(KINDS)]
  data = originals()[kind]
  if rng.random() < 0.4:
    return File(kind, _damaged(rng, data), False)
  return File(kind, _edited(rng, kind, data), True)


def _damaged(rng, data):
  lines = data.split(b"\n")
  what = rng.randrange(8)
  if what == 0:
    return data[: rng.randrange(len(data))]
  if what == 1:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
  if what == 2:
    rng.shuffle(lines)
    return b"\n".join(lines)
  if what == 3:
    return data + rng.choice((b"{", b"\n", data, b"\0" * 4096, lines[-2] + b"\n"))
  if what == 4:
    at, size = rng.randrange(len(data)), rng.randrange(1, 600)
    return data[:at] + bytes(size) + data[at + size :]
  if what == 5:
    return rng.choice(
      (
        b"",
        b"\n",
        b"{}",
        b"null\n",
        b"\xff" * 100,
        b"[" * 100_000,
        b'{"journal":"mirage-onnx","version":2,}\n',
      )
    )
  if what == 6:
    return data.replace(b"\n", rng.choice((b"\r\n", b" \n", b"\n\n")))
  at = rng.randrange(len(data))
  return data[:at] + data[rng.randrange(len(data)) :]


def _edited(rng, kind, data):
  if kind == "cubin":
    line, _, image = data.partition(b"\n")
    value = _odd(rng, json.loads(line))
    return json.dumps(value).encode() + b"\n" + (image if rng.random() < 0.8 else image[:-1])
  lines = data.split(b"\n")[1:-1]
  out = header_line(SETTING)
  spoiled = {rng.randrange(len(lines)) for _ in range(rng.choice((1, 1, 2, len(lines))))}
  for k, line in enumerate(lines):
    entry = json.loads(line)
    value = _odd(rng, entry["value"]) if k in spoiled else entry["value"]
    key = entry["key"] if rng.random() < 0.97 else json.loads(rng.choice(lines))["key"]
    out += entry_line(key, value if isinstance(value, dict) else {"x": value})
  return out


def _odd(rng, value):
  """``value`` with one place changed."""
  places = list(_places(value))
  at = rng.choice(places)
  value = json.loads(json.dumps(value))
  holder = value
  for step in at[:-1]:
    holder = holder[step]
  old = holder[at[-1]]
  what = rng.randrange(6)
  if what == 0:
    del holder[at[-1]]
  elif what == 1 and isinstance(holder, list):
    holder.insert(at[-1], old)
  elif what in (2, 3) and isinstance(old, str) and len(old) > 20:
    holder[at[-1]] = _text(rng, old)
  elif what == 4 and isinstance(old, int | float) and not isinstance(old, bool):
    holder[at[-1]] = rng.choice((-old, old + 1, old * 1000, old / 1e6, 0))
  else:
    holder[at[-1]] = rng.choice(ODD)
  return value


def _text(rng, text):
  words = text.split(" ")
  a, b = rng.randrange(len(words)), rng.randrange(len(words))
  what = rng.randrange(5)
  if what == 0:
    words[a], words[b] = words[b], words[a]
  elif what == 1:
    words[a] = words[b]
  elif what == 2:
    del words[a]
  elif what == 3:
    words[a] = rng.choice(
      ("add", "mul", "exp", "f32[]", "a0", "a9", "%0", "%99", "i0", "o0", "grid=-", "post", "loop", "0", "-1")
    )
  else:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)
  return " ".join(words)


def _places(value, at=()):
  pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
  for key, inner in pairs:
    yield (*at, key)
    yield from _places(inner, (*at, key))


def _believed(result):
  """Programs of a result that are not the region's."""
  graphs = {v.candidate.ugraph for v in result.candidates}
  return [f"believed: {found}" for g in graphs if isinstance(found := verify(region(), g), Rejection)]


def run(file):
  with tempfile.TemporaryDirectory(prefix="mirage-kept-") as name, deadline.until(float("inf")):
    folder = Path(name)
    if file.kind == "journal":
      path = folder / "journal"
      path.write_bytes(file.data)
      with Journal(path, SETTING) as journal:
        return _believed(search_region(region(), hooks=Hooks(journal)))
    if file.kind == "structure":
      path = StructureStore(folder, SETTING).path(family(region()))
      path.write_bytes(file.data)
      return _believed(_structures(folder))
    if file.kind == "result":
      kept = KeptResults(folder, SETTING)
      kept.path(region(), "w").write_bytes(file.data)
      kept.get(region(), "w", 9.0)  # its programs are proven when they are chosen
      return []
    kept = KeptCubins(folder, "c")
    kept.path(KERNEL, H200.arch).write_bytes(file.data)
    found = kept.get(KERNEL, H200.arch)
    right = not isinstance(found, Cubin) or found.image == _image()
    return [] if right else ["another image is taken"]


def run_case(seed):
  file = made(seed)
  return model_case.answer(
    seed, file, "edited" if file.edited else "damaged", functools.partial(run, file), True
  )


if __name__ == "__main__":
  serve(originals, run_case, model_case.MEMORY_BYTES)
