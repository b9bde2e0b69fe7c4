"""The canonical text of a UGraph: printing and parsing are inverse, anything else is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.ir import (
  BlockOp,
  DType,
  Kernel,
  KTensor,
  Layout,
  Phase,
  Save,
  UGraph,
  parse_ugraph,
  print_kernel,
  print_ugraph,
)

AXES = st.sampled_from(["a0", "a1", "a2", "a10", "a0/k0"])
NAMES = st.sampled_from(["i0", "i1", "o0", "t0"])
axes = st.lists(AXES, unique=True, max_size=3).map(tuple)
maps = st.lists(st.one_of(st.none(), AXES), max_size=3).map(tuple)
types, phases, layouts = (st.sampled_from(list(e)) for e in (DType, Phase, Layout))
values = st.one_of(st.fractions(), st.just("pi"))


@st.composite
def operations(draw, index):
  common = (draw(axes), draw(types), draw(phases), draw(layouts))
  kinds = ["load", "const", "extent"]
  if index:
    kinds += ["cast", "add", "rsqrt", "matmul", "sum", "rmax", "acc_sum", "red_max", "powr"]
    kinds += ["run_max", "prev", "acc_scaled"]
  op = draw(st.sampled_from(kinds))
  arity = {
    "load": 0, "const": 0, "extent": 0, "add": 2, "matmul": 2, "acc_scaled": 2
  }.get(op, 1)  # fmt: skip
  args = tuple(draw(st.integers(0, index - 1)) for _ in range(arity))
  if op == "load":
    return BlockOp(
      op, (), *common, tensor=draw(NAMES), imap=draw(maps),
      cmap=draw(st.one_of(st.none(), AXES)), fmap=draw(st.one_of(st.none(), AXES)),
    )  # fmt: skip
  if op in ("const", "powr"):
    value = draw(values) if op == "const" else draw(st.fractions())
    return BlockOp(op, args, *common, value=value)
  if op in ("extent", "matmul", "sum", "rmax"):
    return BlockOp(op, args, *common, reduced=draw(axes.filter(bool)))
  return BlockOp(op, args, *common)


@st.composite
def kernels(draw, name):
  ops = []
  for i in range(draw(st.integers(1, 6))):
    ops.append(draw(operations(i)))
  saved = st.tuples(NAMES, st.integers(0, len(ops) - 1), maps)
  saves = tuple(Save(*s) for s in draw(st.lists(saved, max_size=2)))
  loop = draw(st.one_of(st.none(), AXES))
  cluster = draw(st.one_of(st.none(), AXES))
  return Kernel(name, draw(axes), cluster, loop, tuple(ops), saves)


@st.composite
def graphs(draw):
  tensor = st.builds(KTensor, NAMES, types, axes, st.sampled_from(["input", "weight", "temp", "output"]))
  count = draw(st.integers(0, 2))
  return UGraph(
    tuple(draw(st.lists(tensor, max_size=3))),
    tuple(draw(kernels(f"k{i}")) for i in range(count)),
  )


@given(graphs())
def test_parsing_is_the_inverse_of_printing(graph):
  text = print_ugraph(graph)
  assert parse_ugraph(text) == graph
  assert print_ugraph(parse_ugraph(text)) == text


def test_text_of_every_field():
  kernel = Kernel(
    "k0", ("a1", "a0"), "a2", "a2",
    (
      BlockOp("load", (), ("a0", "a2"), DType.F16, Phase.LOOP, Layout.B_FRAG, tensor="i0",
              imap=(None, "a0"), cmap="a2", fmap="a2"),
      BlockOp("powr", (0,), ("a0", "a2"), DType.F32, Phase.LOOP, Layout.B_FRAG,
              value=Fraction(-3, 4)),
      BlockOp("const", (), (), DType.F32, Phase.POST, Layout.UNIFORM, value="pi"),
      BlockOp("sum", (1,), ("a0",), DType.F32, Phase.LOOP, Layout.ROW, reduced=("a2",)),
    ),
    (Save("o0", 3, (None, "a0")),),
  )  # fmt: skip
  assert print_kernel(kernel) == (
    "kernel k0 grid=a1,a0 cluster=a2 loop=a2\n"
    "  %0 = load i0 imap=-,a0 cmap=a2 fmap=a2 : f16[a0,a2] loop B_frag\n"
    "  %1 = powr[-3/4] %0 : f32[a0,a2] loop B_frag\n"
    "  %2 = const[pi] : f32[] post uniform\n"
    "  %3 = sum[a2] %1 : f32[a0] loop row\n"
    "  save o0 = %3 omap=-,a0\n"
  )


ONE = Fraction(1)
GOOD = print_ugraph(
  UGraph(
    (KTensor("i0", DType.F16, ("a0",), "input"),),
    (
      Kernel(
        "k0", ("a0",), None, None,
        (BlockOp("const", (), (), DType.F32, Phase.POST, Layout.UNIFORM, value=ONE),),
        (Save("o0", 0, ("a0",)),),
      ),
    ),
  )
)  # fmt: skip


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ("ugraph 1", "ugraph 2"),
    ("ugraph 1", "graph"),
    ("f16[a0] input", "f17[a0] input"),
    ("%0 = const", "%1 = const"),
    ("post uniform", "never uniform"),
    ("post uniform", "post nowhere"),
    ("save o0 = %0", "save o0 = 0"),
    ("kernel k0", "kernal k0"),
    ("const[1]", "const[1/0x]"),
    ("const[1]", "const[1e40000000]"),  # as a fraction: 40 million digits
    ("const[1]", "const[1e-40000000]"),
    ("const[1]", "const[0.5]"),
    ("const[1]", f"const[{'7' * 4001}]"),
    ("const[1]", "const[-]"),
  ],
)
def test_other_text_is_refused(old, new):
  assert parse_ugraph(GOOD).kernels[0].grid == ("a0",)
  assert old in GOOD
  with pytest.raises(ValueError):
    parse_ugraph(GOOD.replace(old, new))


def test_empty_text_is_refused():
  with pytest.raises(ValueError, match="version 1"):
    parse_ugraph("")
