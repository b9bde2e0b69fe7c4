"""A small model with three regions, rewritten; and ways to tamper with what the rewriter wrote."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from small_models import Net, matches

from mirage_onnx.codegen.candidates import Compiled, compile_candidates
from mirage_onnx.custom_op.bundle import Bundle, read_bundle, write_bundle
from mirage_onnx.importer import load_model
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.ir.ugraph import Candidate, KernelParams
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.target import H200

#: What the search finds for the three regions; written down, so that tests need not search.
UGRAPHS = (
    """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=-
  %0 = const[0] : f32[] post uniform
  %1 = const[1049/1048576] : f32[] post uniform
  %2 = extent[a1] : f32[] post uniform
  %3 = recip %2 : f32[] post uniform
  %4 = load i0 imap=-,a0 cmap=- fmap=- : f16[a0,a1] post vector
  %5 = cast %4 : f32[a0,a1] post vector
  %6 = square %5 : f32[a0,a1] post vector
  %7 = sum[a1] %6 : f32[a0] post uniform
  %8 = mul %3 %7 : f32[a0] post uniform
  %9 = add %1 %8 : f32[a0] post uniform
  %10 = rsqrt %9 : f32[a0] post uniform
  %11 = load i1 imap=a2,- cmap=- fmap=- : f16[a2,a1] post vector
  %12 = cast %11 : f32[a1,a2] post vector
  %13 = mul %5 %12 : f32[a0,a1,a2] post vector
  %14 = sum[a1] %13 : f32[a0,a2] post uniform
  %15 = mul %10 %14 : f32[a0,a2] post uniform
  %16 = max %0 %15 : f32[a0,a2] post uniform
  %17 = cast %16 : f16[a0,a2] post uniform
  save o0 = %17 omap=a2,a0
""",
    """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=-
  %0 = const[1] : f32[] post uniform
  %1 = const[-1/2] : f32[] post uniform
  %2 = load i0 imap=-,a0 cmap=- fmap=- : f16[a0,a1] post vector
  %3 = load i1 imap=a2,- cmap=- fmap=- : f16[a2,a1] post vector
  %4 = cast %2 : f32[a0,a1] post vector
  %5 = cast %3 : f32[a1,a2] post vector
  %6 = mul %4 %5 : f32[a0,a1,a2] post vector
  %7 = sum[a1] %6 : f32[a0,a2] post uniform
  %8 = mul %1 %7 : f32[a0,a2] post uniform
  %9 = exp %8 : f32[a0,a2] post uniform
  %10 = add %0 %9 : f32[a0,a2] post uniform
  %11 = recip %10 : f32[a0,a2] post uniform
  %12 = cast %11 : f16[a0,a2] post uniform
  save o0 = %12 omap=a2,a0
""",
    """\
ugraph 1
tensor i1 f16[a2,a0] input
tensor i2 f16[a2,a1] input
tensor i0 f16[a1,a0] weight
tensor o0 f16[a2,a1] output
kernel k0 grid=a1,a2 cluster=- loop=-
  %0 = load i2 imap=a1,a2 cmap=- fmap=- : f16[a2,a1] post uniform
  %1 = load i0 imap=a1,- cmap=- fmap=- : f16[a1,a0] post vector
  %2 = load i1 imap=-,a2 cmap=- fmap=- : f16[a2,a0] post vector
  %3 = cast %1 : f32[a0,a1] post vector
  %4 = cast %2 : f32[a0,a2] post vector
  %5 = mul %3 %4 : f32[a0,a1,a2] post vector
  %6 = sum[a0] %5 : f32[a1,a2] post uniform
  %7 = cast %0 : f32[a1,a2] post uniform
  %8 = add %6 %7 : f32[a1,a2] post uniform
  %9 = cast %8 : f16[a1,a2] post uniform
  save o0 = %9 omap=a1,a2
