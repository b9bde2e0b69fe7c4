"""Layouts of general block graphs: what the golden kernels get, and that nothing moves in vain."""

import random
import re
from dataclasses import replace
from itertools import product

import pytest
from golden_texts import PROGRAMS
from goldens import GOLDENS, golden
from random_ugraphs import random_program

from mirage_onnx.ir import Layout, Phase, parse_ugraph
from mirage_onnx.lower.lanes import LOOP_WEIGHT, WEIGHTS, Contraction, choose_lanes
from mirage_onnx.lower.tiled_layouts import Conversion, after_matmul, lay_out_tiled
from mirage_onnx.lower.tiled_layouts import conversions as conversions_of

A, B, C = Layout.A_FRAG, Layout.B_FRAG, Layout.C_FRAG
ROW, COLUMN, DEPTH, SHARED = Layout.ROW, Layout.COLUMN, Layout.DEPTH, Layout.SHARED
UNIFORM, VECTOR = Layout.UNIFORM, Layout.VECTOR


def tensors(graph):
  return {t.name: t for t in graph.tensors}


def laid_out(kernel, of):
  return replace(kernel, ops=lay_out_tiled(kernel, of)[0])


def conversions(kernel):
  """Those of a kernel that has its layouts, in the order of the operations."""
  if not any(op.op == "matmul" for op in kernel.ops):
    return conversions_of(kernel, (), ())
  return conversions_of(kernel, *choose_lanes(kernel))


def kernels(*names):
  for g in GOLDENS:
    if not names or g.name in names:
      for k in g.ugraph.kernels:
        yield f"{g.name}-{k.name}", k, tensors(g.ugraph)


def parse(text):
  graph = parse_ugraph("ugraph 1\n" + text)
  return graph.kernels[0], tensors(graph)


EVERY = [pytest.param(k, t, id=name) for name, k, t in kernels()]


@pytest.mark.parametrize(("kernel", "of"), EVERY)
def test_the_operations_stay_the_same(kernel, of):
  done = lay_out_tiled(kernel, of)[0]
  for before, after in zip(kernel.ops, done, strict=True):
    assert replace(before, layout=after.layout, args=after.args) == after
    assert before.args == after.args or (before.op == "matmul" and before.args == after.args[::-1])


@pytest.mark.parametrize(("kernel", "of"), EVERY)
def test_layouts_of_layouts(kernel, of):
  once = laid_out(kernel, of)
  assert laid_out(once, of) == once


@pytest.mark.parametrize(("kernel", "of"), EVERY)
def test_what_a_contraction_takes(kernel, of):
  """Fragments of its side, vectors of depth, shared tiles, a result, or a conversion says otherwise."""
  kernel = laid_out(kernel, of)
  moved, after = {c.value for c in conversions(kernel)}, after_matmul(kernel)
  for op in kernel.ops:
    if op.op == "matmul":
      for arg, side in zip(op.args, (A, B), strict=True):
        layout = kernel.ops[arg].layout
        assert layout in (side, DEPTH, SHARED) or arg in moved or (after[arg] and layout is C)


def test_online_attention():
  """Both contractions in registers: probabilities are an operand where they lie."""
  g = golden("attention_online")
  kernel = laid_out(g.ugraph.kernels[0], tensors(g.ugraph))
  layouts = [op.layout for op in kernel.ops]
  assert layouts == [
    A, SHARED, SHARED, C, C, UNIFORM, C, C, ROW, ROW, C, C, ROW, ROW, ROW, ROW, ROW, A, C, C,
    C, C,
  ]  # fmt: skip
  assert conversions(kernel) == ()
  assert kernel.ops[4].args == (0, 1)


def test_a_cluster_exchanges_what_it_reduces():
  g = golden("attention_cluster")
  kernel = laid_out(g.ugraph.kernels[0], tensors(g.ugraph))
  assert [c for c in conversions(kernel) if c.kind == "dsmem"] == [
    Conversion(20, "dsmem"),
    Conversion(24, "dsmem"),
    Conversion(26, "dsmem"),
  ]


def test_a_statistic_of_operand_b_is_shuffled_once():
  """One number per key lies over the groups, and scales the columns of the logits."""
  g = golden("qknorm_attention")
  kernel = laid_out(g.ugraph.kernels[0], tensors(g.ugraph))
  assert kernel.ops[9].layout is B
  assert kernel.ops[10].layout is ROW
  assert [c.kind for c in conversions(kernel)] == ["movmatrix"]


def test_what_is_contracted_in_fp32_is_shared():
  kernel, of = parse(re.sub(r"\b(f16|bf16)\[", "f32[", PROGRAMS["contracted_over_rows"]))
  ops = laid_out(kernel, of).ops
  assert {ops[a].layout for o in ops if o.op == "matmul" for a in o.args if ops[a].op == "load"} == {SHARED}


def test_a_contraction_over_the_rows_of_a_result():
  """What both orders of the first contraction cannot serve is transposed inside the warp."""
  kernel, of = parse(PROGRAMS["contracted_over_rows"])
  kinds = sorted(c.kind for c in conversions(laid_out(kernel, of)))
  assert kinds == ["movmatrix"]


