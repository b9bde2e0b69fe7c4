"""Random chains of reshapes, transpositions and repetitions between things that compute."""

from math import prod

from small_models import Net

Shape = tuple[int, ...]


def random_layout_model(pick, operations):
  """A model whose last value depends on every operation; no dimension of the inputs is prime."""
  net = Net()
  shape = pick(((4, 6, 8), (6, 16), (1, 8, 12), (2, 2, 4, 3), (24,)))
  x = net.input(*shape)
  for _ in range(operations):
    x, shape = pick(OPERATIONS)(net, pick, x, shape)
  return net.model(net.Tanh(net.Mul(x, 0.5)))


def _divisors(n):
  return [d for d in range(2, n) if n % d == 0]


def _reshape(net, pick, x, shape):
  new = list(shape)
  for _ in range(pick((1, 2))):
    if pick((False, True)) and len(new) > 1:
      k = pick(range(len(new) - 1))
      new[k : k + 2] = [new[k] * new[k + 1]]
    elif splits := [(k, d) for k, n in enumerate(new) for d in _divisors(n)]:
      k, d = pick(splits)
      new[k : k + 1] = [d, new[k] // d]
  if pick((False, True)):
    new.insert(pick(range(len(new) + 1)), 1)
  return net.Reshape(x, list(new)), tuple(new)


def _transpose(net, pick, x, shape):
  order = list(range(len(shape)))
  a, b = pick(order), pick(order)
  order[a], order[b] = order[b], order[a]
  return net.Transpose(x, perm=order), tuple(shape[k] for k in order)


def _expand(net, pick, x, shape):
  if prod(shape) > 2000:
    return _unary(net, pick, x, shape)
  k = pick(range(len(shape) + 1))
  one = (*shape[:k], 1, *shape[k:])
  new = (*shape[:k], 2, *shape[k:])
  y = net.Expand(net.Reshape(x, list(one)), list(new))
  return (net.Add(y, net.input(*new)) if pick((False, True)) else y), new


def _unary(net, pick, x, shape):
  return getattr(net, pick(("Tanh", "Sigmoid", "Abs")))(x), shape


def _binary(net, pick, x, shape):
  other = pick((net.input, net.weight))
  kept = shape[pick(range(len(shape))) :]
  return getattr(net, pick(("Add", "Mul")))(x, other(*kept)), shape


def _reduce(net, pick, x, shape):
  k = pick(range(len(shape)))
  y = getattr(net, pick(("ReduceMean", "ReduceSum", "ReduceMax")))(x, [k])
  if pick((False, True)):  # a norm: back to what it was
    return net.Mul(x, net.Sigmoid(y)), shape
  return y, tuple(1 if i == k else n for i, n in enumerate(shape))


def _contract(net, pick, x, shape):
  columns = pick((12, 16))
  return net.MatMul(x, net.weight(shape[-1], columns)), (*shape[:-1], columns)


OPERATIONS = (
  _reshape, _reshape, _reshape, _transpose, _transpose, _expand, _unary, _binary, _reduce,
  _contract,
)  # fmt: skip
