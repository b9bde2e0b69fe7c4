"""Written models, and every one altered in one place, with every hash and digest right again.

Kinds: ``plan`` (every field of every line), ``record`` (every value that is kept beside a plan), ``both``
(a line of the record and of the plan alike), ``image`` (bytes of machine code, with the record of its hash),
``swap`` (plans, records and images change places), ``leaf`` (every field of the ONNX file).
"""

import copy
import json
import random
from dataclasses import dataclass, replace

import numpy as np
import onnx
from altered_plans import alterations, changed_fields
from google.protobuf.descriptor import FieldDescriptor
from onnx import numpy_helper
from small_models import Net, region_of, search_region

from mirage_onnx import api
from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.custom_op.bundle import Bundle, read_bundle, write_bundle
from mirage_onnx.custom_op.node_digest import tie_nodes
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.custom_op.provenance import sha256
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.rewrite.save import External
from mirage_onnx.target import H200

#: Of each image, so many bytes are altered, each alone.
BYTES = 24
_NEIGHBOUR = {"Sigmoid": "Tanh", "Mul": "Add", "Add": "Sub", "h200": "h100"}


@dataclass(frozen=True)
class Case:
  """``fields``: of a plan, what differs. ``make``: the altered model, None where there is none."""

  kind: str
  what: str
  make: object
  fields: frozenset = frozenset()


def products():
  """Two products of any number of rows, each a kernel."""
  net = Net(np.float16, seed=3)
  x = net.input("batch", 48)
  y = net.rms(net.MatMul(x, net.weight(48, 64)), net.constant(net.rng.uniform(0.5, 1.5, 64)))
  return net.model(net.Sigmoid(net.MatMul(y, net.weight(64, 32))), y)


def views():
  """Three nodes, one of which reads a part of its input and makes two outputs."""
  net = Net(np.float16, seed=4)
  x, g = net.input("batch", 96), net.input("batch", 64)
  part = net.Slice(x, [16], [80], [1])
  y = net.Add(net.Mul(net.Softmax(part, axis=-1), net.constant(net.rng.uniform(0.5, 1.5, 64))), g)
  h = net.MatMul(net.rms(y), net.weight(64, 256))
  return net.model(net.MatMul(net.Relu(h), net.weight(256, 64)), net.Sub(y, net.Tanh(part)))


def kernels():
  """Two kernels of one node, with a workspace between them, for any batch and length."""
  net = Net()
  x, other = (net.input("batch", "seq", 256) for _ in range(2))
  h = net.LayerNormalization(net.Add(x, other), net.weight(256), axis=-1)
  return net.model(net.MatMul(h, net.weight(256, 512)))


def write(name, folder):
  """The paths of a model's original and of what is written of it."""
  source, out = folder / f"{name}.onnx", folder / f"{name}.opt.onnx"
  if name == "kernels":
    model = kernels()
    onnx.save(model, source)
    region = region_of(model)
    found = [c.candidate for c in search_region(region).candidates[:1]]
    (compiled, *_), _ = compile_candidates(region, found, H200, keep=1)
    onnx.save(apply(load_model(model), [(region, compiled)], H200).model, out)
  else:
    more = {} if name == "products" else {
      "save_as_external_data": True, "location": f"{name}.data", "size_threshold": 64
    }  # fmt: skip
    (folder / f"{name}.data").unlink(missing_ok=True)  # onnx would append to it: other offsets, another model
    onnx.save({"products": products, "views": views}[name](), source, **more)
    api.optimize(source, out, target="h200", margin=-20.0, workers=1, external=External.COPY)
  return source, out


NAMES = ("products", "views", "kernels")


def cases(model, folder):
  """All cases of a written model, in one order."""
  bundle = bundle_of(model, folder)
  yield from _plans(model, bundle)
  yield from _swaps(model, bundle)
  yield from _images(model, bundle)
  yield from _both(model, bundle)
  yield from _records(model, bundle)
  yield from _leaves(model)


def bundle_of(model, folder):
  (stored,) = (t for t in model.graph.initializer if t.name == BUNDLE_NAME)
  return read_bundle(numpy_helper.to_array(stored, str(folder)).tobytes())


