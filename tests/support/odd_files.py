"""Plans, bundles, nodes and images that are built odd, not damaged: as ``damaged_files.py`` one by seed.

A plan is written from its grammar with values at their ends, a bundle and an image from their tables
with every field anywhere.
"""

import hashlib
import random
import struct

from cubin_images import HEADER, SECTION, SYMBOL, Compiled, cubin_image

from mirage_onnx.custom_op.bundle import Bundle, write_bundle

NUMBERS = ("0", "1", "-1", "2", "7", "16", "1024", "1025", "65535", "65536", "2147483647", "2147483648", "4294967296",
           "1099511627776", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "00", "-0", "+1",
           "1_0", " 1", "0x1", "1.0", "", "٣")  # fmt: skip
KINDS = (
  "f16",
  "bf16",
  "f32",
  "f64",
  "i8",
  "u8",
  "i16",
  "u16",
  "i32",
  "u32",
  "i64",
  "u64",
  "bool",
  "f8",
  "F16",
  "str",
  "",
)
OPERATORS = ("+", "-", "*", "ceildiv", "mod", "min", "max", "eq", "le", "and", "or", "/", "CEILDIV")
EDGES = (0, 1, 2, 15, 16, 17, 63, 64, 255, 4096, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
         1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 16)  # fmt: skip
U32, U64 = (1 << 32) - 1, (1 << 64) - 1


def _some(rng, usual, odd, chance=0.06):
  return rng.choice(odd) if rng.random() < chance else usual


def expression(rng, depth=0):
  if rng.random() < 0.004:
    return ",".join(rng.choice((*NUMBERS, *OPERATORS, "d0.0", "d1.1", "d9.9", "d64.0", "d0.8", "d", "d.", "d0.0.0", "D0.0"))
                    for _ in range(rng.choice((1, 3, 17, 128, 129, 400))))  # fmt: skip
  if rng.random() < 0.004:
    return ",".join(["d0.0"] * rng.choice((15, 16, 17)) + ["+"] * rng.choice((14, 15, 16)))
  if depth > 3 or rng.random() < 0.5:
    return _some(rng, rng.choice(("d0.0", "d0.1", "d1.0", "1", "8", "128")), NUMBERS, 0.01)
  return f"{expression(rng, depth + 1)},{expression(rng, depth + 1)},{_some(rng, rng.choice(OPERATORS[:10]), OPERATORS, 0.01)}"


def plan(rng):
  count = lambda usual, most: _some(rng, rng.randrange(usual), (most, most + 1, 0), 0.03)  # noqa: E731
  lines = [first_line(rng)]
  for _ in range(_some(rng, 2, (0, 1, 3, 64, 65), 0.1)):
    dims = [
      _some(rng, rng.choice(("*", "4", "64")), NUMBERS, 0.02)
      for _ in range(_some(rng, 2, (0, 1, 8, 9), 0.04))
    ]
    lines.append(" ".join(("input", _some(rng, "f32", KINDS), *dims)))
  for _ in range(count(2, 256)):
    product = ",".join(["d0.0", *(rng.choice(("d1.1,*", "3,*", "d0.1,*")) for _ in range(rng.randrange(3)))])
    lines.append(
      f"equal {_some(rng, product, (expression(rng),))} {rng.choice(('d0.0', 'd1.0,2,*', product))}"
    )
  for _ in range(1 + count(2, 32)):
    dims = [expression(rng) for _ in range(_some(rng, 2, (0, 1, 8, 9), 0.1))]
    lines.append(" ".join(("output", _some(rng, "f32", KINDS), *dims)))
  space = rng.random() < 0.5
  if space:
    lines.append(f"workspace {expression(rng)}")
  variants = 1 + count(2, 64)
  for v in range(variants):
    last = v == variants - 1
    lines.append(f"variant {expression(rng)}" if last is (rng.random() < 0.02) else "variant")
    for _ in range(count(3, 64)):
      words = ["launch", _some(rng, "0", NUMBERS, 0.02)]
      words.append(_some(rng, rng.choice(("k", "first")), ("", "9k", "k.k", "k" * 300, "_"), 0.02))
      words += ["grid", *(expression(rng) for _ in range(3)), "block", _some(rng, "128", NUMBERS, 0.02)]
      words += [
        "cluster",
        _some(rng, "1", ("8", "16", "17", *NUMBERS), 0.02),
        "smem",
        _some(rng, "0", ("232448", "232449", *NUMBERS), 0.02),
      ]
      words += ["pdl", _some(rng, "0", NUMBERS, 0.02), "args"]
      for _ in range(count(5, 64)):
        words.append(rng.choice((f"i0#{expression(rng)}", f"o0#{expression(rng)}", f"i32:{expression(rng)}", f"i64:{expression(rng)}", f"t:0:1:8:8:{rng.choice((1, 256, 257))}:i0#{expression(rng)}",
                                 f"w:{expression(rng)}#{expression(rng)}" if space else "i0#8",
                                 _some(rng, "i0#8", ("i64#8", "o32#1", "i-1#1", "i0", "#8", "w:#", "i0#8#8", "i32:", "i128:1", "i99999999999999999999#1"), 0.02))))  # fmt: skip
      lines.append(" ".join(words))
  what = rng.random()
  if what < 0.05:
    rng.shuffle(lines)
  elif what < 0.1:
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
  elif what < 0.14:
    del lines[rng.randrange(len(lines))]
  text = "\n".join(lines) + "\n"
  what = rng.random()
  if what < 0.06:
    old, new = rng.choice(
      (
        (" ", "  "),
        (" ", "\t"),
        ("\n", "\r\n"),
        ("\n", "\n\n"),
        ("\n", "\0\n"),
        ("0", "\xb2"),
        ("plan", "\xef\xbb\xbfplan"),
        ("\n", " \n"),
        ("\n", "\x0b\n"),
      )
    )
    text = text.replace(old, new, rng.choice((1, 1000)))
  elif what < 0.08:
    text = text[:-1]
  elif what < 0.085:
    text += f"launch {'x' * rng.choice((1 << 20, (1 << 20) - 8))}\n"
  return text.encode()


