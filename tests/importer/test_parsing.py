"""A model file in parts: the same message as whole, and one copy of its weights in memory."""

import subprocess
import sys

import numpy as np
import odd_models
import onnx
import pytest
from google.protobuf.message import DecodeError, EncodeError
from onnx import helper, numpy_helper
from small_models import Net

from mirage_onnx.importer import parsing
from mirage_onnx.importer.parsing import parse_model
from mirage_onnx.rewrite.stream import write_model


def parsed(parse):
  try:
    return parse().SerializeToString(deterministic=True)
  except DecodeError:
    return None


def small():
  net = Net()
  y = net.MatMul(net.rms(net.input(4, 64)), net.weight(64, 32))
  return net.model(net.Add(y, net.weight(32))).SerializeToString()


@pytest.fixture(params=[0, 40, parsing.LARGE_BYTES])
def check(request, monkeypatch, tmp_path):
  """``param``: the size of what is no weight and made part of the message by itself."""
  monkeypatch.setattr(parsing, "IN_PARTS_BYTES", 0)
  monkeypatch.setattr(parsing, "LARGE_BYTES", request.param)
  path = tmp_path / "m.onnx"

  def go(data):
    path.write_bytes(data)
    whole = parsed(lambda: onnx.ModelProto.FromString(data))
    assert parsed(lambda: parse_model(path)) == whole
    return whole

  return go


def in_parts(data, tmp_path):
  path = tmp_path / "p.onnx"
  path.write_bytes(data)
  with path.open("rb") as file:
    return parsing._in_parts(file)


def test_it_is_read_in_parts(check, tmp_path):
  assert in_parts(small(), tmp_path).SerializeToString(deterministic=True) == check(small())


def test_cut_at_every_byte(check):
  data = small()
  ends = [end for end in range(0, len(data), 7) if check(data[:end]) is not None]
  assert 0 in ends and len(ends) < 10  # between two fields of the model


def test_fields_in_another_order_twice_and_unknown(check, tmp_path):
  data = small()
  unknown = b"\xfa\x3f\x03abc\xe0\x3f\x05"
  assert check(unknown + data + unknown)
  two = data + onnx.ModelProto(graph=onnx.GraphProto(doc_string="more")).SerializeToString()
  assert check(two)  # two graphs are merged
  with pytest.raises(parsing._OtherError):
    in_parts(two, tmp_path)


def test_models_that_no_exporter_writes(check):
  found = [check(odd_models.made(seed).data) for seed in range(160)]
  assert None in found and sum(f is not None for f in found) > 100


def test_the_same_bytes_as_protobuf_writes(tmp_path):
  for seed in range(160):
    try:
      model = onnx.ModelProto.FromString(odd_models.made(seed).data)
    except DecodeError:
      continue
    with (tmp_path / "w").open("wb") as stream:
      write_model(model, stream)
    assert (tmp_path / "w").read_bytes() == model.SerializeToString(deterministic=True)


def test_more_than_protobuf_holds(monkeypatch, tmp_path):
  monkeypatch.setattr("mirage_onnx.rewrite.stream.MOST_BYTES", 1000)
  model = onnx.ModelProto.FromString(small())
  with (tmp_path / "w").open("wb") as stream, pytest.raises(EncodeError, match="2 GB"):
    write_model(model, stream)


PEAK = """
import sys
from pathlib import Path
from mirage_onnx.importer.parsing import parse_model
from mirage_onnx.rewrite.stream import write_model
def peak():
  lines = Path("/proc/self/status").read_text().splitlines()
  return int(next(x for x in lines if x.startswith("VmHWM")).split()[1]) // 1024
before = peak()
model = parse_model(Path(sys.argv[1]))
with open(sys.argv[2], "wb") as stream:
  write_model(model, stream)
print(peak() - before)
"""


def test_one_copy_of_the_weights(tmp_path):
  """160 MiB in the file, 16 a weight: one copy, and one weight or two."""
  block = np.resize(np.arange(1000, dtype=np.float32), (1024, 4096))
  weights = [numpy_helper.from_array(block, f"w{k}") for k in range(10)]
  nodes = [helper.make_node("Add", ["x" if k == 0 else f"y{k - 1}", f"w{k}"], [f"y{k}"]) for k in range(10)]
  x, y = (helper.make_tensor_value_info(n, 1, [1024, 4096]) for n in ("x", "y9"))
  model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights))
  source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
  source.write_bytes(model.SerializeToString(deterministic=True))
  done = subprocess.run([sys.executable, "-c", PEAK, source, target], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert target.read_bytes() == source.read_bytes()
  assert int(done.stdout) < 240
