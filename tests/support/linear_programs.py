"""Programs for the search: linear layers that share an input, follow each other or are adapted."""

from search_expectations import Expected, entry

LINEARS = {}
TOKENS, HIDDEN, INNER, RANK = 8, 4096, 14336, 16
#: Both contractions of x in one loop.
SHARED_LOOP = Expected(kernels=1, contractions=2, accumulators=2)


def _gated(net, x, function, inner):
  gate, up = net.MatMul(x, net.weight(HIDDEN, inner)), net.MatMul(x, net.weight(HIDDEN, inner))
  return net.Mul(function(gate), up)


@entry(LINEARS, SHARED_LOOP)
def gated_mlp_silu(net):
  return (_gated(net, net.input(TOKENS, HIDDEN), net.silu, HIDDEN),)


@entry(LINEARS, SHARED_LOOP)
def gated_mlp_gelu(net):
  return (_gated(net, net.input(TOKENS, HIDDEN), net.gelu, HIDDEN),)


@entry(LINEARS, SHARED_LOOP)
def gated_mlp_relu(net):
  return (_gated(net, net.input(TOKENS, HIDDEN), net.Relu, HIDDEN),)


@entry(LINEARS, Expected(kernels=2))
def whole_mlp(net):
  """x + (silu(y G) y U) D with y = norm(x).

  The norm, gate and up share a loop, or as predicted a little faster: a kernel without one.
  """
  x = net.input(TOKENS, HIDDEN)
  inner = _gated(net, net.rms_norm(x, net.weight(HIDDEN)), net.silu, INNER)
  return (net.Add(x, net.MatMul(inner, net.weight(INNER, HIDDEN))),)


@entry(LINEARS, Expected(kernels=2))
def expert_mlp(net):
  """8 experts of two layers, each with 8 tokens of its own: the contractions are batched."""
  x = net.input(8, TOKENS, HIDDEN)
  h = net.silu(net.MatMul(x, net.weight(8, HIDDEN, HIDDEN)))
  return (net.MatMul(h, net.weight(8, HIDDEN, HIDDEN)),)


@entry(LINEARS, SHARED_LOOP)
def lora(net):
  x = net.input(TOKENS, HIDDEN)
  low = net.MatMul(net.MatMul(x, net.weight(HIDDEN, RANK)), net.weight(RANK, HIDDEN))
  return (net.Add(net.MatMul(x, net.weight(HIDDEN, HIDDEN)), net.Mul(low, 2.0)),)


@entry(LINEARS, SHARED_LOOP)
def lora_concatenated(net):
  """[x, x A] [W; B] as the sum that it is, x W + (x A) B: Concat has no meaning here.

  No scale, the low rank first, and B is stored with its dimensions exchanged.
  """
  x = net.input(TOKENS, HIDDEN)
  low = net.MatMul(x, net.weight(HIDDEN, RANK))
  back = net.Transpose(net.weight(HIDDEN, RANK), perm=[1, 0])
  return (net.Add(net.MatMul(low, back), net.MatMul(x, net.weight(HIDDEN, HIDDEN))),)


@entry(LINEARS, Expected(kernels=2, contractions=2, accumulators=2))
def lora_two_adapters(net):
  """x W + (x A) B + (x C) D / 2: one kernel, or one that only makes x A and x C before it."""
  x = net.input(TOKENS, HIDDEN)
  y = net.MatMul(x, net.weight(HIDDEN, HIDDEN))
  for scale, rank in ((1.0, RANK), (0.5, 2 * RANK)):
    low = net.MatMul(net.MatMul(x, net.weight(HIDDEN, rank)), net.weight(rank, HIDDEN))
    y = net.Add(y, net.Mul(low, scale))
  return (y,)


def _biased(net):
  y = net.MatMul(net.input(TOKENS, HIDDEN), net.weight(HIDDEN, HIDDEN))
  return net.Add(y, net.weight(HIDDEN))


@entry(LINEARS, Expected(kernels=1))
def bias_gelu(net):
  return (net.gelu(_biased(net)),)


@entry(LINEARS, Expected(kernels=1))
def bias_relu(net):
  return (net.Relu(_biased(net)),)


@entry(LINEARS, Expected(kernels=1))
def bias_tanh_residual(net):
  return (net.Add(net.Tanh(_biased(net)), net.input(TOKENS, HIDDEN)),)


# -- not asked for by name


@entry(LINEARS, Expected(kernels=1, contractions=2))
def lora_merged(net):
  """x (W + A B), as one writes it who merges the weights: never 4096 x 4096 temporaries."""
  low = net.MatMul(net.weight(HIDDEN, RANK), net.weight(RANK, HIDDEN))
  merged = net.Add(net.weight(HIDDEN, HIDDEN), low)
  return (net.MatMul(net.input(TOKENS, HIDDEN), merged),)


@entry(LINEARS, Expected(kernels=2))
def pooled_linear(net):
  pooled = net.ReduceMean(net.input(8, 256, 1024), [1], keepdims=0)
  return (net.Add(net.MatMul(pooled, net.weight(1024, 1024)), net.weight(1024)),)


@entry(LINEARS, Expected(kernels=3))
def channel_gate(net):
  """x sigmoid(relu(mean(x) W) V): channels scaled by what all positions say of them."""
  x = net.input(8, 3136, 256)
  mean = net.ReduceMean(x, [1])
  inner = net.Relu(net.MatMul(mean, net.weight(256, 16)))
  return (net.Mul(x, net.Sigmoid(net.MatMul(inner, net.weight(16, 256)))),)
