"""Regions of programs that slice and concatenate compute on views what the program computes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from means_steps import check_means_its_steps
from onnx import helper
from small_models import Net, matches, region_of

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import DType, Node, Program, Region, RegionTensor, Step, Tensor
from mirage_onnx.match.canonical import make_region
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.interpret_steps import interpret_steps

SIZES = (1, 2, 3, 4, 6, 8)


class Growing:
  """A random program of one step per node; ``draw`` takes one of several things."""

  def __init__(self, draw):
    self.draw = draw
    self.steps, self.inputs, self.shapes = [], [], {}
    self.input(*(draw(SIZES) for _ in range(draw((1, 2, 3)))))

  def input(self, *shape):
    self.inputs.append(name := f"x{len(self.shapes)}")
    self.shapes[name] = shape
    return name

  def step(self, op, *args, shape, attr=None):
    name = f"t{len(self.shapes)}"
    self.steps.append(Step(op, args, Tensor(name, DType.F64, tuple(shape)), attr))
    self.shapes[name] = tuple(shape)
    return name

  def grow(self):
    """One more step, where the drawn one fits."""
    draw, x = self.draw, self.draw(list(self.shapes)[-4:])
    shape = self.shapes[x]
    op = draw("slice concat concat reshape add mul neg matmul sum mean rmax transpose".split())
    k = draw(range(len(shape))) if shape else 0
    n, before, behind = shape[k], shape[:k], shape[k + 1 :]
    alike = {y: s for y, s in self.shapes.items() if len(s) == len(shape)}
    if op == "neg":
      return self.step(op, x, shape=shape)
    if op in ("add", "mul"):
      fits = [y for y, s in alike.items() if np.all(np.equal(s, 1) | np.equal(s, shape))]
      return self.step(op, x, draw(fits), shape=shape)
    if op == "slice":
      start = draw(range(n))
      stop = draw(range(start + 1, n + 1))
      return self.step(op, x, shape=(*before, stop - start, *behind), attr=(k, start, stop))
    if op == "concat":
      same = (y for y, s in alike.items() if (*s[:k], *s[k + 1 :]) == (*before, *behind))
      fits = [y for y in same if y != x]
      parts = [x, draw([*fits, self.input(*before, draw(SIZES), *behind)])]
      parts = parts[:: draw((1, -1))] + draw(([], [self.input(*shape)]))
      total = sum(self.shapes[p][k] for p in parts)
      return total > 16 or self.step(op, *parts, shape=(*before, total, *behind), attr=(k,))
    if op == "reshape":
      part = draw([d for d in range(1, n + 1) if n % d == 0])
      new = (*before, part, n // part, *behind)
      if draw((True, False)) and k:
        new = (*before[:-1], before[-1] * n, *behind)
      return self.step(op, x, shape=new, attr=new)
    if op == "transpose":
      order = (*range(k), *range(k + 1, len(shape)), k)
      return self.step(op, x, shape=[shape[i] for i in order], attr=order)
    if op == "matmul":
      m = draw(SIZES)
      w = self.input(*draw([(shape[-1], m), (*shape[:-2], shape[-1], m)]))
      return self.step(op, x, w, shape=(*shape[:-1], m))
    return self.step(op, x, shape=(*before, 1, *behind), attr=(k,))

  def program(self, outputs):
    read = {i for s in self.steps for i in s.inputs}
    ends = [s.output.name for s in self.steps if s.output.name not in read]
    nodes = tuple(Node(f"n{i}", s.op, s.inputs, (s.output.name,), (s,)) for i, s in enumerate(self.steps))
    tensors = {n: Tensor(n, DType.F64, s) for n, s in self.shapes.items()}
    used = tuple(i for i in self.inputs if i in read)
    more = [s.output.name for s in self.steps if s.output.name in read][:outputs]
    return Program(used, (*ends, *more), nodes, tensors, frozenset(), {})


def as_steps(program):
  """The program's own steps, as a region that only the interpreter reads."""
  steps = tuple(s for n in program.nodes for s in n.steps)
  read = (i for s in steps for i in s.inputs if isinstance(i, str))
  made = {s.output.name for s in steps} | program.constants.keys()
  names = (i for i in dict.fromkeys((*program.inputs, *read)) if i not in made)
  inputs = tuple(RegionTensor(i, DType.F64, (), program.tensors[i]) for i in names)
  return Region((), steps, program.constants, inputs, (), (), {})