def with_bundle(model, bundle):
  """The model with another bundle and the digests of its nodes; None where a node has none then."""
  made = onnx.ModelProto()
  made.CopyFrom(model)
  (stored,) = (t for t in made.graph.initializer if t.name == BUNDLE_NAME)
  stored.CopyFrom(numpy_helper.from_array(np.frombuffer(write_bundle(bundle), np.uint8), BUNDLE_NAME))
  try:
    tie_nodes(made, bundle)
  except MirageError:
    return None
  return made


def _at(items, k, new):
  return (*items[:k], new, *items[k + 1 :])


def _plans(model, bundle):
  for k, text in enumerate(bundle.plans):
    old = parse_plan(text)
    for new, what in alterations(text).items():
      made = replace(bundle, plans=_at(bundle.plans, k, new))
      fields = changed_fields(old, parse_plan(new))
      yield Case("plan", f"plan {k} line {what}", lambda b=made: with_bundle(model, b), fields)


def _both(model, bundle):
  """The interface's lines are in the record, too: both say the same other thing."""
  for k, text in enumerate(bundle.plans):
    record, old = bundle.provenance[k], parse_plan(text)
    head = record["interface"]["head"]
    for new, what in alterations(text).items():
      lines = new.splitlines(keepends=True)
      other = "".join(lines[: next(i for i, line in enumerate(lines) if line.startswith("variant")) + 1])
      if other == head:
        continue
      changed = {**record, "interface": {**record["interface"], "head": other}}
      made = replace(bundle, plans=_at(bundle.plans, k, new), provenance=_at(bundle.provenance, k, changed))
      fields = changed_fields(old, parse_plan(new))
      yield Case("both", f"plan {k} line {what}", lambda b=made: with_bundle(model, b), fields)


def _records(model, bundle):
  for k, record in enumerate(bundle.provenance):
    for path, how, new in _altered_json(record, random.Random(k)):
      made = replace(bundle, provenance=_at(bundle.provenance, k, new))
      yield Case("record", f"record {k} {path}: {how}", lambda b=made: with_bundle(model, b))


def _altered_json(value, rng, path=""):
  """(where, how, the whole with one value altered)"""
  if isinstance(value, dict | list):
    for key in value if isinstance(value, dict) else range(len(value)):
      for where, how, new in _altered_json(value[key], rng, f"{path}/{key}"):
        whole = copy.copy(value)
        whole[key] = new
        yield where, how, whole
      left = copy.copy(value)
      del left[key]
      yield f"{path}/{key}", "gone", left
  elif isinstance(value, str):
    lines = value.split("\n")
    for i, line in enumerate(lines):
      for new in _altered_line(line, rng):
        yield path, f"line {i} is {new[:60]!r}", "\n".join(_at(lines, i, new))
      if len(lines) > 1:
        yield path, f"without line {i}", "\n".join((*lines[:i], *lines[i + 1 :]))
  elif isinstance(value, int):
    yield from ((path, f"{n}", n) for n in (value + 1, value - 1))


def _altered_line(line, rng):
  """Two other texts of a line: another number in it, another word."""
  words = line.split(" ")
  numbers = [i for i, c in enumerate(line) if c.isdigit()]
  if numbers:
    at = rng.choice(numbers)
    yield line[:at] + str((int(line[at]) + rng.randrange(1, 10)) % 10) + line[at + 1 :]
  if len(words) > 1:
    i, j = rng.sample(range(len(words)), 2)
    words[i], words[j] = words[j], words[i]
    yield " ".join(words)
  else:
    yield line + "x"


def _images(model, bundle):
  for k, image in enumerate(bundle.cubins):
    rng = random.Random(f"image {k}")
    code = [i for name, at, n in _sections(image) if name.startswith(".text.") for i in range(at, at + n)]
    spots = [(rng.choice(code), "code") for _ in range(BYTES)]
    spots += [(rng.randrange(len(image)), "image") for _ in range(BYTES)]
    for at, what in spots:
      new = image[:at] + bytes([image[at] ^ 1 << rng.randrange(8)]) + image[at + 1 :]
      yield _image(model, bundle, k, f"{what} byte {at}", new)
    yield _image(model, bundle, k, "and a byte", image + b"\0")