def first_line(rng):
  return _some(rng, "plan 2", ("plan 1", "plan 3", "plan", "plan 2 2", "Plan 2", ""), 0.02)


def _entries(rng, sections):
  """A bundle from a table in which every field may be any."""
  count = _some(rng, len(sections), (0, 1, len(sections) + 1, 4096, 4097, U32), 0.1)
  head = bytearray(
    struct.pack(
      "<8sII",
      _some(rng, b"MUGRAPH1", (b"MUGRAPH2", b"mugraph1", bytes(8)), 0.02),
      _some(rng, 2, EDGES[:15], 0.03),
      count & U32,
    )
  )
  end, body, table = 16 + 56 * len(sections), bytearray(), bytearray()
  body += bytes(-(end) % 16)
  at = end + len(body)
  for kind, number, data in sections:
    digest = _some(
      rng, hashlib.sha256(data).digest(), (bytes(32), hashlib.sha256(data + b"x").digest()), 0.03
    )
    offset, size = _some(rng, at, EDGES, 0.04), _some(rng, len(data), EDGES, 0.04)
    if rng.random() < 0.03:
      offset, size = rng.choice(
        ((U64 - 15, 32), (at, U64 - at + 1), (at + 16, len(data)), (at - 16, len(data)), (0, at), (16, 56))
      )
    table += struct.pack(
      "<IIQQ32s",
      _some(rng, kind, (0, 1, 2, 3, 4, U32), 0.04),
      _some(rng, number, (0, 1, 2, U32), 0.04),
      offset & U64,
      size & U64,
      digest,
    )
    body += data
    pad = -len(data) % 16
    body += bytes(pad) if rng.random() < 0.97 else bytes([1] * pad)
    at += len(data) + pad
  while body and sections and len(sections[-1][2]) % 16 and rng.random() < 0.97 and body[-1] == 0:
    body.pop()  # nothing follows the last section
    if (len(body) + end) % 16 == len(sections[-1][2]) % 16:
      break
  data = bytes(head + table + body)
  what = rng.random()
  if what < 0.05:
    return data + bytes(rng.choice((1, 15, 16, 4096)))
  return data[: rng.choice((0, 7, 8, 15, 16, 71, len(data) - 1))] if what < 0.1 else data


def sections(rng):
  found = [(1, i, image(rng) if rng.random() < 0.3 else rng.choice((b"", b"x", bytes(15), bytes(16), bytes(17))))
           for i in range(_some(rng, 2, (0, 1, 40), 0.2))]  # fmt: skip
  found += [
    (2, i, plan(rng) if rng.random() < 0.7 else rng.choice((b"", b"\xff", b"plan 2\n")))
    for i in range(_some(rng, 1, (0, 3), 0.2))
  ]
  if rng.random() < 0.05:
    rng.shuffle(found)
  if rng.random() < 0.05:
    found *= 2
  return found


