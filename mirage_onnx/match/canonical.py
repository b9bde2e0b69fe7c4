"""Canonical regions: equal programs get equal text, whatever their tensors are called.

Inputs and axes are coloured by how they are used (``colours.py``), commutative arguments are visited
in the order of colours, and names are given in the order of the first visit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer.split_caches import CACHED
from mirage_onnx.ir import Constant, Node, Program, Region, RegionTensor
from mirage_onnx.ir import term as t
from mirage_onnx.ir.band import Band
from mirage_onnx.ir.factors import groups
from mirage_onnx.ir.term import COMMUTATIVE, INPUT, Term, substitute, walk
from mirage_onnx.match.axes import NamedSteps, name_axes
from mirage_onnx.match.colours import bound, colours, digest
from mirage_onnx.match.guards import without_guards
from mirage_onnx.match.joined_axes import join_axes, places_in_memory
from mirage_onnx.match.runtime_axes import with_runtime_axes
from mirage_onnx.match.sinking import viewed
from mirage_onnx.match.views import Viewed


def make_region(
  program: Program,
  nodes: tuple[str, ...],
  inputs: tuple[str, ...],
  outputs: tuple[str, ...],
  sizes: Mapping[str, int] | None = None,
  named_nodes: Mapping[str, Node] | None = None,
) -> Region:
  """The canonical region of ``nodes`` (in order) that reads ``inputs`` and yields ``outputs``.

  ``sizes``: what it assumes of names of dimensions. ``named_nodes``: all of the program's, where somebody
  has them already.

  Raises:
      RejectionError: AXES_CONFLICT, OP_FORM, DTYPE or DYNAMIC_DIM.
  """
  live = tuple(i for i in inputs if i not in program.constants)
  by_name = named_nodes or {n.name: n for n in program.nodes}
  steps = tuple(s for n in nodes for s in by_name[n].steps)
  packed = {i for s in steps if s.op == "stored" for i in s.inputs}
  for name in (*live, *outputs):
    x = program.tensors[name]
    # No kernel writes booleans.
    allowed = x.dtype is not None and (
      x.dtype.is_computed or x.dtype.is_byte if name in live else x.dtype.is_float
    )
    allowed = allowed or name in packed
    if not allowed:
      raise RejectionError("DTYPE", f"{name} is {x.dtype}, not a float", (name,))
    if program.shape(x) is None:
      raise RejectionError("DYNAMIC_DIM", f"{name} has a dynamic shape", (name,))
  found = viewed(program, list(steps), live, outputs)
  steps, live, outputs = tuple(found.steps), tuple(found.inputs), tuple(found.outputs)
  read = {i for s in steps for i in s.inputs if isinstance(i, str)}
  constants = {k: v for k, v in program.constants.items() if k in read}
  shapes = {i: program.shape(x) or () for i, x in found.inputs.items()}
  shapes |= {i: program.numbers(i) or () for i in constants}
  # A step writes its rows of both caches together.
  alike = outputs if all(by_name[n].op_type == CACHED for n in nodes) else ()
  named = name_axes(steps, shapes, constants, alike)
  dims = None if alike else named.axes
  roots = {o: named.terms[o] for o in outputs}
  finite = {i for i, x in found.inputs.items() if x.dtype is not None and not x.dtype.is_float}
  named = replace(
    named, terms={**named.terms, **dict(zip(roots, without_guards(roots.values(), finite), strict=True))}
  )
  if any(s.op == "expand" for s in steps):
    _check_repeated(program, named, live, outputs)
  parts = {(found.source(o).name, named.terms[o]): o for o in outputs}
  if more := set(outputs) - {*parts.values()}:
    reason = "parts of an output are equal, and no kernel writes elements twice"
    raise RejectionError("OP_FORM", reason, tuple(sorted(more)))
  runtime = {a for a, n in named.extents.items() if program.is_symbolic(n)}
  places = {x: places_in_memory(x, found) for x in (*live, *outputs)}
  named = join_axes(named, places, runtime)
  region = _rename(program, nodes, found, constants, named)
  return with_runtime_axes(region, program, sizes or {}, dims)


def _check_repeated(
  program: Program, named: NamedSteps, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
  """Refuse what an ``expand`` repeats unless another tensor varies over it: no kernel copies.

  Raises:
      RejectionError: OP_FORM.
  """
  for o in outputs:
    if more := set(named.memory(o)) - set(named.terms[o].axes):
      count = prod(named.extents[a] for a in more)
      often = "in a run" if program.is_symbolic(count) else f"{count} times"
      raise RejectionError("OP_FORM", f"{o} repeats its elements {often}", (o,))
  seen = {a for x in (*inputs, *outputs) for a in named.memory(x)}
  if hidden := set(named.extents) - seen:
    sizes = sorted(named.extents[a] for a in hidden)
    often = "in a run" if any(map(program.is_symbolic, sizes)) else f"{sizes} times"
    reason = f"elements are repeated {often} inside, where no input or output varies"
    raise RejectionError("OP_FORM", reason, outputs)


def _band(program: Program, name: str, dims: Sequence[tuple[str, ...]]) -> Band | None:
  """Outside of which a weight hides everything, over the axes of its dimensions: one each."""
  band = program.bands.get(name)
  if band is None:
    return None
  own = {x: dims[int(x)] for x in (band.rows, band.columns)}
  axes = {x: a[0] for x, a in own.items() if len(a) == 1 and [a] == [d for d in dims if a[0] in d]}
  return band.renamed(axes) if len({*axes.values()}) == 2 else None


def _seen(name: str, found: Viewed, memory: Mapping[str, tuple[str, ...]]) -> tuple[object, ...]:
  """What an input is like: its axes, and of views their place among those of one source."""
  view = found.views.get(name)
  if view is None:
    return (len(memory[name]),)
  same = {v.starts for v in found.views.values() if v.source == view.source}
  place = len(memory[name]), places_in_memory(name, found), sorted(same).index(view.starts)
  return (*place, "rows") if view.picks else place


def _by_places(
  roots: tuple[Term, ...], inputs: tuple[str, ...], memory: Mapping[str, tuple[str, ...]]
) -> Mapping[Term, Term]:
  """Each term with the places of its inputs as their names: an order of what is used alike.

  A copy (``repeated.py``) has the order of the first of its form, so no name may decide it.
  """
  terms = walk(roots)
  placed = {x: t.input_(f"{k:04d}", memory[x]) for k, x in enumerate(inputs)}
  return dict(zip(terms, substitute(terms, placed), strict=True))


def _rename(
  program: Program,
  nodes: tuple[str, ...],
  found: Viewed,
  constants: Mapping[str, Constant],
  named: NamedSteps,
) -> Region:
  inputs, outputs = tuple(found.inputs), tuple(found.outputs)
  tensors = {**found.inputs, **found.outputs}
  # Rows that a run picks change with the run.
  weights = {
    i for i in inputs
    if found.source(i).name in program.weights and not (i in found.views and found.views[i].picks)
  }  # fmt: skip
  memory = {x: named.memory(x) for x in (*inputs, *outputs)}
  roots = tuple(named.terms[o] for o in outputs)
  runtime = {a for a, n in named.extents.items() if program.is_symbolic(n)}
  start = {i: digest(tensors[i].dtype, i in weights, *_seen(i, found, memory)) for i in inputs}
  colour, axis_colour = colours(roots, start, memory, runtime)
  placed: Mapping[Term, Term] = {}
  if len({*colour.values()}) < len(colour) or len({*axis_colour.values()}) < len(axis_colour):
    # What is used alike may have other extents. Colours that see them break the tie, and only that: a
    # region's names do not depend on its sizes otherwise.
    sizes = {a: 0 if a in runtime else n for a, n in named.extents.items()}
    sized = {i: digest(c, *(sizes[a] for a in memory[i])) for i, c in start.items()}
    finer, finer_axis = colours(roots, sized, memory, runtime)
    colour = {u: c + finer[u] for u, c in colour.items()}
    axis_colour = {a: f"{c}{finer_axis[a]}{sizes[a]}" for a, c in axis_colour.items()}
    placed = _by_places(roots, inputs, memory)
  ranked = sorted(range(len(outputs)), key=lambda i: (colour[roots[i]], str(tensors[outputs[i]].dtype), i))
  input_order: dict[str, None] = {}
  axis_order: dict[str, None] = {}
  visited: set[Term] = set()

  def visit(u: Term) -> None:
    if u in visited:
      return
    visited.add(u)
    args = u.args
    if u.op in COMMUTATIVE:
      args = tuple(sorted(args, key=lambda a: (colour[a], placed.get(a, a))))
    for a in args:
      visit(a)
    if u.op == INPUT:
      input_order.setdefault(str(u.attr))
      for x in memory[str(u.attr)]:
        axis_order.setdefault(x)
    for x in sorted(bound(u), key=lambda x: axis_colour[x]):
      axis_order.setdefault(x)

  for i in ranked:
    visit(roots[i])
    for a in memory[outputs[i]]:
      axis_order.setdefault(a)
  # Read by the nodes, but no output depends on them (x - x).
  unread = {x: (start[x], [named.extents[a] for a in memory[x]], x) for x in set(inputs) - set(input_order)}
  for x in sorted(unread, key=unread.__getitem__):
    input_order[x] = None
    for a in memory[x]:
      axis_order.setdefault(a)
  names = {x: f"i{k}" for k, x in enumerate(input_order)}
  order = dict.fromkeys(found.views[x].picks for x in input_order if x in found.views)
  picks = {x: f"r{k}" for k, x in enumerate(x for x in order if x)}
  axes = {a: f"a{k}" for k, a in enumerate(axis_order)}
  fresh = {x: t.input_(names[x], (axes[a] for a in memory[x])) for x in input_order}
  terms = substitute((roots[i] for i in ranked), fresh, axes)
  extents = {axes[a]: named.extents[a] for a in axis_order}

  def tensor(x: str, name: str) -> RegionTensor:
    dtype = tensors[x].dtype
    assert dtype is not None
    dims = tuple(tuple(axes[a] for a in d) for d in named.axes[x])
    view = found.views.get(x)
    made = RegionTensor(
      name, dtype, tuple(axes[a] for a in memory[x]), tensors[x], x in weights, dims, view,
      picks[view.picks] if view and view.picks else "",
      _band(program, x, dims) if x in weights and view is None else None,
    )  # fmt: skip
    held = [a for w in made.windows for a in w.axes]
    if any(w.repeat > 1 and len(w.axes) != 1 for w in made.windows):
      raise RejectionError("AXES_CONFLICT", f"an axis begins inside a block of {made.source.name!r}")
    if len(held) != len(set(held)):
      raise RejectionError("OP_FORM", f"an axis of {x!r} begins inside a dimension of the part that is read")
    return made

  live = tuple(tensor(x, names[x]) for x in input_order)

  def picking(x: str, name: str) -> RegionTensor:
    """Its elements, in order, are the rows of a view: a dimension is some of its axes, or of one a part."""
    tensor = found.picks[x]
    assert tensor.dtype is not None
    rows = next(i.dims[0] for i in live if i.picks == name)
    shape = program.shape(tensor) or ()
    own: list[tuple[str, ...]] = [()] * len(shape)
    for dims, at in groups(shape, [extents[a] for a in rows]):
      if len(dims) > 1 and len(at) > 1:
        raise RejectionError("OP_FORM", f"{x} has other dimensions than the rows that it names", (x,))
      for d in dims:
        own[d] = tuple(rows[k] for k in at)
    return RegionTensor(name, tensor.dtype, rows, tensor, dims=tuple(own))

  return Region(
    nodes=nodes,
    steps=tuple(found.steps),
    constants=constants,
    inputs=live,
    outputs=tuple(tensor(outputs[i], f"o{k}") for k, i in enumerate(ranked)),
    terms=terms,
    extents=extents,
    picks=tuple(picking(x, name) for x, name in picks.items()),
  )
