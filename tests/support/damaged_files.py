"""Plans, bundles and images that are nearly right, by seed: what a reader of an untrusted file meets.

Each is made from its grammar and then changed in the terms of its format, so that most get past the
first check. ``corpus`` packs them for ``tests/custom_op/fuzz_main.cc``, which judges them too.
"""

import hashlib
import random
import struct
import zlib

from cubin_images import HEADER, SECTION, Compiled, cubin_image

from mirage_onnx.custom_op.bundle import Bundle, read_bundle, write_bundle
from mirage_onnx.custom_op.node_digest import node_digest
from mirage_onnx.custom_op.plan import DTYPES, parse_plan
from mirage_onnx.errors import MirageError

OPERATORS = ("+", "-", "*", "ceildiv", "mod", "min", "max", "eq", "le", "and")
NUMBERS = ("0", "1", "2", "7", "16", "4096", "65535", "-1", "9223372036854775807", "-9223372036854775808",
           "9223372036854775808", "1099511627776", "00", "-0", "+1", "1e9", "")  # fmt: skip
WORDS = (*NUMBERS, *OPERATORS, *sorted(DTYPES), "*", "d0.0", "d0.7", "d63.0", "d1.1", "d0", "d.0", "i0",
         "i0#1", "i63#1", "o0#d0.0", "o31#1", "o0#-1", "w:0", "w:0#8", "w:d0.0#d0.0", "w:0#", "#1", "i32:1#1",
         "i32:1", "i64:d0.0", "i32:", "w:-1", "x", "variant", "launch",
         "plan", "input", "output", "equal", "workspace", "grid", "args", "pdl", "f64\t", "é")  # fmt: skip

#: The numbers of tensor maps: four that are right, then others.
MAPS = ("0:1:8:8:1", "0:4:64:64:8", "8:128:768:1024:256", "2147483640:2147483647:8:8:1",
        "0:0:8:8:1", "0:1:8:8:257",
        "4:1:8:8:1", "0:1:16:8:1", "0:1:8:8", "0:1:8:8:1:1", "-8:1:8:8:1", "::::")  # fmt: skip


class _Plan:
  def __init__(self, rng):
    self.rng = rng
    self.ranks = [rng.randrange(4) for _ in range(rng.randrange(4))]
    self.outputs = 0

  def operand(self):
    known = [f"d{i}.{a}" for i, rank in enumerate(self.ranks) for a in range(rank)]
    is_known = known and self.rng.random() < 0.5
    return self.rng.choice(known) if is_known else str(self.rng.choice((1, 2, 16, 640)))

  def expr(self, most=3, operators=OPERATORS):
    tokens = [self.operand()]
    for _ in range(self.rng.randrange(most)):
      tokens += [self.operand(), self.rng.choice(operators)]
    return ",".join(tokens)

  def argument(self):
    choices = ["i32:" + self.expr(), "i64:" + self.expr(), f"w:{self.expr()}#{self.expr()}"]
    choices += [f"i{i}#{self.expr()}" for i in range(len(self.ranks))]
    choices += [f"o{i}#{self.expr()}" for i in range(self.outputs)]
    pointers = [c for c in choices if "#" in c]
    maps = MAPS[4:] if self.rng.random() < 0.02 else MAPS[:4]
    choices += [f"t:{self.rng.choice(maps)}:{self.rng.choice(pointers)}"]
    return self.rng.choice(choices)

  def lines(self):
    rng, kinds = self.rng, sorted(DTYPES)
    yield "plan 2"
    for rank in self.ranks:
      yield " ".join(("input", rng.choice(kinds), *(rng.choice(("*", "8", "64")) for _ in range(rank))))
    for _ in range(rng.randrange(2)):
      yield f"equal {self.expr(2, ('*',))} {self.expr(2, ('*',))}"
    self.outputs = rng.randrange(1, 3)
    for _ in range(self.outputs):
      yield " ".join(("output", rng.choice(kinds), *(self.expr() for _ in range(rng.randrange(3)))))
    if rng.random() < 0.8:
      yield f"workspace {self.expr()}"
    variants = rng.randrange(1, 4)
    for i in range(variants):
      yield "variant" if i == variants - 1 else f"variant {self.expr()}"
      for _ in range(rng.randrange(3)):
        grid = " ".join(self.expr(2) for _ in range(3))
        arguments = " ".join(["args", *(self.argument() for _ in range(rng.randrange(4)))])
        yield (f"launch {rng.randrange(3)} k{rng.randrange(3)} grid {grid} block {rng.choice((1, 32, 1024))} "
               f"cluster {rng.choice((1, 2, 16))} smem {rng.choice((0, 232448))} pdl {rng.randrange(2)} "
               f"{arguments}")  # fmt: skip


