"""What types a model's values have, where the rewriter has to say."""

import pytest
from onnx import helper
from small_models import Net

from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite.value_types import types_of


def test_a_tensor_that_is_declared_a_sequence():
  """What the operator yields counts (seed 23200 of the fuzz run)."""
  net = Net()
  middle = net.Add(net.input(8, 64), net.input(8, 64))
  model = net.model(net.Tanh(middle))
  sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
  model.graph.value_info.append(helper.make_value_info(middle, sequence))
  found = types_of(model, [middle])[middle].tensor_type
  assert found.elem_type == 10 and [d.dim_value for d in found.shape.dim] == [8, 64]


def test_a_type_that_nothing_says():
  net = Net()
  y = net.Unheard(net.input(8, 64), domain="of.no.one")
  model = net.model(net.Tanh(y))
  with pytest.raises(MirageError, match="rewrite: the element type of"):
    types_of(model, [y])


def test_a_size_that_is_none_keeps_no_type_back():
  """onnx's inference ends at it, ONNX Runtime passes over it (a region had ended with INTERNAL)."""
  net = Net()
  x = net.input(8, 64)
  wrong = net.Mul(x, x)
  last = net.Mul(wrong, x)
  model = net.model(net.Tanh(last))
  model.graph.value_info.append(helper.make_tensor_value_info(wrong, 10, [9, 64]))
  assert types_of(model, [last])[last].tensor_type.elem_type == 10
