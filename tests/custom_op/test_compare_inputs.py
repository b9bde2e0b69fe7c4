"""Inputs from a file: what fits, and one line for what does not."""

import ml_dtypes
import numpy as np
import pytest
from refused import refused

from mirage_onnx.custom_op.compare_inputs import KINDS, check_inputs, draw_inputs, read_inputs
from mirage_onnx.errors import MirageError


class Argument:
  def __init__(self, name, kind, shape):
    self.name, self.type, self.shape = name, f"tensor({kind})", shape


ARGUMENTS = [
  Argument("x", "float16", ["batch", 8]),
  Argument("ids", "int64", [2]),
  Argument("mask", "bool", []),
]
GOOD = {"x": np.ones((3, 8), np.float16), "ids": np.array([1, 2]), "mask": np.array(True)}


def test_a_file(tmp_path):
  path = tmp_path / "inputs.npz"
  np.savez(path, **dict(reversed(GOOD.items())))
  found = check_inputs(ARGUMENTS, read_inputs(path))
  assert list(found) == ["x", "ids", "mask"]
  assert all(np.array_equal(found[n], GOOD[n]) and found[n].shape == GOOD[n].shape for n in GOOD)
  assert all(found[n].dtype == GOOD[n].dtype for n in GOOD)


@pytest.mark.parametrize(
  ("change", "said"),
  [
    ({"x": None}, "'x' is missing"),
    ({"y": np.ones(1)}, "'y' is no input of the model"),
    ({"x": np.ones((3, 8))}, "'x' is float64, not float16"),
    ({"ids": np.array([1, 2], np.int32)}, "'ids' is int32, not int64"),
    ({"mask": np.array(1)}, "'mask' is int64, not bool"),
    ({"x": np.ones((3, 7), np.float16)}, "'x' is [3, 7], not ['batch', 8]"),
    ({"ids": np.array([[1, 2]])}, "'ids' is [1, 2], not [2]"),
  ],
)
def test_what_does_not_fit(change, said):
  given = {n: x for n, x in {**GOOD, **change}.items() if x is not None}
  with pytest.raises(MirageError) as caught:
    check_inputs(ARGUMENTS, given)
  assert (caught.value.code, caught.value.detail) == ("INPUTS_INVALID", said)


def test_everything_wrong_is_in_one_line():
  with pytest.raises(MirageError) as caught:
    check_inputs(ARGUMENTS, {"x": np.ones(1), "z": np.ones(1)})
  said = ("'ids' is missing", "'mask' is missing", "'z' is no input", "'x' is float64")
  assert all(part in caught.value.line() for part in said)
  assert "\n" not in caught.value.line()


def test_sizes_of_dynamic_dimensions():
  found = list(draw_inputs(ARGUMENTS, 0, 1, {"batch": [2, 5, 1]}, {}))
  assert [len(arrays["x"]) for _, arrays in found] == [2] * (1 + len(KINDS)) + [5, 1]
  assert [kind for kind, _ in found][-2:] == ["normal at batch=5", "normal at batch=1"]


def test_bfloat16_comes_as_bits(tmp_path):
  argument = [Argument("x", "bfloat16", [2])]
  x = np.array([1.5, -2], ml_dtypes.bfloat16)
  for given in ({"x": x}, {"x": x.view(np.uint16)}):
    np.savez(tmp_path / "x.npz", **given)
    (found,) = check_inputs(argument, read_inputs(tmp_path / "x.npz")).values()
    assert found.dtype == ml_dtypes.bfloat16 and found.tobytes() == x.tobytes()


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 cut off"])
def test_no_npz(tmp_path, content):
  path = tmp_path / "inputs.npz"
  path.write_bytes(content)
  with refused("INPUTS_INVALID"):
    read_inputs(path)


def test_other_files(tmp_path):
  np.save(tmp_path / "one.npy", np.ones(1))
  np.savez(tmp_path / "object.npz", x=np.array([{}], object))
  for name in ("one.npy", "object.npz"):
    with refused("INPUTS_INVALID"):
      read_inputs(tmp_path / name)
  with refused("FILE_MISSING"):
    read_inputs(tmp_path / "none.npz")


def test_damaged_files_of_inputs_have_a_code(tmp_path):
  """One in four hundred had a traceback: zip versions, methods and flags that zipfile does not have."""
  path, rng = tmp_path / "inputs.npz", np.random.default_rng(0)
  np.savez(path, x=np.ones((2, 48), np.float16))
  whole, refused = path.read_bytes(), 0
  for at in range(len(whole)):
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :])
    try:
      read_inputs(path)
    except MirageError as error:
      assert error.code == "INPUTS_INVALID"
      refused += 1
  assert refused > len(whole) // 2