""",
)
PARAMS = KernelParams(tile=(1, 1), warps=1)


@dataclass(frozen=True)
class Rewritten:
    """The original, what its regions were replaced by, and the result."""

    original: onnx.ModelProto
    regions: tuple[Region, ...]
    compiled: tuple[Compiled, ...]

    @property
    def model(self) -> onnx.ModelProto:
        return self.using({})

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the custom nodes, in order; node k runs plan k."""
        return tuple(n.name for n in self.model.graph.node if n.op_type.startswith("MuGraph_"))

    def using(self, changes: Mapping[int, Compiled]) -> onnx.ModelProto:
        """The rewritten model with other kernels for some regions, consistent in every record."""
        kernels = [changes.get(k, c) for k, c in enumerate(self.compiled)]
        pairs = list(zip(self.regions, kernels, strict=True))
        return apply(load_model(self.original), pairs, H200)[0]

    def recompiled(self, k: int, old: str, new: str) -> Compiled:
        """Region k's kernels of a µGraph in which the text ``old`` is ``new``: a wrong search."""
        candidate = self.compiled[k].candidate
        text = print_ugraph(candidate.ugraph)
        assert old in text
        wrong = replace(candidate, ugraph=parse_ugraph(text.replace(old, new, 1)))
        done, refused = compile_candidates(self.regions[k], [wrong], H200, keep=1)
        assert not refused
        return done[0]


def chain() -> Rewritten:
    """h = relu(rms(x) W1), g = sigmoid(h W2 / 2), y = g W3 + h, as three regions."""
    net = Net()
    x = net.input(8, 64)
    h = net.Relu(net.MatMul(net.rms(x), net.weight(64, 64)))
    g = net.Sigmoid(net.Mul(net.MatMul(h, net.weight(64, 64)), 0.5))
    y = net.Add(net.MatMul(g, net.weight(64, 64)), h)
    model = net.model(y)
    found = matches(model).candidates
    regions: list[Region] = []
    taken: set[str] = set()
    for name in (h, g, y):
        mine = [
            c for c in found
            if [o.tensor.name for o in c.region.outputs] == [name] and not taken & set(c.nodes)
        ]  # fmt: skip
        best = max(mine, key=lambda c: len(c.nodes))
        regions.append(best.region)
        taken |= set(best.nodes)
    assert taken == {n.name for n in model.graph.node}
    compiled = []
    for region, text in zip(regions, UGRAPHS, strict=True):
        candidate = Candidate(parse_ugraph(text), (PARAMS,))
        done, refused = compile_candidates(region, [candidate], H200, keep=1)
        assert not refused
        compiled.append(done[0])
    return Rewritten(model, tuple(regions), tuple(compiled))


def tampered(model: onnx.ModelProto, change: Callable[[Bundle], Bundle]) -> onnx.ModelProto:
    """The model with another bundle, whose own hashes are right again."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    (tensor,) = (t for t in result.graph.initializer if t.name == BUNDLE_NAME)
    data = write_bundle(change(read_bundle(numpy_helper.to_array(tensor).tobytes())))
    tensor.CopyFrom(numpy_helper.from_array(np.frombuffer(data, np.uint8), BUNDLE_NAME))
    return result


def with_record(k: int, change: Callable[[dict[str, Any]], None]) -> Callable[[Bundle], Bundle]:
    """Tamper with the provenance of plan k, in place."""

    def go(bundle: Bundle) -> Bundle:
        records = copy.deepcopy(bundle.provenance)
        change(records[k])
        return replace(bundle, provenance=records)

    return go


def with_plan(k: int, old: str, new: str) -> Callable[[Bundle], Bundle]:
    """Tamper with the text of plan k."""

    def go(bundle: Bundle) -> Bundle:
        assert old in bundle.plans[k]
        plans = list(bundle.plans)
        plans[k] = plans[k].replace(old, new, 1)
        return replace(bundle, plans=tuple(plans))

    return go


def permuted(order: Sequence[int]) -> Callable[[Bundle], Bundle]:
    """Plan k becomes what plan ``order[k]`` was, its provenance with it."""

    def go(bundle: Bundle) -> Bundle:
        return replace(
            bundle,
            plans=tuple(bundle.plans[k] for k in order),
            provenance=tuple(bundle.provenance[k] for k in order),
        )

    return go
