"""Models without weights: what torch drew is made again, bit for bit, and what differs is seen."""

import lzma
import os
import time

import numpy as np
import onnx
import packed
import pytest
import torch_normal
from onnx import numpy_helper
from packed import Draw

#: What ``rmsnorm_linear.py`` draws; its packed form has the digest of what torch drew.
EXPORTED = packed.FOLDER / "rmsnorm_linear.onnx"
SEED, DRAWS = 7, (Draw((64,), 1.0, 0.1), Draw((64, 64), 0.0, 0.02))


def transposed(data, name):
    """The model with one weight stored the other way round, as exporters fold a transpose."""
    model = onnx.load_from_string(data)
    (tensor,) = (t for t in model.graph.initializer if t.name == name)
    array = np.ascontiguousarray(numpy_helper.to_array(tensor).T)
    tensor.raw_data = array.tobytes()
    tensor.dims[:] = array.shape
    return model.SerializeToString(deterministic=True)


def stored_bytes(data):
    model = onnx.load_from_string(lzma.decompress(data))
    return sum(len(t.raw_data) for t in model.graph.initializer)


def test_weights_of_torch_are_made_again():
    data = EXPORTED.read_bytes()
    small = packed.pack(data, SEED, DRAWS)
    assert stored_bytes(small) < 64, "both weights are left out"
    assert packed.unpack(small) == data


@pytest.mark.parametrize("name", ["norm.weight", "linear.weight"])
def test_transposed_weights(name):
    data = transposed(EXPORTED.read_bytes(), name)
    small = packed.pack(data, SEED, DRAWS)
    assert stored_bytes(small) < 64
    assert packed.unpack(small) == data


def test_single_elements_may_differ():
    model = onnx.load(EXPORTED)
    (weight,) = (t for t in model.graph.initializer if t.name == "linear.weight")
    array = numpy_helper.to_array(weight).copy()
    array[3, 5] = np.nextafter(array[3, 5], np.float16(1))
    weight.raw_data = array.tobytes()
    data = model.SerializeToString(deterministic=True)
    small = packed.pack(data, SEED, DRAWS)
    assert stored_bytes(small) < 64
    assert packed.unpack(small) == data


def test_other_weights_stay():
    data = EXPORTED.read_bytes()
    other = packed.pack(data, SEED + 1, DRAWS)
    assert stored_bytes(other) > 64 * 64 * 2


def test_weights_that_differ_are_refused():
    graph = onnx.load_from_string(lzma.decompress(packed.pack(EXPORTED.read_bytes(), SEED, DRAWS)))
    (entry,) = graph.metadata_props
    entry.value = entry.value.replace(f" {SEED} ", f" {SEED + 1} ")
    with pytest.raises(ValueError, match="differ from the exported"):
        packed.unpack(lzma.compress(graph.SerializeToString()))


def test_sizes_that_torch_draws_otherwise():
    with pytest.raises(ValueError, match="no multiple of 16"):
        torch_normal.Normal(0).draw(24)


def test_files_are_written_once(monkeypatch, tmp_path):
    """A file is made where there is none, or the packed one is newer, and not otherwise."""
    source, target = tmp_path / "m.onnx.xz", tmp_path / "m.onnx"
    source.write_bytes(packed.pack(EXPORTED.read_bytes(), SEED, DRAWS))
    monkeypatch.setattr(packed, "FOLDER", tmp_path)
    assert packed.names() == ("m",)
    assert packed.write() == (target,)
    assert target.read_bytes() == EXPORTED.read_bytes()
    assert packed.write() == ()
    os.utime(source, (time.time() + 10,) * 2)
    assert packed.write(["m"]) == (target,)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.onnx.xz"}
