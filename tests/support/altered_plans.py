"""Plans that differ from a given one in one place: a field, an argument, a line."""

import re
from dataclasses import replace
from itertools import pairwise

from mirage_onnx.custom_op.arguments import Int32, MapOf, Pointer, WorkspacePtr
from mirage_onnx.custom_op.expr import OPERATORS
from mirage_onnx.custom_op.plan import DTYPES, parse_plan
from mirage_onnx.errors import MirageError

#: What of a line is no name, number or sign of the language's own.
KEYWORDS = frozenset(
  "plan input equal output workspace variant launch grid block cluster smem pdl args".split()
)
TOKEN = re.compile(r"[^ ,#:]+")


def others(token, line, names):
  """What may stand for a token, in a line of this head."""
  if token in DTYPES:
    yield from ("f64", "f16" if token != "f16" else "bf16")
  elif token in OPERATORS and line != "input":
    yield from sorted(OPERATORS.keys() - {token})
  elif re.fullmatch(r"-?[0-9]+", token):
    yield from {str(max(0, int(token) + d)) for d in (-1, 1, -32, 32)} | {str(2 * int(token)), "*"} - {token}
  elif token == "*":
    yield "7"
  elif re.fullmatch(r"d[0-9]+\.[0-9]+", token):
    yield from (*(f"d{i}.{a}" for i in range(4) for a in range(3)), "1", "64")
  elif re.fullmatch(r"[io][0-9]+", token):
    yield from ("i0", "i1", "i2", "i3", "o0", "w:0", "w:256")
  elif token in ("w", "i32"):
    yield from ("i64", "i0")
  else:
    yield from {f"{token}x", *names} - {token}


def altered(text):
  """(what, the plan with it) for all that a plan can be altered in at one place."""
  lines = text.splitlines()
  names = [line.split(" ")[2] for line in lines if line.startswith("launch")]
  for n, line in enumerate(lines):
    head = line.split(" ")[0]
    for found in TOKEN.finditer(line):
      if found[0] in KEYWORDS:
        continue
      for new in others(found[0], head, names):
        yield f"{n + 1}: {found[0]} {new}", [*lines[:n], line[: found.start()] + new + line[found.end() :]], n
    words = line.split(" ")
    if head == "launch":
      for i in range(16, len(words)):
        yield f"{n + 1}: without {words[i]}", [*lines[:n], " ".join(words[:i] + words[i + 1 :])], n
        yield f"{n + 1}: twice {words[i]}", [*lines[:n], " ".join([*words[:i], words[i], *words[i:]])], n
        for j in range(i):
          turned = [words[i] if k == j else words[j] if k == i else w for k, w in enumerate(words)]
          yield f"{n + 1}: {j} {i} change places", [*lines[:n], " ".join(turned)], n
    yield f"{n + 1}: gone", lines[:n], n
    yield f"{n + 1}: twice", [*lines[:n], line, line], n
    for more in ("equal d0.0 1", "workspace 256", "variant 0", "variant 1"):
      yield f"{n + 1}: behind {more}", [*lines[:n], more, line], n
  for n, (a, b) in enumerate(pairwise(lines)):
    yield f"{n + 1}: behind the next", [*lines[:n], b, a], n + 1


def alterations(text):
  """Those that still are plans, each once."""
  lines, found = text.splitlines(), {}
  for what, start, n in altered(text):
    new = "".join(f"{line}\n" for line in (*start, *lines[n + 1 :]))
    try:
      parse_plan(new)
    except MirageError:
      continue
    if new != text:
      found.setdefault(new, what)
  return found


def changed_fields(old, new):
  """What differs between two plans, in the words of SECURITY.md."""
  found = set()

  def compare(what, a, b):
    if a != b:
      found.add(what)

  for what, field in (("input", "inputs"), ("output", "outputs")):
    a, b = getattr(old, field), getattr(new, field)
    compare(f"number of {field}", len(a), len(b))
    for x, y in zip(a, b, strict=False):
      compare(f"{what} types", x.dtype, y.dtype)
      compare(f"{what} dims", x.dims, y.dims)
  compare("sizes that must agree", old.equal, new.equal)
  compare("workspace", old.workspace, new.workspace)
  compare("variants", len(old.variants), len(new.variants))
  for v, w in zip(old.variants, new.variants, strict=False):
    compare("guards", v.guard, w.guard)
    if len(v.launches) != len(w.launches):
      found.add("number of launches")
    elif v.launches != w.launches and sorted(map(repr, v.launches)) == sorted(map(repr, w.launches)):
      found.add("order of launches")
    else:
      for x, y in zip(v.launches, w.launches, strict=True):
        for what in ("cubin", "kernel", "grid", "block", "cluster", "pdl"):
          compare(what, getattr(x, what), getattr(y, what))
        compare("shared memory", x.smem_bytes, y.smem_bytes)
        found |= _arguments(x.args, y.args)
  return frozenset(found)


def _arguments(a, b):
  if len(a) != len(b):
    return {"number of arguments"}
  found = set()
  for x, y in zip(a, b, strict=True):
    if x == y:
      continue
    if isinstance(x, MapOf) and isinstance(y, MapOf):
      found |= _arguments((x.pointer,), (y.pointer,)) if x.pointer != y.pointer else {"tensor maps"}
    elif isinstance(x, WorkspacePtr) and isinstance(y, WorkspacePtr) and x.offset != y.offset:
      found.add("offsets")
    elif isinstance(x, Pointer) and isinstance(y, Pointer) and replace(x, bytes=y.bytes) == y:
      found.add("bytes")
    else:
      found.add("arguments" if _bytes_passed(x) == _bytes_passed(y) else "sizes of arguments")
  return found


def _bytes_passed(argument):
  return 128 if isinstance(argument, MapOf) else 4 if isinstance(argument, Int32) else 8
