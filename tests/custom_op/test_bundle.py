"""Bundles: deterministic bytes, every damage refused, and no crash on anything."""

import hashlib
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_onnx.custom_op import Bundle, InferenceSession, read_bundle, write_bundle
from mirage_onnx.errors import MirageError

BUNDLE = Bundle((b"\x7fELF" * 5, b""), ("plan 2\n", "plan 2\nx\n"), ({"µ": [1, 2], "a": None}, {}))
DATA = write_bundle(BUNDLE)


def refusal(data):
  try:
    read_bundle(data)
  except MirageError as error:
    assert error.code == "BUNDLE_INVALID"
    return error.detail
  return ""


@settings(deadline=None)
@given(
  st.lists(st.binary(max_size=40), max_size=4),
  st.lists(st.text(st.characters(max_codepoint=127), max_size=40), max_size=4),
  st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=3),
)
def test_written_bundles_read_back(native, cubins, plans, provenance):
  bundle = Bundle(tuple(cubins), tuple(plans), tuple(provenance))
  data = write_bundle(bundle)
  assert read_bundle(data) == bundle
  assert write_bundle(read_bundle(data)) == data
  for kind, sections in ((1, cubins), (2, plans), (3, provenance)):
    for number in range(len(sections)):
      assert native.bundle(data, kind, number) == ""
    assert "bundle: it has no" in native.bundle(data, kind, len(sections))


def test_layout():
  assert struct.unpack_from("<8sII", DATA) == (b"MUGRAPH1", 2, 6)
  kind, number, offset, size, digest = struct.unpack_from("<IIQQ32s", DATA, 16 + 2 * 56)
  assert (kind, number, offset % 16) == (2, 0, 0)
  assert DATA[offset : offset + size] == b"plan 2\n"
  assert digest == hashlib.sha256(b"plan 2\n").digest()


def test_key_order_does_not_change_the_bytes():
  one = Bundle((), (), ({"a": 1, "b": 2},))
  other = Bundle((), (), ({"b": 2, "a": 1},))
  assert write_bundle(one) == write_bundle(other)


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000])
def test_sha256(native, size):
  data = bytes(i * 37 % 256 for i in range(size))
  assert native.sha256(data) == hashlib.sha256(data).digest()


def test_every_changed_byte_is_found():
  for at in range(len(DATA)):
    damaged = bytearray(DATA)
    damaged[at] ^= 0x40
    assert refusal(bytes(damaged)), f"byte {at}"


def test_every_truncation_and_extension_is_found():
  assert all(refusal(DATA[:n]) for n in range(len(DATA)))
  assert "after the last section" in refusal(DATA + b"\0")


def both(native, data):
  """The reason of both readers, which must be the same."""
  found = refusal(data)
  assert native.bundle(data) == (found and f"bundle: {found}")
  return found


def test_native_reader_finds_sections(native):
  kinds = ((1, 0), (1, 1), (2, 0), (2, 1), (0, 0))
  assert [native.bundle(DATA, *which) for which in kinds] == [""] * 5
  assert native.bundle(DATA, 2, 2) == "bundle: it has no plan 2"


ENTRIES = [DATA[16 + 56 * i : 72 + 56 * i] for i in range(6)]


def put(at, value):
  return DATA[:at] + value + DATA[at + len(value) :]


@pytest.mark.parametrize(
  ("data", "reason"),
  [
    (put(0, b"X"), "it does not begin with MUGRAPH1"),
    (put(8, struct.pack("<I", 1)), "it has version 1, this program reads 2: optimize the original model"),
    (put(8, struct.pack("<I", 3)), "it has version 3, this program reads 2: optimize the original model"),
    (put(12, struct.pack("<I", 2**32 - 1)), f"4294967295 entries do not fit in {len(DATA)} bytes"),
    (put(12, struct.pack("<I", 4097)), "entries do not fit"),
    (put(16, struct.pack("<I", 4)), "entry 0 is out of order or out of place"),
    (put(16, struct.pack("<I", 0)), "entry 0 is out of order or out of place"),
    (put(20, struct.pack("<I", 1)), "entry 0 is out of order or out of place"),
    (put(24, struct.pack("<Q", 8)), "entry 0 is out of order or out of place"),
    (put(24, struct.pack("<Q", 2**64 - 16)), "entry 0 is out of order or out of place"),
    (put(32, struct.pack("<Q", 2**64 - 1)), "entry 0 is cut off"),
    (put(40, bytes(32)), "entry 0 does not have its SHA-256: the bytes were changed"),
    # duplicate, disordered, overlapping, with something between, and behind
    (put(72, ENTRIES[0]), "entry 1 is out of order or out of place"),
    (put(16, ENTRIES[1] + ENTRIES[0]), "entry 0 is out of order or out of place"),
    (put(16 + 2 * 56, ENTRIES[3] + ENTRIES[2]), "entry 2 is out of order or out of place"),
    (put(72 + 8, ENTRIES[0][8:24]), "entry 1 is out of order or out of place"),
    (DATA, ""),
    (DATA + b"\0", "1 bytes after the last section"),
    (DATA[:-1], "entry 5 is cut off"),
    (DATA.replace(b"plan 2\n", b"plan 3\n", 1), "entry 2 does not have its SHA-256"),
  ],
)
def test_both_readers_have_the_same_rules(native, data, reason):
  found = both(native, data)
  assert reason in found and bool(reason) == bool(found)


