"""The bundle: every cubin and plan of a model as one uint8 initializer.

Little endian: ``MUGRAPH1``, u32 version, u32 entry count, entries {u32 kind, u32 id, u64 offset,
u64 size, 32 bytes SHA-256 of the section}, then the sections in order, each at a multiple of 16.
Kinds: 1 cubin, 2 plan (ASCII), 3 provenance (zlib-compressed JSON). Version 2: nodes state the
digest of what they run (``node_digest.py``), plans what kernels touch; version 1 is refused.

Rules, in the order in which they are checked, here and in ``cpp/ort_custom_ops/bundle.cc``; the
first that is broken is the reason of the refusal, in the same words:

1. at most 256 MiB;  2. magic;  3. version;  4. at most 4096 entries, whose table fits;
5. per entry: kinds do not fall, ids of a kind count up from 0, and the section begins at the next
   multiple of 16 behind the one before;  6. it ends inside;  7. the bytes between are zero;
8. its SHA-256 is right;  9. a plan is ASCII;  10. nothing follows the last section.

Only this side reads provenance, so only it bounds and decodes it.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirage_onnx.errors import MirageError

MAGIC = b"MUGRAPH1"
VERSION = 2
CUBIN, PLAN, PROVENANCE = 1, 2, 3
MAX_ENTRIES = 4096
MAX_BYTES = 256 << 20
#: Of all provenance of a file together, decompressed, and how many values its JSON may have: what a
#: zip bomb, or a text of nothing but brackets, can cost. Bundles of many kernels need a hundredth.
MAX_PROVENANCE_BYTES = 32 << 20
MAX_PROVENANCE_VALUES = 1 << 20

_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<IIQQ32s")


@dataclass(frozen=True, slots=True)
class Bundle:
  """Contents of a bundle. ``plans[k]`` is run by ``MuGraph_k``; plans name cubins by index."""

  cubins: tuple[bytes, ...]
  plans: tuple[str, ...]
  provenance: tuple[dict[str, Any], ...] = ()


def write_bundle(bundle: Bundle) -> bytes:
  """The bytes of a bundle; equal bundles give equal bytes.

  Raises:
      MirageError: BUNDLE_INVALID when a plan is not ASCII or there are too many sections.
  """
  if not all(plan.isascii() for plan in bundle.plans):
    raise MirageError("BUNDLE_INVALID", "a plan must be ASCII text")
  sections = [(CUBIN, i, cubin) for i, cubin in enumerate(bundle.cubins)]
  sections += [(PLAN, i, plan.encode()) for i, plan in enumerate(bundle.plans)]
  sections += [(PROVENANCE, i, _pack(record)) for i, record in enumerate(bundle.provenance)]
  if len(sections) > MAX_ENTRIES:
    raise MirageError("BUNDLE_INVALID", f"{len(sections)} sections, at most {MAX_ENTRIES}")
  out = bytearray(_HEADER.pack(MAGIC, VERSION, len(sections)))
  offset = _aligned(_HEADER.size + _ENTRY.size * len(sections))
  for kind, number, data in sections:
    out += _ENTRY.pack(kind, number, offset, len(data), hashlib.sha256(data).digest())
    offset = _aligned(offset + len(data))
  for _, _, data in sections:
    out += bytes(_aligned(len(out)) - len(out)) + data
  return bytes(out)


def read_bundle(data: bytes) -> Bundle:
  """Reads a bundle that ``write_bundle`` wrote, and checks every byte of it.

  Raises:
      MirageError: BUNDLE_INVALID with what is wrong.
  """
  if len(data) > MAX_BYTES:
    raise _refused("it is longer than 256 MiB")
  if len(data) < _HEADER.size or data[:8] != MAGIC:
    raise _refused("it does not begin with MUGRAPH1")
  _, version, count = _HEADER.unpack_from(data)
  if version != VERSION:
    why = f"it has version {version}, this program reads {VERSION}"
    raise _refused(f"{why}: optimize the original model again")
  end = _HEADER.size + _ENTRY.size * count
  if count > MAX_ENTRIES or end > len(data):
    raise _refused(f"{count} entries do not fit in {len(data)} bytes")
  found: dict[int, list[bytes]] = {CUBIN: [], PLAN: [], PROVENANCE: []}
  last_kind = 0
  for index in range(count):
    kind, number, offset, size, digest = _ENTRY.unpack_from(data, _HEADER.size + _ENTRY.size * index)
    # Sections follow each other without gaps, so a byte outside every hash must be padding.
    in_order = kind in found and kind >= last_kind and number == len(found[kind])
    if not in_order or offset != _aligned(end):
      raise _refused(f"entry {index} is out of order or out of place")
    section = data[offset : offset + size]
    if offset > len(data) or len(section) != size:
      raise _refused(f"entry {index} is cut off")
    if any(data[end:offset]):
      raise _refused(f"entry {index} is out of order or out of place")
    if hashlib.sha256(section).digest() != digest:
      raise _refused(f"entry {index} does not have its SHA-256: the bytes were changed")
    if kind == PLAN and not section.isascii():
      raise _refused(f"entry {index} is not ASCII")
    found[kind].append(section)
    last_kind, end = kind, offset + size
  if end != len(data):
    raise _refused(f"{len(data) - end} bytes after the last section")
  plans = tuple(plan.decode("ascii") for plan in found[PLAN])
  return Bundle(tuple(found[CUBIN]), plans, _unpack(found[PROVENANCE]))


def _refused(why: str) -> MirageError:
  return MirageError("BUNDLE_INVALID", why)


def _aligned(offset: int) -> int:
  return -(-offset // 16) * 16


def _pack(record: dict[str, Any]) -> bytes:
  text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
  return zlib.compress(text.encode(), 9)


def _unpack(sections: Sequence[bytes]) -> tuple[dict[str, Any], ...]:
  """The records; all of them are bounded together before any is read as JSON."""
  try:
    texts = []
    left = MAX_PROVENANCE_BYTES
    for section in sections:
      stream = zlib.decompressobj()
      text = stream.decompress(section, left + 1)  # 0 would mean any length
      if len(text) > left or not stream.eof or stream.unused_data:
        raise ValueError("provenance is cut off, too long, or followed by other bytes")
      left -= len(text)
      texts.append(text)
    if sum(text.count(mark) for text in texts for mark in (b",", b"[", b"{")) > MAX_PROVENANCE_VALUES:
      raise ValueError("provenance has too many values")
    records = tuple(json.loads(text) for text in texts)
  except (ValueError, zlib.error, RecursionError) as error:
    raise _refused(f"a section cannot be decoded: {error}") from error
  if not all(isinstance(record, dict) for record in records):
    raise _refused("a section cannot be decoded: provenance is not a JSON object")
  return records
