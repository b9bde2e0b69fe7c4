"""Wrong meanings: of an operator, of an elementwise function in the generator, of a matched region."""

from dataclasses import replace
from functools import partial
from unittest import mock

from mirage_onnx.codegen import elementwise
from mirage_onnx.importer.semantics import SEMANTICS
from mirage_onnx.ir.dtype import DType
from mutants.harness import Fault
from mutants.hooks import patched, production
from mutants.subjects import subject as model_of
from mutants.survey import survey

FIND = "mirage_onnx.pipeline:find_candidates"
#: Operators by the number of tensors that they take: one stands for another.
_RULES = (
  ("Relu", "Sigmoid", "Tanh", "Sqrt", "Abs", "Neg", "Identity", "Exp", "Softsign"),
  ("Add", "Mul", "Sub", "Div", "Max"),
  ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL1", "ReduceSumSquare"),
  ("Softmax", "LogSoftmax", "Identity"),
  ("Cast", "Relu"),
)
_FUNCTIONS = (
  ("relu", "abs", "neg", "square", "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "recip"),
  ("add", "mul", "sub", "max", "div"),
)


def semantics(_, subject):
  """The rule of one operator is that of another, or its operands change places."""
  used = {n.op_type for n in model_of(subject).graph.node}
  for group in _RULES:
    for op in group:
      for other in group if op in used else ():
        if other != op:
          rule = replace(SEMANTICS["", op], lower=SEMANTICS["", other].lower)
          plant = partial(mock.patch.dict, SEMANTICS, {("", op): rule})
          yield Fault("semantics", subject, f"{op} is {other}", plant)


def functions(bench, subject):
  """The text of one elementwise function is that of another."""
  graphs = (c.candidate.ugraph for _, c in survey(bench, subject).chosen)
  used = {op.op for graph in graphs for kernel in graph.kernels for op in kernel.ops}
  for group in _FUNCTIONS:
    for op in group:
      for other in group if op in used else ():
        if other != op:
          text = {op: elementwise._EXPRESSIONS[other]}
          plant = partial(mock.patch.dict, elementwise._EXPRESSIONS, text)
          yield Fault("function", subject, f"{op} is {other}", plant)


def regions(bench, subject):
  """The matcher says something wrong of one region."""
  for region in {r.key: r for r, _ in survey(bench, subject).chosen}.values():
    # A run counts a runtime axis: the region has what it is assumed to be, and no size is a wrong one.
    assumed = {f"{a} has one element {how}" for a in region.runtime for how in ("less", "more")}
    for name, change in _changes(region):
      right = partial(bool, name in assumed)
      plant = partial(_matched, region.key, change)
      yield Fault("match", subject, f"{region.key[:6]} {name}", plant, is_right=right)


def _matched(key, change):
  find = production(FIND)

  def found(*args, **more):
    matches = find(*args, **more)
    changed = (replace(c, region=change(c.region)) if c.region.key == key else c for c in matches.candidates)
    return replace(matches, candidates=tuple(changed))

  return patched(found, FIND)


def _changes(region):
  for k, term in enumerate(region.terms):
    for j, part in enumerate(term.args):
      if set(part.axes) == set(term.axes):
        yield f"output {k} is argument {j} of what it was", partial(_with_term, k, part)
  if len(region.terms) > 1:
    yield "terms of outputs change places", lambda r: replace(r, terms=r.terms[::-1])
  for side in ("inputs", "outputs"):
    for x in getattr(region, side):
      other = DType.F32 if x.dtype is not DType.F32 else DType.F16
      yield f"{x.name} is {other}", partial(_tensor, side, x.name, {"dtype": other})
      if len(x.axes) > 1:
        yield f"axes of {x.name} in the other order", partial(_tensor, side, x.name, {"axes": x.axes[::-1]})
      if side == "inputs" and not x.is_weight:  # a weight that is taken for an input is read later: no fault
        yield f"{x.name} is a weight", partial(_tensor, side, x.name, {"is_weight": True})
      if x.view is not None:
        starts = tuple(0 for _ in x.view.starts)
        yield (
          f"view of {x.name} at 0",
          partial(_tensor, side, x.name, {"view": replace(x.view, starts=starts)}),
        )
  for axis, size in region.extents.items():
    yield f"{axis} has one element less", partial(_extent, axis, size - 1)
    yield f"{axis} has one element more", partial(_extent, axis, size + 1)
  for axis in region.runtime:
    yield f"{axis} is no runtime axis", partial(_static, axis)
  if len(region.nodes) > 1:
    yield "a node less", lambda r: replace(r, nodes=r.nodes[1:])


def _with_term(k, term, region):
  return replace(region, terms=(*region.terms[:k], term, *region.terms[k + 1 :]))


def _tensor(side, name, fields, region):
  items = tuple(replace(x, **fields) if x.name == name else x for x in getattr(region, side))
  return replace(region, **{side: items})


def _extent(axis, size, region):
  return replace(region, extents={**region.extents, axis: size})


def _static(axis, region):
  return replace(region, runtime={a: m for a, m in region.runtime.items() if a != axis})
