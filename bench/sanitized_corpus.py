"""The kernels that ``bench/sanitize.py`` runs: some of every kind, as entries of the kernel replay have them.

Of the replay's groups a part (goldens, programs of the search at full size, random ones, rows of the speed
table, kernels of models, sizes that a run gives, contractions with masks and caches); products and attention
by wgmma; products whose copies a warp of its own makes, blocks having several tiles; packed weights by
streaming, mma and wgmma; a row that is written in place; several products in one launch; steps of decoders
with a cache in one buffer, of a number of rows and of any: what writes it, in place and beside it, and what
attends to it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

import warpgroup_products
from few_queries import BY_RANKS
from replay_record import read_record
from warpgroup_attention import CASES, SMALL

from mirage_onnx.ir import KernelParams, UGraph, parse_ugraph
from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.fed_numbers import fed_points
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.target import H100

#: Of a group of the replay: every so manieth entry, and how many.
PARTS = {
  "goldens": (1, 21), "programs": (4, 40), "graphs": (2, 19), "random": (6, 60), "speed": (4, 18),
  "models": (2, 32), "runtime": (8, 20), "hopper": (5, 40),
}  # fmt: skip
#: Bytes of memory that a program may want: what sanitizers watch is slow, and size shows nothing new.
MOST_BYTES = 400e6
#: Cases of ``warpgroup_attention`` at full size, and sets of numbers of each.
LARGE, POINTS = ("8x12x512x64 add", "16x12x197x64", "1x12x1500x64"), 4
#: Rows, depth, columns, what follows: no multiples of tiles or steps, two tiles and more of a block of 132.
FED_CASES = (
  (1900, 328, 2504, "gelu", "f16"), (1900, 456, 2504, "residual", "bf16"), (2500, 136, 2600, "", "f16"),
  (397, 1000, 712, "gelu", "bf16"), (197, 768, 328, "residual", "f16"), (4096, 768, 3072, "gelu", "f16"),
)  # fmt: skip
#: Of the numbers of each every so manieth; blocks that share an operand.
APART, SHARED = 5, (1, 2)
#: Steps with a cache: (batch, heads of keys, heads of queries for each, size, room), the rest. Of each region
#: so many programs.
STEP_CASES = {
  "turned": ((2, 2, 4, 64, 256), {}),
  "apart, window": ((3, 1, 2, 32, 40), {"apart": True, "rotary": False, "local_window_size": 5}),
  "normed": ((1, 2, 4, 64, 256), {"norms": (np.ones(64, np.float16),) * 2}),
  "three tokens": ((1, 1, 2, 32, 40), {"new": 3}),
  "three tokens, window": ((1, 1, 2, 32, 40), {"new": 3, "rotary": False, "local_window_size": 4}),
  "any room": ((2, 2, 4, 64, 2048), {"named": "room"}),
  "fp32": ((1, 1, 2, 32, 24), {"dtype": np.float32, "softcap": 3.0}),
}
KINDS = 4


@dataclass(frozen=True)
class Subject:
  """A program with numbers. ``shared``: outputs in the memory of inputs, by name."""

  name: str
  graph: UGraph
  params: tuple[KernelParams, ...]
  extents: Mapping[str, int]
  runtime: frozenset[str] = frozenset()
  shared: Mapping[str, str] = field(default_factory=dict)


def _replayed():
  for group, (step, most) in PARTS.items():
    entries = [e for e in read_record(groups=(group,)) if all(":" not in m.split(" ")[0] for m in e.made)]
    for e in entries[::step][:most]:
      params = tuple(KernelParams.from_text(p) for p in e.params)
      yield Subject(e.name, parse_ugraph(e.graph), params, e.extents, frozenset(e.runtime))


def _by_wgmma():
  from tests.codegen.tiled.test_ring_feed_text import CASES as FED
  from tests.codegen.tiled.test_turns_text import CASES as BANDED
  from tests.codegen.tiled.test_warpgroup import COMPILED, RUN, STANDING

  few = {f"standing {i}": c for i, c in enumerate(STANDING)}
  few |= {f"fed {n}": c for n, c in FED.items()}
  few |= {f"band {n}": c for n, c in BANDED.items() if c.params[0].instruction == "wgmma"}
  for name, c in {**RUN, **few, **{f"compiled {n}": c for n, c in COMPILED.items()}}.items():
    yield Subject(f"wgmma/{name}", c.graph, c.params, c.extents)


def _attention():
  from golden_texts import PROGRAMS

  for name, case in {**SMALL, **{n: CASES[n] for n in LARGE}}.items():
    graph = parse_ugraph(case.text)
    tensors = {t.name: t for t in graph.tensors}
    for i, (_, p) in enumerate(chained_points(graph.kernels[0], tensors, case.extents, H100, POINTS)):
      yield Subject(f"attention/{name}.{i}", graph, (p,), case.extents)
  # Whose keys blocks share: what they have is added up by the next kernel.
  graph = parse_ugraph(PROGRAMS["attention_shared"])
  sizes = {"a0": 2, "a1": 4000, "a2": 64, "a3": 130, "a4": 64}
  tensors = {t.name: t for t in graph.tensors}
  for i, (_, p) in enumerate(chained_points(graph.kernels[0], tensors, sizes, H100, POINTS)):
    yield Subject(f"attention/shared.{i}", graph, (p, KernelParams((1, 64, 1), 1, 0, 2, 1)), sizes)
  # The grid has columns of the values, ranks share the keys.
  graph, sizes = parse_ugraph(BY_RANKS), {"a0": 2, "a1": 1100, "a2": 128, "a3": 64, "a4": 128}
  tensors = {t.name: t for t in graph.tensors}
  for i, (_, p) in enumerate(chained_points(graph.kernels[0], tensors, sizes, H100, POINTS)):
    yield Subject(f"attention/columns.{i}", graph, (p,), sizes)


def _fed():
  from tests.codegen.tiled.test_feed_text import FED
  from tests.gpu.test_warpgroups import CASES

  late = {n: c for n, c in CASES.items() if "stored late" in n or "batched" in n}
  for name, c in {**FED, **late}.items():
    yield Subject(f"fed/{name}", c.graph, c.params, c.extents)
  for n, (rows, depth, columns, kind, dtype) in enumerate(FED_CASES):
    graph, sizes = (
      parse_ugraph(warpgroup_products.text(kind, dtype)),
      {"a0": rows, "a1": depth, "a2": columns},
    )
    tensors = {t.name: t for t in graph.tensors}
    every = fed_points(graph.kernels[0], tensors, sizes, H100, 99, SHARED)
    for _, p in every[n % APART :: APART]:
      yield Subject(f"fed/{rows}x{depth}x{columns} {kind} {dtype}, {p.to_text()}", graph, (p,), sizes)


def _searched(name, region: Region):
  from small_models import search_region

  found = search_region(region).candidates
  families = {c.candidate.params[0].instruction: c.candidate for c in reversed(found)}
  for kind, c in families.items():
    yield Subject(f"packed/{name}.{kind or 'first'}", c.ugraph, c.params, region.extents)


def _packed():
  from float_products import float8
  from packed_models import product, residual
  from small_models import region_of

  from tests.codegen.tiled.test_widened import MODELS, POINTS, graph_of, numbers

  for name, (made, how) in MODELS.items():
    region = region_of(made(**how))
    graph = graph_of(region)
    point = next(p for p in POINTS if p[0] <= how["n"] and p[1] <= how["rows"] and not how["k"] % p[2])
    yield Subject(f"packed/{name}", graph, (numbers(graph, region, *point),), region.extents)
  for rows in (1, 8):
    yield from _searched(f"{rows} rows", region_of(product(rows=rows, k=512, n=256, zero=True)))
  for name, how in {"row scales": {}, "blocks, bias": {"rows": 8, "block": 128, "bias": True}}.items():
    yield from _searched(f"fp8 {name}", region_of(float8(k=512, n=264, **how)))
  yield from _searched("residual", region_of(residual(rows=4, k=256, n=192)))


def _in_place():
  from tests.codegen.test_in_place import ROWS, TEXT, WIDTH

  graph, params = parse_ugraph(TEXT), (KernelParams((8,), warps=2),)
  for shared in ({"o0": "i3"}, {}):
    yield Subject(f"in place/{len(shared)}", graph, params, {"a0": ROWS, "a1": WIDTH}, shared=shared)


def decoders(names=tuple(STEP_CASES)):
  """Of the regions of a step programs of each structure: kernels, their grids and loops, clusters or none."""
  from cached_steps import cached_step
  from small_models import search_region

  from mirage_onnx.importer import import_model, load_model
  from mirage_onnx.lower.in_place import update_of
  from mirage_onnx.match.candidates import find_candidates
  from mirage_onnx.match.cuts import STEPS
  from mirage_onnx.superopt.space import space_of

  for name in names:
    shape, how = STEP_CASES[name]
    program = import_model(load_model(cached_step(*shape, **how)))
    found = find_candidates(program, replace(STEPS, reductions=True)).candidates
    for c in (c for c in found if len(c.nodes) == 1 and (list(c.outputs) == ["y"] or len(c.outputs) == 2)):
      space, kinds = space_of(c.region), {}
      for made in search_region(c.region, space=space).candidates:
        own = made.candidate
        structure = [
          (k.grid, k.loop, p.cluster > 1) for k, p in zip(own.ugraph.kernels, own.params, strict=True)
        ]
        kinds.setdefault(str(structure), own)
      for n, own in enumerate([*kinds.values()][:KINDS]):
        updates = [u for k in own.ugraph.kernels if (u := update_of(own.ugraph, k))]
        given = frozenset(c.region.runtime)
        for shared in [{}, *([dict(p for u in updates for p in u.pairs)] if updates else [])]:
          of = "written" if len(c.outputs) == 2 else "attended"
          subject = f"decoders/{name}, {of}{' in place' if shared else ''}.{n}"
          yield Subject(subject, own.ugraph, own.params, c.region.extents, given, shared)


def _alike():
  from tests.codegen.tiled.test_alike import BY_WGMMA, GRAPH, SIZES

  large = {**SIZES, "a0": 1600, **dict.fromkeys(("a2", "a3", "a4"), 456)}
  params = (BY_WGMMA, *(replace(BY_WGMMA, beside=True) for _ in GRAPH.kernels[1:]))
  fed = tuple(replace(p, teams=2) for p in params)
  for name, sizes in (("tiles", SIZES), ("standing", large)):
    yield Subject(f"one launch/{name}", GRAPH, params, sizes)
    yield Subject(f"one launch/fed {name}", GRAPH, fed, sizes)


def subjects():
  """All, in an order that does not change."""
  for part in (_by_wgmma, _attention, _fed, _in_place, _packed, _replayed, _alike, decoders):
    yield from part()