def bundle(rng):
  return _entries(rng, sections(rng))


def node(rng):
  """One that runs plan 0: often a right bundle of an odd plan."""
  images = [cubin_image({"k": Compiled((8, 8)), "first": Compiled((8, 4))}), b"x" * rng.choice((0, 1, 16))]
  text = plan(rng)
  if rng.random() < 0.8 and text.isascii():
    return write_bundle(Bundle(tuple(images), (text.decode(),)))
  return _entries(rng, [(1, i, data) for i, data in enumerate(images)] + [(2, 0, text)])


def image(rng):
  kernels = {name: Compiled(tuple(_some(rng, 8, (4, 0, 1, 3, 16, 16383, 4096), 0.1) for _ in range(rng.choice((0, 1, 4, 64, 65)))),
                            _some(rng, 128, (0, 1, 1024, 1025, U32), 0.1), _some(rng, 1, (0, 2, 8, 16, 17, U32), 0.1), _some(rng, 0, (1, 1024, 1 << 31, U64), 0.1))
             for name in rng.sample(("k", "first", "second", "a.b", "x" * 300, ".text", ""), rng.choice((1, 1, 2, 3)))}  # fmt: skip
  extra = {rng.choice((".nv.info", ".nv.info.k", ".nv.shared.k", ".text.k", ".nv_debug_ptx_txt", ".rela.text.k", ".symtab", ".strtab", "", ".nv.callgraph", ".note")):
           bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 3, 4, 12, 40))))} if rng.random() < 0.2 else {}  # fmt: skip
  data = bytearray(cubin_image(kernels, extra))
  header = list(HEADER.unpack_from(data))
  table, count = header[6], header[12]
  for _ in range(rng.choice((0, 1, 1, 2))):
    what = rng.randrange(7)
    if what == 0:
      place = rng.randrange(1, len(header))
      header[place] = rng.choice(EDGES) & (U64 if place in (4, 5, 6) else U32 if place in (3, 7) else 0xFFFF)
    elif what == 1:
      ident = bytearray(header[0])
      ident[rng.randrange(16)] = rng.choice((0, 1, 2, 3, 64, 65, 127, 255))
      header[0] = bytes(ident)
    elif what in (2, 3):
      at = table + SECTION.size * rng.randrange(count)
      fields = list(SECTION.unpack_from(data, at))
      place = rng.randrange(len(fields))
      fields[place] = rng.choice((*EDGES, len(data), len(data) - 1, table, 64)) & (
        U32 if place in (0, 1, 6, 7) else U64
      )
      SECTION.pack_into(data, at, *fields)
    elif what == 4:
      a, b = (table + SECTION.size * rng.randrange(count) for _ in range(2))
      data[a : a + SECTION.size], data[b : b + SECTION.size] = (
        data[b : b + SECTION.size],
        data[a : a + SECTION.size],
      )
    elif what == 5:
      symbols = [k for k in range(count) if SECTION.unpack_from(data, table + SECTION.size * k)[1] == 2]
      if symbols:
        at = SECTION.unpack_from(data, table + SECTION.size * symbols[0])[4] + SYMBOL.size * rng.randrange(
          1, 3
        )
        if at + SYMBOL.size <= len(data):
          fields = list(SYMBOL.unpack_from(data, at))
          place = rng.randrange(len(fields))
          fields[place] = rng.choice(EDGES) & (
            0xFF if place in (1, 2) else 0xFFFF if place == 3 else U32 if place == 0 else U64
          )
          SYMBOL.pack_into(data, at, *fields)
    else:  # a record of what a kernel says of itself
      infos = [SECTION.unpack_from(data, table + SECTION.size * k) for k in range(count)]
      infos = [f for f in infos if f[1] == 0x70000000 and f[5] and f[4] + f[5] <= len(data)]
      if infos:
        f = rng.choice(infos)
        at = f[4] + 4 * rng.randrange(max(1, f[5] // 4))
        data[at : at + 4] = struct.pack("<I", rng.choice(EDGES) & U32)
  HEADER.pack_into(data, 0, *header)
  if rng.random() < 0.1:
    data = data[: rng.choice((0, 15, 16, 63, 64, table, table + 64, len(data) - 1))]
  return bytes(data) + (bytes(rng.choice((1, 64))) if rng.random() < 0.05 else b"")


MAKERS = {"P": plan, "B": bundle, "N": node, "I": image}


def made(kind, seed):
  """One file; ``kind`` as in ``damaged_files.made``."""
  return MAKERS[kind](random.Random(f"odd {kind}{seed}"))
