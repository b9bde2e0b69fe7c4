"""Bundles: deterministic bytes, every damage refused, and no crash on anything."""

import hashlib
import struct
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirage_onnx.custom_op import Bundle, InferenceSession, read_bundle, write_bundle
from mirage_onnx.errors import MirageError

BUNDLE = Bundle((b"\x7fELF" * 5, b""), ("plan 1\n", "plan 1\nx\n"), ({"µ": [1, 2], "a": None}, {}))
DATA = write_bundle(BUNDLE)


def refusal(data):
  try:
    read_bundle(data)
  except MirageError as error:
    assert error.code == "BUNDLE_INVALID"
    return str(error)
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
  assert struct.unpack_from("<8sII", DATA) == (b"MUGRAPH1", 1, 6)
  kind, number, offset, size, digest = struct.unpack_from("<IIQQ32s", DATA, 16 + 2 * 56)
  assert (kind, number, offset % 16) == (2, 0, 0)
  assert DATA[offset : offset + size] == b"plan 1\n"
  assert digest == hashlib.sha256(b"plan 1\n").digest()


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


def test_native_reader_checks_the_sections_it_reads(native):
  kinds = ((1, 0), (1, 1), (2, 0), (2, 1))
  assert [native.bundle(DATA, *which) for which in kinds] == [""] * 4
  damaged = DATA.replace(b"plan 1\n", b"plan 2\n", 1)
  assert native.bundle(damaged, 2, 0) == (
    "bundle: the SHA-256 of plan 0 does not match: the bytes were changed"
  )
  assert native.bundle(damaged, 2, 1) == ""


@pytest.mark.parametrize(
  ("at", "value", "reason"),
  [
    (0, b"X", "bundle: it does not begin with MUGRAPH1"),
    (8, struct.pack("<I", 2), "bundle: version 2, this library reads version 1"),
    (12, struct.pack("<I", 2**32 - 1), "entries do not fit"),
    (12, struct.pack("<I", 4097), "entries do not fit"),
    (16, struct.pack("<I", 4), "bundle: entry 0 has an unknown kind"),
    (24, struct.pack("<Q", 8), "bundle: entry 0 is not 16-byte aligned"),
    (24, struct.pack("<Q", 16), "bundle: entry 0 is out of bounds"),
    (24, struct.pack("<Q", 2**64 - 16), "bundle: entry 0 is out of bounds"),
    (32, struct.pack("<Q", 2**64 - 1), "bundle: entry 0 is out of bounds"),
  ],
)
def test_native_reader_checks_every_bound(native, at, value, reason):
  damaged = DATA[:at] + value + DATA[at + len(value) :]
  assert reason in native.bundle(damaged, 1, 0)
  assert refusal(damaged)


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
  return struct.pack("<8sII", b"MUGRAPH1", 1, 1) + entry + bytes(8) + data


@pytest.mark.parametrize(
  ("kind", "section"),
  [
    (2, "plän".encode()),
    (3, b"not zlib"),
    (3, zlib.compress(b"not json")),
    (3, zlib.compress(b"[]")),
    (3, zlib.compress(b"{}") + b"tail"),
    (3, zlib.compress(b"{}")[:-1]),
    (3, zlib.compress(b'{"a":' + b"[" * 100_000)),
    (3, zlib.compress(b" " * ((64 << 20) + 1))),
  ],
)
def test_sections_with_a_right_hash_and_wrong_content(kind, section):
  assert "cannot be decoded" in refusal(_one_section(kind, section))


def test_what_cannot_be_written():
  with pytest.raises(MirageError, match="ASCII"):
    write_bundle(Bundle((), ("plän",)))
  with pytest.raises(MirageError, match="4097 sections"):
    write_bundle(Bundle((b"",) * 4097, ()))