def damaged_plan(rng):
  """The text of a plan, as bytes; a third is right."""
  lines = [line.split(" ") for line in _Plan(rng).lines()]
  for _ in range(rng.choice((0, 1, 1, 2))):
    at = rng.randrange(len(lines))
    line = lines[at]
    if not line:
      continue
    edit, word = rng.randrange(7), rng.randrange(len(line))
    if edit < 3:
      line[word] = rng.choice(WORDS)
    elif edit == 3:
      tokens = line[word].split(",")
      tokens[rng.randrange(len(tokens))] = rng.choice(WORDS)
      line[word] = ",".join(tokens)
    elif edit == 4:
      line.insert(word, rng.choice(WORDS))
    elif edit == 5:
      lines.insert(rng.randrange(len(lines)), line[:])
    else:
      del line[word : word + rng.choice((1, len(line)))]
  text = "".join(" ".join(line) + "\n" for line in lines).encode()
  if rng.random() < 0.1:
    at = rng.randrange(len(text) + 1)
    text = text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randrange(3) :]
  return text


def _provenance(rng):
  whole = zlib.compress(b'{"target":"h200","kernels":[]}')
  return rng.choice((whole, whole, whole, zlib.compress(b"[1]"), whole[:-1], whole + b"x", b"", b"{}"))


def _entry(kind, number, data):
  return {"kind": kind, "id": number, "data": data, "offset": None, "size": len(data)}


def damaged_bundle(rng):
  """The bytes of a bundle whose hashes are right, unless they are what is wrong."""
  images = [cubin_image({"k0": Compiled((8, 8), 32)}), b"\x7fELF", b"", rng.randbytes(17)]
  counts = [rng.randrange(3) for _ in range(3)]
  rows = [_entry(1, i, rng.choice(images)) for i in range(counts[0])]
  rows += [_entry(2, i, damaged_plan(rng)) for i in range(counts[1])]
  rows += [_entry(3, i, _provenance(rng)) for i in range(counts[2])]
  edits = [rng.randrange(15) for _ in range(rng.choice((0, 1, 1, 2)))]
  for edit in edits:
    if not rows:
      break
    row = rng.choice(rows)
    if edit == 0:
      rows.insert(rng.randrange(len(rows) + 1), dict(row))
    elif edit == 1:
      i, j = rng.randrange(len(rows)), rng.randrange(len(rows))
      rows[i], rows[j] = rows[j], rows[i]
    elif edit == 2:
      row["kind"] = rng.choice((0, 1, 2, 3, 4, 2**32 - 1))
    elif edit == 3:
      row["id"] = rng.choice((0, 1, 2, 4095, 2**32 - 1))
    elif edit == 4:
      rows.remove(row)
  header = 16 + 56 * len(rows)
  body, table = bytearray(), b""
  places = {}
  for i, row in enumerate(rows):
    body += bytes(-(header + len(body)) % 16)
    places[i] = header + len(body)
    body += row["data"]
  for i, row in enumerate(rows):
    offset, size, digest = places[i], row["size"], hashlib.sha256(row["data"]).digest()
    chosen = i == rng.randrange(len(rows))
    if chosen and 5 in edits:
      offset += rng.choice((16, -16, 8, 2**40, 2**63))
    if chosen and 6 in edits:
      size = max(0, size + rng.choice((1, -1, 16, 2**40, 2**63)))
    if chosen and 7 in edits:
      offset = places[rng.randrange(len(rows))]
    if chosen and 8 in edits:
      digest = rng.randbytes(32)
    table += struct.pack("<IIQQ32s", row["kind"], row["id"], offset % 2**64, size % 2**64, digest)
  count = len(rows) + (rng.choice((1, -1, 5000, 2**31)) if 9 in edits else 0)
  data = struct.pack("<8sII", b"MUGRAPH1", 2 - (10 in edits), count % 2**32) + table + body
  if 11 in edits:
    data += bytes(rng.randrange(1, 20))
  if 12 in edits:
    data = data[: rng.randrange(len(data) + 1)]
  if 13 in edits:
    at = rng.randrange(len(data) or 1)
    data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
  return bytes(data)


