"""As what nodes are looked up in a grid of times."""

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.tune.operator_kinds import batched, place_of


def uses(net, *outputs):
  program = import_model(load_model(net.model(*outputs)))
  return [place_of(n, program) for n in program.nodes]


@pytest.mark.parametrize(
  ("shape", "kind"),
  [
    ((2, 8, 64), "Add"), ((64,), "AddRow"), ((2, 8, 1), "AddColumn"), ((1, 1), "AddScalar"),
    ((2, 1, 64), "AddMiddle"), ((8, 64), "AddMiddle"), ((1, 1, 64), "AddRow"),
  ],
)  # fmt: skip
def test_what_is_added(shape, kind):
  net = Net()
  assert uses(net, net.Add(net.input(2, 8, 64), net.input(*shape))) == [(kind, "fp16", (1024,))]
  net = Net(np.float32)
  assert uses(net, net.Sub(net.input(*shape), net.input(2, 8, 64)))[0] == (
    kind.replace("Add", "Sub") if kind in ("Add", "AddScalar") else kind, "fp32", (1024,)
  )  # fmt: skip


def test_products():
  net = Net()
  x = net.input(4, 100, 64)
  found = uses(net, net.MatMul(x, net.weight(64, 256)))
  assert found == [("MatMul", "fp16", (400, 64, 256))]
  net = Net()
  assert uses(net, net.Gemm(net.input(8, 64), net.weight(32, 64), net.weight(32), transB=1)) == [
    ("MatMul", "fp16", (8, 64, 32))
  ]
  net = Net()
  scores = net.MatMul(net.input(2, 3, 50, 64), net.input(2, 3, 64, 50))
  found = uses(net, scores, net.MatMul(net.Softmax(scores), net.input(2, 3, 50, 64)))
  assert found == [
    ("scores/2", "fp16", (6, 50, 64)), ("Softmax", "fp16", (300, 50)), ("values/2", "fp16", (6, 50, 64))
  ]  # fmt: skip


def test_products_of_two_activations():
  assert batched("fp16", 12, 512, 64, 512) == ("scores/8", "fp16", (12, 512, 64))
  assert batched("fp16", 12, 197, 197, 64) == ("values/1", "fp16", (12, 197, 64))
  assert batched("fp16", 32, 1, 128, 4096) == ("scores of a row/8", "fp16", (32, 4096, 128))
  assert batched("fp16", 32, 1, 4096, 128) == ("values of a row/8", "fp16", (32, 4096, 128))
  # Half as many rows as columns are half as many products.
  assert batched("fp16", 12, 256, 64, 512) == ("scores/8", "fp16", (6, 512, 64))


def test_what_moves_data():
  net = Net()
  x = net.input(2, 8, 16, 64)
  found = uses(
    net, net.Transpose(x, perm=[0, 2, 1, 3]), net.Transpose(x, perm=[0, 1, 3, 2]),
    net.Concat(x, net.input(2, 8, 1, 64), axis=2), net.Slice(x, [0], [32], [3]),
  )  # fmt: skip
  assert found == [
    ("Transpose", "fp16", (16384,)), ("Turned", "fp16", (16384,)), ("Append", "fp16", (17408,)),
    ("Slice", "fp16", (8192,)),
  ]  # fmt: skip


def test_norms_of_the_last_dimensions_only():
  net = Net()
  x = net.input(2, 8, 64)
  found = uses(
    net, net.LayerNormalization(x, net.weight(64), net.weight(64)), net.ReduceMean(x, [-1]),
    net.ReduceMean(x, [1]), net.Softmax(x, axis=1),
  )  # fmt: skip
  assert found == [("LayerNormalization", "fp16", (16, 64)), ("ReduceMean", "fp16", (16, 64)), None, None]


def test_other_types_have_no_place():
  net = Net()
  y = net.And(net.input(4, 64, dtype=bool), net.input(4, 64, dtype=bool))
  assert uses(net, y) == [None]
