"""Hashes of weights from run to run: the same as without, and of no file that may have changed."""

import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mirage_onnx import file_facts
from mirage_onnx.importer import load_model
from mirage_onnx.tune.kept_hashes import KeptHashes, kept_hashes
from mirage_onnx.verify.weights import ModelWeights

NAMES = ("a", "b", "inside")


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
  """In a cache of the test's own, of files of any age."""
  monkeypatch.setattr(file_facts, "SETTLED_S", -1.0)
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)


@pytest.fixture
def read(monkeypatch):
  """Names of weights that were read to be hashed, in this order."""
  found = []
  real = ModelWeights._array
  monkeypatch.setattr(ModelWeights, "_array", lambda self, name: found.append(name) or real(self, name))
  return found


def write(path, seed=0, shape=(32, 16)):
  """A model with two weights in one file, and one in the model."""
  rng = np.random.default_rng(seed)
  a, b = (numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), n) for n in "ab")
  small = numpy_helper.from_array(np.ones(4, np.float32), "inside")
  nodes = [helper.make_node("Identity", [n], [f"{n} out"]) for n in NAMES]
  outputs = [helper.make_tensor_value_info(f"{n} out", onnx.TensorProto.FLOAT, None) for n in NAMES]
  graph = helper.make_graph(nodes, "g", [], outputs, [a, b, small])
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
  onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=100)


def digests(path, keep=True):
  """As a run works them out."""
  loaded = load_model(path)
  if not keep:
    return [ModelWeights(loaded)._digest(n) for n in NAMES]
  with kept_hashes(loaded):
    return [ModelWeights(loaded)._digest(n) for n in NAMES]


def change(path, seed):
  """Other weights in the same file, of the same size and time of change."""
  before = os.stat(path.with_name("w.bin"))
  other = path.with_name("other")
  other.mkdir()
  write(other / "m.onnx", seed)
  with path.with_name("w.bin").open("r+b") as file:
    file.write((other / "w.bin").read_bytes())
  os.utime(path.with_name("w.bin"), ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_repeat_reads_only_what_is_in_the_model(tmp_path, read):
  write(path := tmp_path / "m.onnx")
  want = digests(path, keep=False)
  assert digests(path) == want and read == [*NAMES, *NAMES]
  read.clear()
  assert digests(path) == want and read == ["inside"]


def test_another_content_of_the_same_times_is_read(tmp_path, read):
  write(path := tmp_path / "m.onnx")
  first = digests(path)
  change(path, 1)
  read.clear()
  second = digests(path)
  assert read == [*NAMES] and second == digests(path, keep=False) != first


def test_another_shape_of_the_same_bytes_is_another_weight(tmp_path, read):
  write(path := tmp_path / "m.onnx")
  first = digests(path)
  model = onnx.load(path, load_external_data=False)
  model.graph.initializer[0].dims[:] = [16, 32]
  path.write_bytes(model.SerializeToString())
  read.clear()
  assert digests(path)[0] != first[0] and read == ["a", "inside"]


def test_what_changes_meanwhile_is_not_kept(tmp_path, read):
  write(path := tmp_path / "m.onnx")
  loaded = load_model(path)
  with kept_hashes(loaded):
    ModelWeights(loaded)._digest("a")
    change(path, 1)
  read.clear()
  assert digests(path) == digests(path, keep=False) and read == [*NAMES, *NAMES]


def test_what_may_change_within_its_times_is_read(tmp_path, read, monkeypatch):
  monkeypatch.setattr(file_facts, "SETTLED_S", 60.0)
  write(path := tmp_path / "m.onnx")
  for _ in range(2):
    read.clear()
    digests(path)
    assert read == [*NAMES]


@pytest.mark.parametrize("value", ["", "0" * 63, "z" * 64, 7, None])
def test_what_is_no_hash_is_not_taken(tmp_path, read, monkeypatch, value):
  write(path := tmp_path / "m.onnx")
  want = digests(path)
  real = KeptHashes(tmp_path / "cache" / "hashes", load_model(path))
  damaged = dict.fromkeys(real._store.get(real._key()), value)
  real._store.put(real._key(), damaged)
  read.clear()
  assert digests(path) == want and read == [*NAMES]


def test_without_a_cache_nothing_is_kept(tmp_path, read, monkeypatch):
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  write(path := tmp_path / "m.onnx")
  assert digests(path) == digests(path) and len(read) == 2 * len(NAMES)
  assert not (tmp_path / "cache").exists()