def _image(model, bundle, k, what, image):
  return Case("image", f"image {k} {what}", lambda: with_bundle(model, _forged(bundle, k, image)))


def _sections(image):
  """(name, offset, bytes) of an ELF file's sections."""
  table, count, names = (int.from_bytes(image[a : a + n], "little") for a, n in ((40, 8), (60, 2), (62, 2)))
  field = lambda i, at, n: int.from_bytes(image[table + 64 * i + at : table + 64 * i + at + n], "little")  # noqa: E731
  for i in range(count):
    begin = field(names, 24, 8) + field(i, 0, 4)
    yield image[begin : image.index(0, begin)].decode(), field(i, 24, 8), field(i, 32, 8)


def _forged(bundle, k, image):
  """Another image, whose hash every record has."""
  old, new = sha256(bundle.cubins[k]), sha256(image)
  records = json.loads(json.dumps(bundle.provenance).replace(old, new))
  return Bundle(_at(bundle.cubins, k, image), bundle.plans, tuple(records))


def _swaps(model, bundle):
  for what, side in (("plans", ("plans",)), ("records", ("provenance",)), ("images", ("cubins",)),
                     ("plans and records", ("plans", "provenance"))):  # fmt: skip
    for i in range(len(bundle.plans)):
      for j in range(i):
        fields = {}
        for name in side:
          items = list(getattr(bundle, name))
          items[i], items[j] = items[j], items[i]
          fields[name] = tuple(items)
        made = replace(bundle, **fields)
        yield Case("swap", f"{what} {j} {i}", lambda b=made: with_bundle(model, b))


def _leaves(model):
  for path, name, how in _all_leaves(model):
    where = "/".join(f"{a}[{b}]" if b is not None else a for a, b in path)
    yield Case("leaf", f"{where}.{name} {how}", lambda p=path, n=name, h=how: _leaf(model, p, n, h))


def _all_leaves(message, path=()):
  for f, value in message.ListFields():
    is_message = f.type == FieldDescriptor.TYPE_MESSAGE
    if not is_message:
      yield path, f.name, "one of" if isinstance(value, list) or hasattr(value, "append") else "other"
    elif hasattr(value, "add"):
      for i, inner in enumerate(value):
        yield from _all_leaves(inner, (*path, (f.name, i)))
      hows = ("without", "twice", "turned")[: 3 if len(value) > 1 else 2]
      yield from ((path, f.name, how) for how in hows)
    else:
      yield from _all_leaves(value, (*path, (f.name, None)))
      yield path, f.name, "gone"


def _leaf(model, path, name, how):
  rng = random.Random(f"{path} {name} {how}")
  made = onnx.ModelProto()
  made.CopyFrom(model)
  target = made
  for field, i in path:
    target = getattr(target, field)
    target = target if i is None else target[i]
  value = getattr(target, name)
  if how == "gone":
    target.ClearField(name)
  elif how == "other":
    try:
      setattr(target, name, _other(value, rng))
    except ValueError:  # no value of its enumeration
      return None
  elif how == "one of":
    k = rng.randrange(len(value))
    value[k] = _other(value[k], rng)
  elif how == "without":
    del value[rng.randrange(len(value))]
  elif how == "twice":
    kept = value[rng.randrange(len(value))]
    value.add().CopyFrom(kept)
  else:
    a, b = rng.sample(range(len(value)), 2)
    kept = copy.deepcopy(value[a])
    value[a].CopyFrom(value[b])
    value[b].CopyFrom(kept)
  same = made.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
  return None if same else made


def _other(value, rng):
  if isinstance(value, int):
    return rng.choice([v for v in (value + 1, max(value - 1, 0), 0, 1, 8, 16, 2**31 - 1) if v != value])
  if isinstance(value, float):
    return value * 1.5 + 1
  if isinstance(value, bytes):
    k = rng.randrange(len(value)) if value else 0
    return value[:k] + bytes([value[k] ^ 0x41]) + value[k + 1 :] if value else b"x"
  return _NEIGHBOUR.get(value) or rng.choice((f"{value}x", value[:-1], value[::-1] + "y"))
