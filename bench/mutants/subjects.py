"""The small models in which faults are planted.

``twins``: two blocks of equal structure and other weights, with casts to fp32 and back.
``stored``: a weight that lies along its contracted axis (Gemm with transB), a softmax, a bias.
``chain``: two products of a region with a norm between them, so a temporary tensor in the workspace.
``rows``: a batch that only a run knows, a slice of it that kernels read in place, two outputs.
"""

import functools

import numpy as np
from small_models import Net

WIDTH = 64


def _twins():
  net = Net(np.float16, seed=1)
  found = []
  for scale in (1.0, 3.0):
    wide = net.cast(net.input(4, WIDTH), np.float32)
    mean = net.ReduceMean(net.Mul(wide, wide), net.constant([-1], np.int64))
    root = net.Sqrt(net.Add(mean, net.constant(1e-3, np.float32)))
    gamma = net.constant(net.rng.uniform(0.5, 1.5, WIDTH) * scale)
    y = net.Mul(net.cast(net.Div(wide, root), np.float16), gamma)
    found.append(net.Relu(net.MatMul(y, net.weight(WIDTH, 48))))
  return net.model(*found)


def _stored():
  net = Net(np.float16, seed=2)
  x = net.input(5, WIDTH)
  weight = net.constant(net.rng.standard_normal((48, WIDTH)) / 8)
  y = net.Gemm(x, weight, net.constant(net.rng.standard_normal(48)), transB=1)
  return net.model(net.Softmax(y, axis=-1))


def _chain():
  net = Net(np.float16, seed=3)
  x = net.input(4, 48)
  y = net.rms(net.MatMul(x, net.weight(48, WIDTH)), net.constant(net.rng.uniform(0.5, 1.5, WIDTH)))
  return net.model(net.Sigmoid(net.MatMul(y, net.weight(WIDTH, 32))))


def _rows():
  net = Net(np.float32, seed=4)
  x = net.input("batch", 96)
  bias = net.constant(net.rng.standard_normal(WIDTH))
  part = net.Slice(x, [16], [16 + WIDTH], [1])
  y = net.Add(net.Mul(net.Softmax(part, axis=-1), net.constant(net.rng.uniform(0.5, 1.5, WIDTH))), bias)
  return net.model(net.Sub(y, net.Tanh(part)), y)


SUBJECTS = {"twins": _twins, "stored": _stored, "chain": _chain, "rows": _rows}


@functools.cache
def subject(name):
  """The model."""
  return SUBJECTS[name]()
