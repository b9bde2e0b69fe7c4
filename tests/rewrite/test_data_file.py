"""Names of data files: of the content alone; what nobody needs goes, what anybody may need stays."""

import os
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from written_files import data_file, data_files_of

from mirage_onnx.errors import Rejection
from mirage_onnx.rewrite.data_file import NamedBeside, data_digits, remove_leftovers
from mirage_onnx.rewrite.save import save_model

MIB = 1 << 20


def model(value):
  weight = numpy_helper.from_array(np.full((64, 64), value, np.float32), "w")
  graph = helper.make_graph([], "g", [], [], [weight])
  return helper.make_model(graph, ir_version=10)


def save(out, value, **options):
  return save_model(model(value), out, inline_limit_bytes=0, **options)


def value_of(out):
  (weight,) = onnx.load(out).graph.initializer
  return float(numpy_helper.to_array(weight)[0, 0])


def name_of(path, data):
  path.write_bytes(data)
  return data_digits(path)


def test_a_name_says_the_content(tmp_path, rng):
  data = rng.integers(0, 256, 3 * MIB + 7, np.uint8).tobytes()
  first = name_of(tmp_path / "a", data)
  assert first == name_of(tmp_path / "b", data)
  others = [data[:-1], data + b"\0", bytes(MIB) + data, data[MIB:] + data[:MIB], bytes(len(data)), b"", b"\0"]
  others += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in (0, MIB - 1, MIB, 3 * MIB + 6)]
  assert len({first, *(name_of(tmp_path / "c", other) for other in others)}) == len(others) + 1


@pytest.mark.parametrize("begin", [0, 5, MIB, 2 * MIB + 4096])
def test_holes_are_zeros(tmp_path, begin):
  sparse = tmp_path / "sparse"
  with sparse.open("wb") as file:
    file.truncate(5 * MIB + 9)
    file.seek(begin)
    file.write(b"x" * 4096)
  assert name_of(tmp_path / "full", sparse.read_bytes()) == data_digits(sparse)


@pytest.mark.skipif(sys.platform != "linux", reason="a hole is read where the file system keeps none")
def test_a_hole_takes_no_time(tmp_path):
  sparse = tmp_path / "sparse"
  with sparse.open("wb") as file:
    file.truncate(1 << 42)  # at 10 GB/s seven minutes
    file.write(b"x")
  assert data_digits(sparse)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_named_while_it_is_written_has_the_same_name(tmp_path, seed):
  """Stretches and gaps of any size, some of zeros, one after the other."""
  rng, at, path = np.random.default_rng(seed), 0, tmp_path / "data"
  stretches = []
  for _ in range(rng.integers(1, 9)):
    at += int(rng.choice([0, 1, 4096, MIB - 1, 3 * MIB]))
    length = int(rng.choice([1, 700, MIB, MIB + 1, 2 * MIB + 5]))
    stretches.append(
      (at, rng.integers(0, 2, length, np.uint8).tobytes() if rng.random() < 0.8 else bytes(length))
    )
    at += length
  size = at + int(rng.choice([0, 5, MIB]))
  with path.open("wb", buffering=0) as file, NamedBeside(path, size) as named:
    for begin, data in stretches:
      file.seek(begin)
      file.write(data)
      named.told(begin, begin + len(data))
    file.truncate(size)
  assert named.digits == data_digits(path)


def test_who_stops_writing_waits_for_no_name(tmp_path):
  (tmp_path / "data").write_bytes(bytes(range(256)))
  named = NamedBeside(tmp_path / "data", 256)
  with pytest.raises(ZeroDivisionError), named:
    named.told(0, 256)
    raise ZeroDivisionError
  with pytest.raises(OSError, match="was not read"):
    _ = named.digits


def test_what_cannot_be_read_has_no_name(tmp_path):
  with NamedBeside(tmp_path / "none", 1) as named:
    named.told(0, 1)
  with pytest.raises(FileNotFoundError):
    _ = named.digits


def test_the_next_output_takes_its_own_data(tmp_path):
  out = tmp_path / "out.onnx"
  save(out, 1.0)
  first = data_file(out)
  save(out, 2.0)
  assert data_file(out) != first and value_of(out) == 2.0
  save(out, 1.0)
  assert data_file(out) == first and value_of(out) == 1.0


def test_a_copy_of_the_model_keeps_its_weights(tmp_path):
  out, copy = tmp_path / "out.onnx", tmp_path / "copy.onnx"
  save(out, 1.0)
  copy.write_bytes(out.read_bytes())
  save(out, 2.0)
  assert (value_of(copy), value_of(out)) == (1.0, 2.0) and len(data_files_of(out)) == 2
  copy.unlink()
  save(out, 2.0)
  assert len(data_files_of(out)) == 1


def test_the_input_keeps_its_weights(tmp_path):
  """Without the name .onnx, which is how models beside it are found."""
  source, out = tmp_path / "mine", tmp_path / "out.onnx"
  save(out, 1.0)
  out.rename(source)
  given = onnx.load(source, load_external_data=False)
  save_model(given, out, source, external=None)
  save_model(model(3.0), out, source)
  assert value_of(source) == 1.0 and value_of(out) == 3.0


def test_what_a_check_refuses_leaves_nothing(tmp_path):
  out, seen = tmp_path / "out.onnx", []
  save(out, 1.0)
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

  def check(path):
    seen.append(value_of(path))
    onnx.checker.check_model(str(path))
    return Rejection("CHECK_FAILED", "planted")

  assert save(out, 2.0, check=check) == Rejection("CHECK_FAILED", "planted")
  assert seen == [2.0]
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_while_another_process_writes(tmp_path):
  """Its data has its name, and no model mentions it yet."""
  out = tmp_path / "out.onnx"
  other, orphan = tmp_path / f".out.onnx.{os.getppid()}.tmp", tmp_path / f"out.onnx.{'0' * 16}.data"
  other.write_bytes(b"half a model")
  orphan.write_bytes(b"its data")
  save(out, 1.0)
  assert len(data_files_of(out)) == 2
  other.unlink()
  remove_leftovers(out)
  assert not orphan.exists() and value_of(out) == 1.0


def test_files_of_others_stay(tmp_path):
  out = tmp_path / "out.onnx"
  names = [
    "out.onnx.data",
    "out.onnx.0123.data",
    "other.onnx.0123456789abcdef.data",
    "out.onnx.0123456789ABCDEF.data",
  ]
  for name in names:
    (tmp_path / name).write_bytes(b"mine")
  save(out, 1.0)
  assert all((tmp_path / name).read_bytes() == b"mine" for name in names)