def check(program, rng):
  """The region of a whole program computes it, and every element of an output once."""
  plain = as_steps(program)
  sources = {i.name: i.tensor.shape for i in plain.inputs}
  nodes = tuple(n.name for n in program.nodes)
  region = make_region(program, nodes, tuple(sources), program.outputs)
  assert not {"slice", "concat"} & {s.op for s in region.steps}
  data = {i: rng.standard_normal(shape) for i, shape in sources.items()}
  want = interpret_steps(plain, data, rounded=False)
  feed = {i.tensor.name: region.part(i, data[i.source.name]) for i in region.inputs}
  for i in region.inputs:
    assert feed[i.tensor.name].shape == i.tensor.shape
  got = interpret_steps(region, feed, rounded=False)
  written = {o: np.zeros(program.tensors[o].shape) for o in program.outputs}
  made = {o: np.zeros(program.tensors[o].shape) for o in program.outputs}
  for o in region.outputs:
    for arrays, value in ((written, 1), (made, got[o.tensor.name])):
      region.part(o, arrays[o.source.name])[...] += value
  for o in program.outputs:
    assert (written[o] == 1).all()
    np.testing.assert_allclose(made[o], want[o], rtol=1e-9, atol=1e-9)
  check_means_its_steps(region, rng)
  return region


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_programs(data):
  growing = Growing(lambda some: data.draw(st.sampled_from(list(some))))
  for _ in range(data.draw(st.integers(2, 9))):
    growing.grow()
  program = growing.program(data.draw(st.integers(0, 1)))
  if not program.outputs:
    return
  try:
    check(program, np.random.default_rng(0))
  except RejectionError as e:
    assert e.rejection.code in ("AXES_CONFLICT", "OP_FORM")


def part(net, x, start, stop, axis=-1, step=1):
  return net.Slice(x, [start], [stop], [axis], [step])


