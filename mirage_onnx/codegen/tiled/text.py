"""Steps of a thread graph as CUDA text."""

from collections.abc import Callable, Mapping
from typing import Any

from mirage_onnx.codegen.loads import rounded
from mirage_onnx.codegen.tiled import memory_text, reduce_text
from mirage_onnx.codegen.tiled.contract import contract
from mirage_onnx.codegen.tiled.pairs_text import pack
from mirage_onnx.codegen.tiled.values import ValueWriter, nothing, rule_of
from mirage_onnx.codegen.tiled.warpgroup_text import contract_by_warpgroup, settle_late
from mirage_onnx.ir.block_ops import CLUSTER, MAXIMA, Kind, kind_of
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.steps import Held, ThreadStep

_LOWEST = "-3.4028235e38f"
#: Registers of an accumulator that stands for what has been computed.
_FEW = 4


def begin_state(w: ValueWriter, index: int) -> None:
  """Accumulators and running maxima before the first iteration."""
  op = w.ops[index]
  held = Held(index, w.lowering.forms[index])
  finite = kind_of(op.op) is Kind.RUNNING and op.op in MAXIMA
  w.declare(held, rounded(_LOWEST, op.dtype) if finite else nothing(op.op))


def _run(w: ValueWriter, step: do.ThreadRun) -> None:
  for index in step.ops:
    w.declare(Held(index, w.lowering.forms[index]))
  with w.walk(step.form) as spot:
    for index in step.ops:
      op = w.ops[index]
      args = [w.element(a, spot) for a in w.operands(index)]
      one = op.op in CLUSTER
      value = w.taken(op, args[0]) if one else w.evaluated(index, args)
      w.writer.line(f"{w.element(index, spot)} = {value};", index)


def _update(w: ValueWriter, step: do.Update) -> None:
  op, form = w.ops[step.index], w.lowering.forms[step.index]
  name = w.name(Held(step.index, form))
  old = [
    Held(i, form)
    for i in sorted(w.lowering.assignment.needed)
    if kind_of(w.ops[i].op) is Kind.PREVIOUS and w.ops[i].args[0] == step.index
  ]
  if w.lowering.late is not None and w.lowering.fused[w.lowering.late] == step.index:
    _beside_late(w, step.index)
    settle_late(w)
    if w.feed:
      w.feed.late_has_ended()
  running = kind_of(op.op) is Kind.RUNNING
  for held in old if running else []:
    w.declare(held)
  with w.walk(form) as spot:
    to = f"{name}{spot.subscript(form)}"
    if kind_of(op.op) is Kind.RESCALED:
      scaled = f"{to} * {w.element(op.args[1], spot)}"
      fused = w.lowering.fused.get(op.args[0]) == step.index
      value = scaled if fused else f"{scaled} + {w.element(op.args[0], spot)}"
    else:
      rule = rule_of(op.op)
      if running:
        for held in old:
          w.writer.line(f"{w.name(held)}{spot.subscript(form)} = {to};")
      value = f"{rule}::combine({to}, {w.taken(op, w.element(op.args[0], spot))})"
    w.writer.line(f"{to} = {value};", step.index)


def _beside_late(w: ValueWriter, index: int) -> None:
  """What an iteration has computed for the accumulators before this one is done beside the late product."""
  for i in w.lowering.states:
    form = w.lowering.forms[i]
    few = w.lowering.warps.registers(form) <= _FEW
    if i < index and few and kind_of(w.ops[i].op) in (Kind.ACCUMULATOR, Kind.RESCALED):
      name = w.name(Held(i, form))
      with w.walk(form) as spot:
        w.writer.line(f"ptx::wgmma_beside({name}{spot.subscript(form)});")


def _contract(w: ValueWriter, step: do.Contract) -> None:
  (contract_by_warpgroup if step.index in w.lowering.warpgroup else contract)(w, step)


#: What writes a step; ``Advance`` and barriers belong to the loop's ring.
_WRITERS: Mapping[type[ThreadStep], Callable[[ValueWriter, Any], None]] = {
  do.Fetch: memory_text.fetch, do.Copy: memory_text.copy, do.Read: memory_text.read,
  do.Spill: memory_text.spill, do.Store: memory_text.store, do.ThreadRun: _run, do.Update: _update,
  do.Pack: pack, do.Contract: _contract, do.Multiply: reduce_text.multiply, do.Fold: reduce_text.fold,
  do.Total: reduce_text.reduce_tile, do.Meet: reduce_text.meet, do.Publish: reduce_text.publish,
  do.Gather: reduce_text.gather, do.GatherRanks: reduce_text.gather_ranks,
}  # fmt: skip


def write_step(w: ValueWriter, step: ThreadStep) -> None:
  """The text of one step."""
  if type(step) not in _WRITERS:
    raise TypeError(f"not a step with a text: {step}")
  _WRITERS[type(step)](w, step)
