"""Programs for the search: normalisations, what is written around them, and rows of one tensor."""

import numpy as np
from search_expectations import Expected, entry

NORMS = {}
HIDDEN = 4096
ROW = Expected(kernels=1)


@entry(NORMS, Expected(kernels=1, accumulators=2))
def rmsnorm_linear(net):
  """The division moves behind the contraction, the sum of squares into its loop."""
  x = net.rms_norm(net.input(8, HIDDEN), net.weight(HIDDEN))
  return (net.MatMul(x, net.weight(HIDDEN, HIDDEN)),)


@entry(NORMS, Expected(kernels=2))
def layernorm_linear(net):
  """In one kernel the variance is E[x^2] - E[x]^2, which rounds worse: two kernels will do."""
  x = net.layer_norm(net.input(8, HIDDEN), net.weight(HIDDEN), net.weight(HIDDEN))
  return (net.MatMul(x, net.weight(HIDDEN, HIDDEN)),)


@entry(NORMS, Expected(kernels=1))
def batchnorm_linear(net):
  """At inference: the statistics are weights, so all of it is a prologue of the contraction."""
  x, mean = net.input(64, HIDDEN), net.weight(HIDDEN)
  variance = net.positive_weight(HIDDEN)
  root = net.Sqrt(net.shifted(net.wide(variance), 1e-5))
  y = net.half(net.Div(net.Sub(net.wide(x), net.wide(mean)), root))
  y = net.Add(net.Mul(y, net.weight(HIDDEN)), net.weight(HIDDEN))
  return (net.MatMul(y, net.weight(HIDDEN, HIDDEN)),)


@entry(NORMS, Expected(kernels=2))
def groupnorm_linear(net):
  """32 groups of 10 channels over 64 x 64 positions, then a linear layer over all channels."""
  x = net.Reshape(net.input(2, 320, 4096), [2, 32, 10, 4096])
  y = net.Reshape(net.half(net.centred(x, [-2, -1])), [2, 320, 4096])
  y = net.Add(net.Mul(y, net.weight(320, 1)), net.weight(320, 1))
  return (net.MatMul(net.Transpose(y, perm=[0, 2, 1]), net.weight(320, 320)),)


@entry(NORMS, Expected(kernels=2))
def ngpt_step(net):
  """norm(h + alpha (norm(x W) - h)): both lengths are over the axis that the grid splits."""
  x, h, alpha = net.input(8, HIDDEN), net.input(8, HIDDEN), net.weight(HIDDEN)
  y = net.unit(net.MatMul(x, net.weight(HIDDEN, HIDDEN)))
  return (net.unit(net.Add(h, net.Mul(alpha, net.Sub(y, h)))),)


@entry(NORMS, ROW)
def residual_rmsnorm(net):
  total = net.Add(net.input(64, HIDDEN), net.input(64, HIDDEN))
  return total, net.rms_norm(total, net.weight(HIDDEN))


@entry(NORMS, ROW)
def residual_layernorm(net):
  total = net.Add(net.input(64, HIDDEN), net.input(64, HIDDEN))
  return total, net.layer_norm(total, net.weight(HIDDEN), net.weight(HIDDEN))


@entry(NORMS, ROW)
def softmax_rows(net):
  return (net.softmax(net.input(1024, HIDDEN)),)


@entry(NORMS, ROW)
def log_softmax_rows(net):
  wide = net.wide(net.input(1024, HIDDEN))
  shifted = net.Sub(wide, net.ReduceMax(wide, [-1]))
  return (net.half(net.Sub(shifted, net.Log(net.ReduceSum(net.Exp(shifted), [-1])))),)


@entry(NORMS, ROW)
def rotary(net):
  """32 heads of two halves of 64, turned by the angles of 128 positions."""
  first, second = net.input(32, 128, 64), net.input(32, 128, 64)
  cos, sin = net.input(128, 64), net.input(128, 64)
  return (
    net.Sub(net.Mul(first, cos), net.Mul(second, sin)),
    net.Add(net.Mul(second, cos), net.Mul(first, sin)),
  )


# -- not asked for by name


@entry(NORMS, Expected(kernels=2, parts=True))
def vocabulary_log_partition(net):
  """log sum exp of the logits of 32000 tokens, which nobody else reads: they need no memory."""
  logits = net.wide(net.MatMul(net.input(8, HIDDEN), net.weight(HIDDEN, 32000)))
  largest = net.ReduceMax(logits, [-1])
  total = net.ReduceSum(net.Exp(net.Sub(logits, largest)), [-1])
  return (net.Add(net.Log(total), largest),)


@entry(NORMS, Expected(kernels=1))
def codebook_distances(net):
  """|x|^2 - 2 x c + |c|^2 of 64 vectors and 8192 codes: three sums over one axis."""
  x, codes = net.input(64, 256), net.weight(8192, 256)
  two = net.constant(2.0, np.float32)
  lengths = [net.ReduceSum(net.Pow(net.wide(v), two), [-1]) for v in (x, codes)]
  inner = net.wide(net.MatMul(x, net.Transpose(codes, perm=[1, 0])))
  far = net.Sub(lengths[0], net.Mul(inner, two))
  return (net.half(net.Add(far, net.Transpose(lengths[1], perm=[1, 0]))),)
