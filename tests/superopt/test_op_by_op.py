"""The op-by-op baseline: each step as the search finds it alone, layouts and casts for nothing."""

from dataclasses import replace

import numpy as np
import pytest
from op_by_op import BOUND, FREE, op_by_op_us, step_times_us
from program_net import region
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import H200


def times(build):
  return [(s.op, us) for s, us in step_times_us(region(build), H200)]


def alone(build):
  """What the search proves of a program of one step."""
  made = region(build)
  (found, *_) = search(made, H200, prover(), bound=BOUND, space=ALL, budget_s=900.0).candidates
  return found.candidate.predicted_us


def add_rows(net):
  return (net.Add(net.input(1000, 1000), net.input(1000, 1000)),)


def wide_exponential(net):
  return (net.half(net.Exp(net.wide(net.input(1000, 1000)))),)


def exponential(net):
  return (net.Exp(net.input(1000, 1000)),)


def turned(net):
  x = net.Transpose(net.input(1000, 4, 250), perm=[1, 0, 2])
  return (net.Reshape(net.Transpose(net.Exp(x), perm=[1, 0, 2]), [1000, 1000]),)


def linear(net):
  return (net.MatMul(net.input(64, 4096), net.weight(4096, 4096)),)


def turned_linear(net):
  return (net.MatMul(net.input(64, 4096), net.Transpose(net.weight(4096, 4096), perm=[1, 0])),)


@pytest.mark.parametrize(
  ("build", "same"),
  [
    (add_rows, add_rows),
    (linear, linear),
    (wide_exponential, exponential),  # fp16 in and out: the casts need no memory
    (turned, exponential),
    (turned_linear, linear),
  ],
  ids=lambda p: p.__name__,
)
def test_a_step_is_what_the_search_finds_for_it(build, same):
  ((_, us),) = times(build)
  assert us == pytest.approx(alone(same))


def test_a_step_is_counted_by_itself():
  def both(net):
    (y,) = linear(net)
    return (net.Relu(y),)

  def relu(net):
    return (net.Relu(net.input(64, 4096)),)

  assert times(both) == [("matmul", pytest.approx(alone(linear))), ("relu", pytest.approx(alone(relu)))]
  assert op_by_op_us(region(both), H200) == pytest.approx(alone(linear) + alone(relu))


@pytest.mark.parametrize("narrow", [True, False])
def test_a_value_is_written_as_narrow_as_its_readers_take_it(narrow):
  """e is in fp32 in the program; a sum alone reads it so, with a product in fp16 nobody does."""

  def program(net):
    e = net.Exp(net.wide(net.input(4096, 4096)))
    return (net.ReduceSum(e, [-1]), *((net.Mul(net.half(e), 2.0),) if narrow else ()))

  def stored(net):
    e = net.Exp(net.wide(net.input(4096, 4096)))
    return (net.half(e) if narrow else e,)

  assert dict(times(program))["exp"] == pytest.approx(alone(stored))


def test_a_copy_is_free():
  """A product with 1, and an output that only changes its layout."""

  def build(net):
    x = net.input(64, 32)
    return net.Transpose(x, perm=[1, 0]), net.Mul(x, 1.0), net.Exp(x)

  found = dict(times(build))
  assert list(found) == ["mul", "exp"] and found["mul"] == 0 < found["exp"]


def test_replaced_extents_are_refused():
  made = PROGRAMS["rmsnorm_linear"]()
  with pytest.raises(ValueError, match="has"):
    op_by_op_us(replace(made, extents={a: 2 * n for a, n in made.extents.items()}), H200)


@pytest.mark.parametrize("name", PROGRAMS)
def test_never_below_what_must_be_moved(name):
  """Inputs are read and outputs written once at least, by as many launches as steps compute."""
  made = PROGRAMS[name]()
  bytes_moved = sum(int(np.prod(x.tensor.shape)) * x.dtype.size_bytes for x in (*made.inputs, *made.outputs))
  found = step_times_us(made, H200)
  assert len(found) == sum(s.op not in FREE for s in made.steps)
  kernels = sum(us > 0 for _, us in found)
  assert op_by_op_us(made, H200) > kernels * H200.launch_us + bytes_moved / (H200.stream_tbps * 1e6)