def test_a_contraction_over_what_was_repeated_goes_through_shared_memory():
  kernel, of = parse(PROGRAMS["contracted_over_a_batch"])
  assert [c.kind for c in conversions(laid_out(kernel, of))] == ["shared"]


def test_shared_memory_is_the_dearest_way():
  assert WEIGHTS["free"] == 0 < WEIGHTS["movmatrix"] < WEIGHTS["shared"]
  assert LOOP_WEIGHT > 1


def test_weights_are_operand_a():
  """As in streaming kernels: sixteen of their columns with eight rows of activations."""
  g = golden("gated_mlp")
  kernel = laid_out(g.ugraph.kernels[0], tensors(g.ugraph))
  for op in kernel.ops:
    if op.op == "matmul":
      assert of_role(kernel, op.args[0], tensors(g.ugraph)) == "weight"


def of_role(kernel, index, of):
  return of[kernel.ops[index].tensor].role


def test_kernels_without_contractions():
  by_name = {name: (k, t) for name, k, t in kernels("attention_split_kv", "softmax_rows")}
  merge = laid_out(*by_name["attention_split_kv-k1"])
  assert [op.layout for op in merge.ops] == [SHARED, SHARED, VECTOR] + [SHARED] * 5 + [VECTOR] * 4
  rows = laid_out(*by_name["softmax_rows-k0"])
  assert {op.layout for op in rows.ops if op.axes == ("a0",)} == {ROW}
  assert {op.layout for op in rows.ops if "a1" in op.axes} == {VECTOR}
  assert {op.layout for op in rows.ops if not op.axes} == {UNIFORM}


def test_a_transposed_load_is_copied():
  kernel, of = parse(PROGRAMS["transposed_summand"])
  assert [op.layout for op in laid_out(kernel, of).ops] == [SHARED, VECTOR, VECTOR, VECTOR]


def least_moves(kernel):
  """The least weight of conversions over all ways to lay out every value, by trying them."""
  ops = kernel.ops
  frames = []
  for op in ops:
    if op.op == "matmul":
      c = Contraction.of(kernel, op)
      frames += [*c.results, *c.operands]
  free = [i for i, op in enumerate(ops) if op.op == "matmul" or (op.args and op.axes)]
  choices = []
  for i in free:
    if ops[i].op == "matmul":
      choices.append(Contraction.of(kernel, ops[i]).results)
      continue
    found = sorted({f.of(ops[i].axes) for f in frames}, key=str)
    sides = max(bool(f.g) + bool(f.t) for f in found)
    choices.append(tuple(f for f in found if bool(f.g) + bool(f.t) == sides))
  least = None
  for chosen in product(*choices):
    lanes = dict(zip(free, chosen, strict=True))
    cost = moves(kernel, lanes)
    if cost is not None and (least is None or cost < least):
      least = cost
  assert least is not None
  return least


def moves(kernel, lanes):
  """The weight of the conversions of one way; None where a reduction would move its result."""
  total = 0
  for i, op in enumerate(kernel.ops):
    for n, arg in enumerate(op.args):
      if arg not in lanes or i not in lanes:
        continue
      axes = kernel.ops[arg].axes
      if op.op == "matmul":
        wanted = Contraction.of(kernel, op).operands[n].of(axes)
      else:
        axes = tuple(a for a in axes if a in op.axes)
        wanted = lanes[i].of(axes)
      kind = lanes[arg].of(axes).move(wanted)
      if op.op in ("sum", "rmax") and kind != "free":
        return None
      total += WEIGHTS[kind] * (LOOP_WEIGHT if kernel.ops[arg].phase is Phase.LOOP else 1)
  return total


def cost_of(kernel):
  return sum(
    WEIGHTS[c.kind] * (LOOP_WEIGHT if kernel.ops[c.value].phase is Phase.LOOP else 1)
    for c in conversions(kernel)
    if c.kind != "dsmem"
  )


SMALL = ("gated_mlp", "lora", "mla", "pooled_linear", "gqa_decode", "norm_linear", "ngpt_step")


@pytest.mark.parametrize(
  ("kernel", "of"),
  [pytest.param(k, t, id=name) for name, k, t in kernels(*SMALL) if any(op.op == "matmul" for op in k.ops)],
)
def test_no_layouts_move_less(kernel, of):
  assert cost_of(laid_out(kernel, of)) == least_moves(kernel)


def test_no_layouts_of_random_kernels_move_less():
  compared = moved = 0
  for seed in range(300):
    graph = random_program(random.Random(seed)).graph
    of = tensors(graph)
    for kernel in graph.kernels:
      free = [op for op in kernel.ops if op.op != "load" and op.axes]
      if len(free) > 8 or not any(op.op == "matmul" for op in kernel.ops):
        continue
      done = laid_out(kernel, of)
      assert cost_of(done) == least_moves(kernel), seed
      assert laid_out(done, of) == done
      compared += 1
      moved += cost_of(done) > 0
  assert compared >= 20
  assert moved >= 2