def rotary(net, x, n=8):
  halves = net.Neg(part(net, x, n // 2, n)), part(net, x, 0, n // 2)
  angles = [net.input(5, n) for _ in range(2)]
  return net.Add(net.Mul(x, angles[0]), net.Mul(net.Concat(*halves, axis=-1), angles[1]))


def interleaved(net, x):
  pair = net.Neg(part(net, x, 1, 8, step=2)), part(net, x, 0, 8, step=2)
  pair = [net.Reshape(y, [2, 5, 4, 1]) for y in pair]
  turned = net.Reshape(net.Concat(*pair, axis=-1), [2, 5, 8])
  return net.Add(net.Mul(x, net.input(5, 8)), net.Mul(turned, net.input(5, 8)))


def lora(net, x):
  y = net.MatMul(x, net.Concat(net.weight(8, 6), net.weight(8, 2), axis=1))
  return net.Add(part(net, y, 0, 6), net.MatMul(part(net, y, 6, 8), net.weight(2, 6)))


def attention_step(net, x):
  """Of what is new and what is past, side by side."""
  keys, values = (net.Concat(net.input(2, 7, 8), net.input(2, 1, 8), axis=1) for _ in range(2))
  scores = net.MatMul(x, net.Transpose(keys, perm=[0, 2, 1]))
  return net.MatMul(net.Softmax(scores, axis=-1), values)


def packed(net, x):
  heads = net.Reshape(net.MatMul(net.rms(x), net.weight(8, 24)), [2, 5, 3, 8])
  return net.Relu(part(net, heads, 0, 4))


def norm_and_rotary(net, x):
  return rotary(net, net.rms(x, net.weight(8)))


def head_mean(net, x):
  return net.Mul(net.ReduceMean(net.Concat(x, net.input(2, 5, 3), axis=2), [2]), x)


EXAMPLES = (rotary, interleaved, lora, attention_step, packed, norm_and_rotary, head_mean)


@pytest.mark.parametrize("build", EXAMPLES, ids=lambda f: f.__name__)
def test_examples(build, rng, golden):
  """What a region reads and yields, and that copies of it are the same region."""
  regions = []
  for prefix in ("", "layers.7/"):
    net = Net(np.float64, prefix=prefix)
    model = net.model(build(net, net.input(2, 5, 8)))
    regions.append(check(import_model(load_model(model)), rng))
  assert regions[0].key == regions[1].key
  tensors = (f"{x.name} = {x.tensor.name}" for x in (*regions[0].inputs, *regions[0].outputs))
  assert regions[0].text + "\n".join(tensors) + "\n" == golden


def test_where_a_view_begins_tells_regions_apart():
  keys = set()
  for start in (0, 1, 2):
    net = Net()
    keys.add(region_of(net.model(net.Abs(net.Exp(part(net, net.input(8, 8), start, 4))))).text)
  assert len(keys) == 3


def refusal(*outputs):
  with pytest.raises(RejectionError) as e:
    whole_region(import_model(load_model(outputs[0].model(*outputs[1:]))))
  return e.value.rejection


def test_refusals():
  net = Net()
  x, y = (net.Exp(net.input(9)) for _ in range(2))
  many = net.Concat(*(part(net, x, k, k + 1, 0) for k in range(9)), axis=0)
  found = refusal(net, many)
  assert (found.code, found.reason.split()[2:]) == (
    "OP_FORM", "concatenated of 9 parts, more than 8".split(),
  )  # fmt: skip
  net = Net()
  y = net.Exp(net.input(9))
  found = refusal(net, net.Concat(y, y, axis=0))
  assert found.reason == "parts of an output are equal, and no kernel writes elements twice"
  x = net.Exp(net.input(9))
  found = refusal(net, part(net, net.Concat(x, y, axis=0), 0, 9, 0))
  assert found.reason.startswith("nothing that is wanted of it is made of x")
  across = net.Reshape(net.Concat(part(net, x, 0, 2, 0), part(net, y, 0, 6, 0), axis=0), [2, 4])
  found = refusal(net, across)
  assert found.code == "AXES_CONFLICT" and "across a part that is" in found.reason


def test_slices_at_run_time_sizes():
  """Other dimensions may be counted in a run; a sliced one, or one concatenated along, not."""
  net = Net()
  x = net.input("n", 5, 8)
  region = region_of(net.model(rotary(net, x)), n=3)
  assert region.runtime and region.shape(region.inputs[0].tensor)[-1] == 4
  net = Net()
  x = net.input("n", 8)
  ends = [part(net, x, 0, n, 0) for n in (4, 1 << 30, 1 << 31)]
  nodes = import_model(load_model(net.model(net.Concat(x, x, axis=0), *ends))).nodes
  codes = sorted(n.barrier.code if n.barrier else n.steps[0].op for n in nodes)
  assert codes == ["DYNAMIC_DIM"] * 3 + ["cast"]


def test_a_split_may_lie_in_regions_of_its_outputs(net):
  y = net.MatMul(net.input(8, 64), net.weight(64, 96))
  names = [net.constant([48, 24, 24], np.int64), *"qkv"]
  net.nodes.append(helper.make_node("Split", [y, names[0]], names[1:], name="split", axis=1))
  ends = [net.Relu(q) for q in "qkv"]
  found = matches(net.model(*ends)).candidates
  whole = [c for c in found if len(c.nodes) == 3]
  assert {o for c in whole for o in c.outputs} == {*ends}
  for c in whole:
    assert [i.windows != () for i in sorted(c.region.inputs, key=lambda i: i.is_weight)] == [
      False, True,
    ]  # fmt: skip


def test_weights_side_by_side_are_weights(net):
  """Whatever moves them: no region reads what was put together as an activation."""
  w = net.Transpose(net.Concat(net.weight(6, 64), net.weight(2, 64), axis=0), perm=[1, 0])
  found = matches(net.model(net.Relu(net.MatMul(net.rms(net.input(8, 64)), w)))).candidates
  contracting = [c.region for c in found if any(s.op == "matmul" for s in c.region.steps)]
  assert contracting
  for region in contracting:
    assert sum(i.is_weight for i in region.inputs) == 2
    assert sum(s.op == "matmul" for s in region.steps) == 2  # one for each of them


def test_of_a_packed_weight_only_what_is_sliced_feeds_a_contraction(net):
  """[W|A] has more columns than may be computed again, A has few."""
  x = net.input(8, 64)
  y = net.MatMul(x, net.weight(64, 80))
  region = region_of(net.model(net.Add(part(net, y, 0, 64), net.MatMul(
    part(net, y, 64, 80), net.weight(16, 64)))))  # fmt: skip
  assert len(region.nodes) == 5
  assert [i.source.name for i in region.inputs].count(x) == 1
