"""Operators of deployed decoders and encoders, form by form at real sizes: programs, or why there is none.

    python bench/deployed_forms.py [--out bench/results/deployed_forms.json] [--only TEXT] [--seconds 240]

Of each form a model of few nodes is imported, its smallest region with the operator searched and proved for
an H100. ``programs``: proved up to the first or more (0: ``why`` says what refused them); ``barrier``: why
the operator is in no region. Whether one is faster, a GPU says. An error without a code ends the run.
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
from protocol import write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]

from dequantized_models import between, dequantized
from float_products import float8
from packed_models import MS, model_of, nbits
from projecting_models import projecting
from small_models import Net

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import STEPS
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.result import Stop
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import get_target
from mirage_onnx.verify.prover import prover

SIZE, ROOM, HEADS, OWN, HEAD = 1024, 1024, 8, 4, 64
FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def one(net, op, inputs, shape, domain="", more=(), **attributes):
  """A node's first output as that of the model; ``more``: (name, shape) of further ones."""
  y = getattr(net, op)(*inputs, domain=domain, **attributes)
  while net.nodes[-1].input[-1] == "":
    del net.nodes[-1].input[-1]
  net.nodes[-1].output.extend(name for name, _ in more)
  return model_of(net, (y, shape), *more)


def fp8(kind, axis):
  net = Net(opset=21)
  x, w = net.input(1, SIZE), net.constant(net.rng.standard_normal((SIZE, SIZE)), FP8[kind])
  how = {} if axis is None else {"axis": axis}
  scale = net.constant(net.rng.uniform(0.5, 1.5, () if axis is None else SIZE) / 32)
  return model_of(net, (net.MatMul(x, net.DequantizeLinear(w, scale, **how)), (1, SIZE)))


def around(kind, dtype, bias):
  """Activations and weights through integers, as onnxruntime.quantization writes a product."""
  net = Net(dtype, opset=21)
  point = net.constant(0.02), net.constant(3, kind)
  x = net.DequantizeLinear(net.QuantizeLinear(net.input(1, SIZE), *point), *point)
  scale = net.constant(net.rng.uniform(0.5, 1.5, SIZE) / 80 / 32)
  w = net.DequantizeLinear(net.constant(net.rng.integers(-127, 127, (SIZE, SIZE)), np.int8), scale, axis=1)
  if bias:
    y = net.Gemm(x, w, net.DequantizeLinear(net.constant(np.arange(SIZE), np.int32), scale, axis=0))
  else:
    y = net.MatMul(x, w)
  return model_of(net, (y, (1, SIZE)))