def test_padding_is_zero(native):
  for at in range(len(DATA)):
    if DATA[at] == 0:
      both(native, put(at, b"\1"))
  first = struct.unpack_from("<Q", DATA, 24)[0]  # of 20 bytes, so 12 of padding follow
  assert "entry 1 is out of order or out of place" in both(native, put(first + 20, b"\1"))


def test_every_bit_is_judged_alike(native):
  for at in range(len(DATA)):
    for bit in (0, 3, 7):
      assert both(native, put(at, bytes([DATA[at] ^ 1 << bit])))


def test_a_plan_of_other_text_is_refused_by_both(native):
  assert "entry 0 is not ASCII" in both(native, _one_section(2, "plän".encode()))


def test_more_than_a_bundle_may_have(native):
  data = DATA + bytes((256 << 20) + 1 - len(DATA))
  assert "longer than 256 MiB" in both(native, data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, len(DATA)), st.integers(0, 5), st.integers(0, 3))
def test_bytes_never_crash_the_native_reader(native, noise, at, kind, number):
  for data in (noise, b"MUGRAPH1" + noise, DATA[:at] + noise + DATA[at + len(noise) :]):
    native.bundle(data, kind, number)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=40), st.integers(0, 400))
def test_damaged_bundles_never_crash_a_session(models, driver, noise, at):
  data = models.bundle(models.add_plan())
  damaged = data[:at] + noise + data[at + len(noise) :]
  try:
    InferenceSession(models.add(damaged), providers=["CPUExecutionProvider"], ep="host", driver=driver)
  except Exception as error:  # onnxruntime has no common base class
    assert "mirage-onnx: node 'node0' (MuGraph_0): " in str(error)
    assert len(str(error)) < 400


def _one_section(kind, data):
  entry = struct.pack("<IIQQ32s", kind, 0, 80, len(data), hashlib.sha256(data).digest())
  return struct.pack("<8sII", b"MUGRAPH1", 2, 1) + entry + bytes(8) + data


@pytest.mark.parametrize(
  ("kind", "section"),
  [
    (3, b"not zlib"),
    (3, zlib.compress(b"not json")),
    (3, zlib.compress(b"[]")),
    (3, zlib.compress(b"{}") + b"tail"),
    (3, zlib.compress(b"{}")[:-1]),
    (3, zlib.compress(b'{"a":' + b"[" * 100_000)),
    (3, zlib.compress(b" " * ((32 << 20) + 1))),
    (3, zlib.compress(b'{"a":[' + b"0," * (1 << 20) + b"0]}")),
    (3, zlib.compress(b'{"a":[' + b"[]," * (1 << 19) + b"0]}")),
  ],
)
def test_sections_with_a_right_hash_and_wrong_content(kind, section):
  assert "cannot be decoded" in refusal(_one_section(kind, section))


def _bombs(count, size):
  return (zlib.compress(b'{"a":"' + b" " * size + b'"}'),) * count


def test_the_provenance_of_a_file_is_bounded_together():
  """A thousand records of a MiB each, 1 MB of file: refused before much of it is unpacked."""
  records = _bombs(1000, 1 << 20)
  entries, sections, offset = b"", b"", 16 + 56 * len(records)
  offset += -offset % 16
  first = offset
  for i, data in enumerate(records):
    entries += struct.pack("<IIQQ32s", 3, i, offset, len(data), hashlib.sha256(data).digest())
    padded = data + bytes(-len(data) % 16)
    offset += len(padded)
    sections += padded if i + 1 < len(records) else data
  data = struct.pack("<8sII", b"MUGRAPH1", 2, len(records)) + entries
  data += bytes(first - len(data)) + sections
  tracemalloc.start()
  assert "too long" in refusal(data)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 3 * (32 << 20)


def test_what_cannot_be_written():
  with pytest.raises(MirageError, match="ASCII"):
    write_bundle(Bundle((), ("plän",)))
  with pytest.raises(MirageError, match="4097 sections"):
    write_bundle(Bundle((b"",) * 4097, ()))
