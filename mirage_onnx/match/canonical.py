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
  region = _Renaming(program, found, named).region(nodes, constants)
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


class _Renaming:
  """Names of a region's inputs, axes and picks, which follow from how they are used alone."""

  def __init__(self, program: Program, found: Viewed, named: NamedSteps) -> None:
    self._program, self._found, self._named = program, found, named
    self._outputs = tuple(found.outputs)
    self._tensors = {**found.inputs, **found.outputs}
    # Rows that a run picks change with the run.
    self._weights = {
      i for i in found.inputs
      if found.source(i).name in program.weights and not (i in found.views and found.views[i].picks)
    }  # fmt: skip
    self._memory = {x: named.memory(x) for x in (*found.inputs, *self._outputs)}
    self._roots = tuple(named.terms[o] for o in self._outputs)
    self._inputs: dict[str, None] = {}
    self._axes: dict[str, None] = {}
    self._order()
    self.names = {x: f"i{k}" for k, x in enumerate(self._inputs)}
    self.axes = {a: f"a{k}" for k, a in enumerate(self._axes)}
    order = dict.fromkeys(found.views[x].picks for x in self._inputs if x in found.views)
    self.picks = {x: f"r{k}" for k, x in enumerate(x for x in order if x)}

  def _colours(
    self, start: Mapping[str, str]
  ) -> tuple[Mapping[Term, str], Mapping[str, str], Mapping[Term, Term]]:
    """Of terms and axes; and terms by their places, where colours leave a tie."""
    extents, memory = self._named.extents, self._memory
    runtime = {a for a, n in extents.items() if self._program.is_symbolic(n)}
    colour, axis_colour = colours(self._roots, start, memory, runtime)
    if len({*colour.values()}) == len(colour) and len({*axis_colour.values()}) == len(axis_colour):
      return colour, axis_colour, {}
    # What is used alike may have other extents. Colours that see them break the tie, and only that: a
    # region's names do not depend on its sizes otherwise.
    sizes = {a: 0 if a in runtime else n for a, n in extents.items()}
    sized = {i: digest(c, *(sizes[a] for a in memory[i])) for i, c in start.items()}
    finer, finer_axis = colours(self._roots, sized, memory, runtime)
    colour = {u: c + finer[u] for u, c in colour.items()}
    axis_colour = {a: f"{c}{finer_axis[a]}{sizes[a]}" for a, c in axis_colour.items()}
    return colour, axis_colour, _by_places(self._roots, tuple(self._found.inputs), memory)

  def _order(self) -> None:
    """Inputs and axes in the order of the first visit."""
    inputs, axes, memory, tensors = self._inputs, self._axes, self._memory, self._tensors
    start = {
      i: digest(tensors[i].dtype, i in self._weights, *_seen(i, self._found, memory))
      for i in self._found.inputs
    }
    colour, axis_colour, placed = self._colours(start)
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
        inputs.setdefault(str(u.attr))
        for x in memory[str(u.attr)]:
          axes.setdefault(x)
      for x in sorted(bound(u), key=lambda x: axis_colour[x]):
        axes.setdefault(x)

    roots, outputs = self._roots, self._outputs
    self._ranked = sorted(
      range(len(outputs)), key=lambda i: (colour[roots[i]], str(tensors[outputs[i]].dtype), i)
    )
    for i in self._ranked:
      visit(roots[i])
      for a in memory[outputs[i]]:
        axes.setdefault(a)
    # Read by the nodes, but no output depends on them (x - x).
    extents = self._named.extents
    unread = {x: (start[x], [extents[a] for a in memory[x]], x) for x in {*self._found.inputs} - {*inputs}}
    for x in sorted(unread, key=unread.__getitem__):
      inputs[x] = None
      for a in memory[x]:
        axes.setdefault(a)

  def region(self, nodes: tuple[str, ...], constants: Mapping[str, Constant]) -> Region:
    """The region of these nodes under the names."""
    axes, memory = self.axes, self._memory
    fresh = {x: t.input_(self.names[x], (axes[a] for a in memory[x])) for x in self._inputs}
    extents = {axes[a]: self._named.extents[a] for a in self._axes}
    live = tuple(self._tensor(x, self.names[x]) for x in self._inputs)
    return Region(
      nodes=nodes,
      steps=tuple(self._found.steps),
      constants=constants,
      inputs=live,
      outputs=tuple(self._tensor(self._outputs[i], f"o{k}") for k, i in enumerate(self._ranked)),
      terms=substitute((self._roots[i] for i in self._ranked), fresh, axes),
      extents=extents,
      picks=tuple(self._picking(x, name, live, extents) for x, name in self.picks.items()),
    )

  def _tensor(self, x: str, name: str) -> RegionTensor:
    tensor, axes, is_weight = self._tensors[x], self.axes, x in self._weights
    assert tensor.dtype is not None
    dims = tuple(tuple(axes[a] for a in d) for d in self._named.axes[x])
    view = self._found.views.get(x)
    made = RegionTensor(
      name, tensor.dtype, tuple(axes[a] for a in self._memory[x]), tensor, is_weight, dims, view,
      self.picks[view.picks] if view and view.picks else "",
      _band(self._program, x, dims) if is_weight and view is None else None,
    )  # fmt: skip
    held = [a for w in made.windows for a in w.axes]
    if any(w.repeat > 1 and len(w.axes) != 1 for w in made.windows):
      raise RejectionError("AXES_CONFLICT", f"an axis begins inside a block of {made.source.name!r}")
    if len(held) != len(set(held)):
      raise RejectionError("OP_FORM", f"an axis of {x!r} begins inside a dimension of the part that is read")
    return made

  def _picking(
    self, x: str, name: str, live: Sequence[RegionTensor], extents: Mapping[str, int]
  ) -> RegionTensor:
    """Its elements, in order, are the rows of a view: a dimension is some of its axes, or of one a part."""
    tensor = self._found.picks[x]
    assert tensor.dtype is not None
    rows = next(i.dims[0] for i in live if i.picks == name)
    shape = self._program.shape(tensor) or ()
    own: list[tuple[str, ...]] = [()] * len(shape)
    for dims, at in groups(shape, [extents[a] for a in rows]):
      if len(dims) > 1 and len(at) > 1:
        raise RejectionError("OP_FORM", f"{x} has other dimensions than the rows that it names", (x,))
      for d in dims:
        own[d] = tuple(rows[k] for k in at)
    return RegionTensor(name, tensor.dtype, rows, tensor, dims=tuple(own))