def damaged_image(rng):
  """The bytes of an ELF file in which fields of its headers and tables are changed."""
  kernels = {
    f"k{i}": Compiled(tuple(rng.choice((4, 8)) for _ in range(rng.randrange(5))), rng.choice((1, 32, 1024)),
                      rng.choice((1, 2, 16)), rng.choice((0, 512)))
    for i in range(rng.randrange(1, 4))
  }  # fmt: skip
  data = bytearray(cubin_image(kernels))
  sections = struct.unpack_from("<Q", data, 40)[0]
  count = struct.unpack_from("<H", data, 60)[0]
  for _ in range(rng.choice((0, 1, 1, 2, 3))):
    width = rng.choice((1, 2, 4, 8))
    where = rng.random()
    if where < 0.3:
      at = rng.randrange(HEADER.size)
    elif where < 0.7:
      at = sections + SECTION.size * rng.randrange(count) + rng.choice((0, 4, 24, 32, 40, 44, 56))
    else:
      at = rng.randrange(len(data))
    near = int.from_bytes(data[at : at + width], "little")
    value = rng.choice((0, 1, near + 1, near - 1, near * 2, len(data), len(data) - 1, 2**63, 2**64 - 1, count,
                        rng.getrandbits(64)))  # fmt: skip
    data[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
  if rng.random() < 0.1:
    del data[rng.randrange(len(data)) :]
  return bytes(data)


def damaged_node(rng):
  """The bytes of a bundle that is right but for what plan 0 of it needs."""
  images = [rng.randbytes(rng.randrange(80)) for _ in range(rng.randrange(4))]
  plans = [damaged_plan(rng) for _ in range(rng.choice((0, 1, 1, 1, 1, 2)))]
  plans = [p.decode("latin-1") for p in plans if p.isascii()]
  return write_bundle(Bundle(tuple(images), tuple(plans)))


MAKERS = {"P": damaged_plan, "B": damaged_bundle, "N": damaged_node, "I": damaged_image}


def made(kind, seed):
  """One file: ``kind`` is P(lan), B(undle), N(ode: a bundle of which it runs plan 0) or I(mage)."""
  return MAKERS[kind](random.Random(f"{kind}{seed}"))


def corpus(files):
  """``files``: (kind, bytes), for the program that judges them."""
  return b"".join(kind.encode() + struct.pack("<I", len(data)) + data for kind, data in files)


def judged(kind, data):
  """Why Python refuses a file, "", or the digest of a node; None where only the library reads it."""
  try:
    if kind == "P":
      parse_plan(data.decode("latin-1"))
    elif kind == "B":
      read_bundle(data)
    elif kind == "N":
      return f"digest {node_digest(read_bundle(data), 0)}"
    else:
      return None
  except MirageError as error:
    # Only Python decodes provenance: the last rule, when all of the library's have passed.
    if "cannot be decoded" in error.detail:
      return None if kind == "N" else ""
    return error.detail
  return ""


def accepted(said):
  """How many lines of judgement are of files that are taken."""
  return sum(not line or line.startswith("digest ") for line in said)