def packed(dtype=np.float16, point=None, **how):
  """``point`` "float": zero points that are floats, "order": columns in an order of their own (g_idx)."""
  net = Net(dtype)
  y = nbits(net, net.input(1, SIZE), SIZE, SIZE, **how)
  node = net.nodes[-1]
  if point == "float":
    node.input.extend([""] * (4 - len(node.input)))
    node.input[3] = net.constant(net.rng.uniform(6, 9, (SIZE, SIZE // how["block"])))
  if point == "order":
    node.input.extend([""] * (5 - len(node.input)))
    node.input[4] = net.constant(net.rng.permutation(SIZE) // how["block"], np.int32)
  return model_of(net, (y, (1, SIZE)))


def rows_of_table():
  net = Net()
  table = net.constant(net.rng.integers(0, 256, (4096, SIZE // 2)), np.uint8)
  scale = net.constant(net.rng.uniform(0.5, 1.5, (4096, SIZE // 32)))
  rows = net.input(1, 1, dtype=np.int64)
  how = {"block_size": 32, "gather_axis": 0, "quantize_axis": 1, "bits": 4}
  return one(net, "GatherBlockQuantized", [table, rows, scale], (1, 1, SIZE), MS, **how)


def grouped(
  new=1, batch=1, room=ROOM, *, norms=False, rotary=True, sink=False, bias=False, beside=False,
  dtype=np.float16, **more,
):  # fmt: skip
  net, wide = Net(dtype), (HEADS + 2 * OWN) * HEAD
  parts = [wide] if beside else [HEADS * HEAD, OWN * HEAD, OWN * HEAD]
  inputs = [*(net.input(batch, new, n) for n in parts), *[""] * (3 - len(parts))]
  inputs += [net.input(batch, OWN, room, HEAD) for _ in range(2)]
  inputs += [net.input(batch, dtype=np.int32), net.input(dtype=np.int32)]
  angles = np.arange(ROOM)[:, None] * 0.01 ** (np.arange(HEAD // 2) / (HEAD // 2))
  inputs += [net.constant(f(angles)) for f in (np.cos, np.sin)] if rotary else ["", ""]
  inputs += ["", net.input(batch, 1, new, room) if bias else "", net.weight(HEADS) if sink else "", "", ""]
  inputs += [net.constant(1 + 0.1 * net.rng.standard_normal(HEAD)) for _ in range(2)] if norms else []
  caches = [(f"present_{n}", (batch, OWN, room, HEAD)) for n in "kv"]
  how = {"num_heads": HEADS, "kv_num_heads": OWN, "do_rotary": int(rotary), **more}
  return one(net, "GroupQueryAttention", inputs, (batch, new, HEADS * HEAD), MS, caches, **how)


def heads(kind="apart", queries=256, keys=256, mask="", batch=2, *, bias=False, past=0, lengths=False):
  net, wide = Net(), HEADS * HEAD
  inputs = {
    "all": [(batch, queries, HEADS, 3, HEAD)],
    "pairs": [(batch, queries, wide), (batch, keys, HEADS, 2, HEAD)],
    "apart": [(batch, queries, wide), *[(batch, keys, wide)] * 2],
  }[kind]
  inputs = [net.input(*s) for s in inputs]
  inputs += [""] * (3 - len(inputs))
  inputs.append(net.constant(net.rng.standard_normal(3 * wide)) if bias else "")
  shape = {"keys": (batch, keys), "rows": (batch, queries, keys), "ends": (batch,), "whole": (3 * batch + 2,)}
  inputs.append(net.input(*shape[mask], dtype=np.int32) if mask else "")
  inputs += ["", *(net.input(batch, HEADS, past, HEAD) for _ in range(2 if past else 0))]
  inputs += [net.input(1, dtype=np.int32)] if lengths else []
  more = (
    [(f"present_{n}", (batch, HEADS, past if lengths else past + keys, HEAD)) for n in "kv"] if past else []
  )
  return one(net, "MultiHeadAttention", inputs, (batch, queries, wide), MS, more, num_heads=HEADS)


def standard(new=1, batch=1, *, scatter=True, mask="", opset=24, **more):
  """Attention of ONNX beside a cache that TensorScatter writes."""
  net = Net(opset=opset)
  q, caches = net.input(batch, HEADS, new, HEAD), [net.input(batch, OWN, ROOM, HEAD) for _ in range(2)]
  ends = net.input(batch, dtype=np.int64)
  if scatter:
    first = net.input(batch, dtype=np.int64)
    caches = [net.TensorScatter(c, net.input(batch, OWN, new, HEAD), first) for c in caches]
  added = net.input(batch, 1, new, ROOM) if mask else ""
  y = net.Attention(q, *caches, added, "", "", ends, **more)
  outputs = [(c, (batch, OWN, ROOM, HEAD)) for c in caches] if scatter else []
  return model_of(net, (y, (batch, HEADS, new, HEAD)), *outputs)


def turned(domain, batch=1, length=1):
  net = Net(opset=23)
  x, at = net.input(batch, length, HEADS * HEAD), net.input(batch, length, dtype=np.int64)
  angles = np.arange(ROOM)[:, None] * 0.01 ** (np.arange(HEAD // 2) / (HEAD // 2))
  tables = [net.constant(f(angles)) for f in (np.cos, np.sin)]
  order = [x, at, *tables] if domain else [x, *tables, at]
  y = net.RotaryEmbedding(*order, domain=domain, num_heads=HEADS)
  return model_of(net, (net.Mul(y, 0.125), (batch, length, HEADS * HEAD)))


def masked_decoder():
  net, wide = Net(), HEADS * HEAD
  inputs = [*(net.input(1, 1, wide) for _ in range(3)), "", ""]
  inputs += [*(net.input(1, HEADS, ROOM, HEAD) for _ in range(2)), net.input(1, dtype=np.int32)]
  more = [(f"present_{n}", (1, HEADS, ROOM, HEAD)) for n in "kv"]
  how = {"num_heads": HEADS, "past_present_share_buffer": 1}
  return one(net, "DecoderMaskedMultiHeadAttention", inputs, (1, 1, wide), MS, more, **how)


def cases():
  for kind in ("i8", "u8", "i4", "u4"):
    for axis, block in ((None, 0), (1, 0), (0, 32), (0, 128), (0, SIZE)):
      for zero in ("", "own")[: 1 + (axis is not None)]:
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
          for form in ("kn", "gemm"):
            how = {"axis": axis, "block": block, "zero": zero, "kind": kind, "form": form, "dtype": dtype}
            name = (
              f"DequantizeLinear {kind} axis {axis} block {block} zero {zero or '-'} {np.dtype(dtype)} {form}"
            )
            yield name, lambda how=how: dequantized(1, SIZE, SIZE, **how)
  for kind in FP8:
    for axis in (None, 1):
      yield f"DequantizeLinear {kind} axis {axis}", lambda kind=kind, axis=axis: fp8(kind, axis)
  for kind in (np.int8, np.uint8):
    for axis in (None, 1):
      for dtype in (np.float16, np.float32):
        how = {"kind": kind, "axis": axis, "dtype": dtype}
        name = f"DequantizeLinear of activations {np.dtype(kind)} axis {axis} {np.dtype(dtype)}"
        yield name, lambda how=how: between(1, SIZE, SIZE, **how)
  for dtype in (np.float16, np.float32):
    for bias in (False, True):
      name = f"QDQ int8 {np.dtype(dtype)}{' Gemm with a bias' if bias else ''}"
      yield name, lambda dtype=dtype, bias=bias: around(np.int8, dtype, bias)
  for bits in (2, 4, 8):
    for block in (16, 32, 64, 128, 256):
      for zero in (False, True):
        how = {"bits": bits, "block": block, "zero": zero, "bias": zero}
        yield f"MatMulNBits {how}", lambda how=how: packed(**how)
        yield f"MatMulNBits float32 {how}", lambda how=how: packed(np.float32, **how)
  for dtype in (np.float16, ml_dtypes.bfloat16):
    for how in ({}, {"block": 128}, {"bias": True}, {"rows": 8}):
      name = f"MatMulBlockQuantizedFp8Weight {np.dtype(dtype)} {how}"
      yield name, lambda dtype=dtype, how=how: float8(**{"k": SIZE, "n": SIZE, "dtype": dtype, **how})
  for point in ("float", "order"):
    yield f"MatMulNBits {point}", lambda point=point: packed(block=32, point=point)
  yield "MatMulNBits float32", lambda: packed(np.float32, block=32)
  yield "GatherBlockQuantized", rows_of_table
  for how in (
    {}, {"beside": True}, {"norms": True}, {"local_window_size": 256}, {"softcap": 30.0}, {"sink": True},
    {"smooth_softmax": 1}, {"rotary_interleaved": 1}, {"batch": 8}, {"new": 4}, {"bias": True},
    {"k_quant_type": "PER_TENSOR"}, {"sliding_window_cache": 1}, {"rotary": False},
    {"new": 4, "rotary": False}, {"new": 4, "local_window_size": 256},
  ):  # fmt: skip
    yield f"GroupQueryAttention {how}", lambda how=how: grouped(**how)
  for how in ({}, {"beside": True}, {"local_window_size": 256}, {"batch": 8}, {"new": 4, "rotary": False}):
    yield f"GroupQueryAttention float32 {how}", lambda how=how: grouped(dtype=np.float32, **how)
  for how in ({}, {"kind": "all"}, {"kind": "pairs", "keys": 77}, {"bias": True}, {"mask": "keys"},
              {"mask": "rows"}, {"mask": "ends"}, {"mask": "whole"}, {"queries": 1, "keys": 1, "past": 255},
              {"queries": 1, "keys": 1, "past": 256, "lengths": True}):  # fmt: skip
    yield f"MultiHeadAttention {how}", lambda how=how: heads(**how)
  for how in (
    {},
    {"mask": "keys"},
    {"mask": "ends"},
    {"mask": "both"},
    {"added": True},
    {"unidirectional": 1},
  ):
    yield f"com.microsoft Attention {how}", lambda how=how: projecting(512, 8, dtype=np.float16, **how)
  for how in ({}, {"is_causal": 1}, {"new": 4, "is_causal": 1}, {"new": 8, "is_causal": 1, "scatter": False},
              {"new": 4, "mask": "added"}, {"batch": 4}, {"softcap": 30.0}):  # fmt: skip
    yield f"Attention-24 {how}", lambda how=how: standard(**how)
  for domain in ("", MS):
    for how in ({}, {"batch": 4}, {"length": 16}):
      yield f"RotaryEmbedding {domain} {how}", lambda domain=domain, how=how: turned(domain, **how)
  yield "DecoderMaskedMultiHeadAttention", masked_decoder


def found_in(region, target, seconds):
  """How many programs of a region are proved, up to the first or more; without any, what refused them."""
  prove, proved = prover(region), []

  def asked(*of):
    verdict = prove(*of)
    proved.extend([verdict] * (not isinstance(verdict, Rejection)))
    return verdict

  hooks = Hooks(stop=lambda: Stop.INTERRUPTED if proved else None)
  r = search(region, target, asked, space=space_of(region), budget_s=seconds, hooks=hooks)
  if r.candidates:
    return len(r.candidates), set()
  late = {f"no proof in {seconds:.0f} s"} if r.report.stop is Stop.BUDGET else set()
  return 0, {str(w) for w in r.report.refused[:2]} | late


def row_of(name, model, target, seconds):
  began = time.monotonic()
  program = import_model(load_model(model))
  of = (
    name.split()[-1 if name.startswith("com.") else 0].split("-")[0]
    if name[:3] != "QDQ"
    else "DequantizeLinear"
  )
  of = "Attention" if "Attention {" in name and name.startswith("com.") else of
  kinds = {"Attention": ("Attention", "MultiHeadAttention", "TensorScatter")}.get(of, (of,))
  nodes = [n for n in program.nodes if n.op_type in kinds]
  assert nodes, (name, [n.op_type for n in program.nodes])
  row = {"form": name, "barrier": sorted({f"{n.op_type}: {n.barrier}" for n in nodes if n.barrier})}
  found = find_candidates(program, replace(STEPS, reductions=True))
  row["programs"], why = {}, set()
  for n in nodes:
    own = [c for c in found.candidates if n.name in c.nodes] if n.barrier is None else []
    if not own:
      why |= {f"{r.code}: {r.reason}" for r in found.rejections if n.name in r.nodes} - {str(n.barrier)}
      continue
    region = min(own, key=lambda c: len(c.nodes)).region
    row["programs"][n.name], reasons = found_in(region, target, seconds)
    why |= reasons
  row["why"] = sorted(why)
  row["seconds"] = round(time.monotonic() - began, 1)
  return row


def summary(rows):
  """How many forms have proved programs for all of their nodes, for some, or none; a reason says why."""
  states = ("proved", "in part", "left with a reason")
  count = Counter()
  for r in rows:
    found = any(r["programs"].values())
    count[states[0 if found and not r["why"] else 1 if found else 2]] += 1
  return {"forms": count.total(), **{s: count[s] for s in states}}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", type=Path, default=ROOT / "bench/results/deployed_forms.json")
  parser.add_argument("--only", default="")
  parser.add_argument("--seconds", type=float, default=240.0)
  args = parser.parse_args()
  rows = {r["form"]: r for r in json.loads(args.out.read_text())["rows"]} if args.out.exists() else {}
  target = get_target("h100")
  for name, make in cases():
    if name in rows or args.only not in name:
      continue
    rows[name] = row_of(name, make(), target, args.seconds)
    print(json.dumps(rows[name]), flush=True)
    facts = {"command": "python bench/deployed_forms.py", "target": "h100", "summary": summary(rows.values())}
    facts["rows"] = [*rows.values()]
    write_text(args.out, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
  main()
