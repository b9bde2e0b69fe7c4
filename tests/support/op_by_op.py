"""What a region would take op by op: the baseline that a found program has to beat on paper.

Every step that computes is a region of its own, and takes what the search finds for it: both sides
are of one generator and one cost model. The baseline flatters: casts and changes of layout cost
nothing (the kernels before and behind do them), and a value is written once, in the narrowest type
that anybody reads it in.
"""

from dataclasses import replace
from math import prod

import stand_ins

from mirage_onnx.ir.program import Node, Program, Step
from mirage_onnx.match.whole import whole_region
from mirage_onnx.superopt.result import default_bound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL

#: Steps that a framework fuses into what is before or behind them.
FREE = frozenset({"cast", "transpose", "reshape", "expand"})
#: Every program is right: it is one step. The cheapest is asked for.
BOUND, PROVEN = replace(default_bound(ALL), verified=1), stand_ins.verified(0.0).proof
COPIED = "an output that is a copy of an input"


def op_by_op_us(region, target):
  """Predicted microseconds of the steps of ``region``, each one a region of its own.

  Raises:
      ValueError: the extents are not those of the recorded shapes, which say what steps move.
  """
  return sum(us for _, us in step_times_us(region, target))


def step_times_us(region, target):
  """The steps that compute, each with its microseconds."""
  _check_sizes(region)
  return tuple((step, _us(program, target)) for step, program in _alone(region))


def _alone(region):
  """The steps that compute, each with its program: what it reads and writes is in memory."""
  made = {s.output.name: s for s in region.steps}
  tensors = {i.tensor.name: i.tensor for i in region.inputs}
  tensors |= {name: s.output for name, s in made.items()}
  weights = {i.tensor.name for i in region.inputs if i.is_weight}
  stored = _stored(region, made, tensors)
  for step in region.steps:
    if step.op in FREE:
      continue
    before, read = _before(step, made)
    name, dtype = step.output.name, stored[step.output.name]
    last = replace(step.output, name=f"{name}/stored", dtype=dtype)
    steps = (*before, step, Step("cast", (name,), last, dtype))
    inputs = {n: replace(tensors[n], dtype=stored[n]) for n in read if n in tensors}
    named = {**inputs, **{s.output.name: s.output for s in steps}}
    node = Node("step", step.op, tuple(inputs), tuple(s.output.name for s in steps), steps)
    constants = {n: c for n, c in region.constants.items() if n in read}
    own = weights.intersection(inputs)
    yield step, Program(tuple(inputs), (last.name,), (node,), named, frozenset(own), constants)


def _before(step, made):
  """The free steps between memory and ``step``, in order, and what they read there."""
  order, read = {}, {}

  def visit(name):
    source = made.get(name)
    if source is None or source.op not in FREE:
      read[name] = None
      return
    for i in source.inputs:
      if isinstance(i, str):
        visit(i)
    order[source] = None

  for i in step.inputs:
    if isinstance(i, str):
      visit(i)
  return tuple(order), tuple(read)


def _stored(region, made, tensors):
  """Tensor -> its type in memory: as an input comes, else as narrow as those that read it want it."""
  readers = [s for s in region.steps if s.op not in FREE]
  used = {o.tensor.name for o in region.outputs} | {
    i for s in readers for i in s.inputs if isinstance(i, str)
  }
  wanted = {}
  for name in sorted(used.intersection(tensors)):
    root = name
    while root in made and made[root].op in FREE and made[root].inputs[0] in tensors:
      root = made[root].inputs[0]
    if root in made:
      wanted.setdefault(root, []).append(tensors[name].dtype)
  narrow = {n: min(types, key=lambda d: d.size_bytes) for n, types in wanted.items()}
  return {n: narrow.get(n, t.dtype) for n, t in tensors.items()}


_known = {}


def _us(program, target):
  region = whole_region(program)
  key = region.text, region.key, target
  if key not in _known:
    result = search(region, target, lambda *_: PROVEN, bound=BOUND, space=ALL)
    if not result.candidates:
      # A copy is as free as a change of layout: there is nothing to compute.
      assert dict(result.report.pruned).keys() == {COPIED}, result.report
    _known[key] = min((v.candidate.predicted_us for v in result.candidates), default=0.0)
  return _known[key]


def _check_sizes(region):
  for x in (*region.inputs, *region.outputs):
    named, elements = prod(region.extents[a] for a in x.axes), prod(map(int, x.tensor.shape))
    if named != elements:
      raise ValueError(f"{x.tensor.name} of shape {x.tensor.shape} has {named} elements")
