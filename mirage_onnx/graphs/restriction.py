"""What the original's parameters allow a kernel to be: grids, blocks, maps and loops.

The original enumerates these (arXiv 2405.05751, section 4); here they only restrict a search that
chooses by itself. Its numbers are positional: a map of an input is, per grid dimension, the
dimension of the tensor that it splits, or -1 where the tensor is replicated.

    griddims=[(2, 16, 1)]     x makes 2 blocks, y 16
    imaps=[(0, -1, -1)]       x splits dimension 0 of an input, y splits nothing of it

Ours are named axes, so these are compared with what a kernel does, not with how it is written:
grid dimensions have no order of their own (one order must satisfy grid, imaps and omaps at once);
one with a single block splits nothing; the ranks of a cluster are blocks, hence a grid dimension.
Maps are about the inputs and outputs of the graph: workspace between kernels is ours to lay out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from mirage_onnx.errors import MirageError

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Restriction:
  """What every kernel of a program must keep to; None restricts nothing.

  ``griddims``: blocks per grid dimension. ``blockdims``: threads per block. ``imaps``, ``omaps``:
  maps of grid dimensions to dimensions of an input, of an output. ``fmaps``: the dimension of an
  input that the for-loop walks, or -1. ``franges``: iterations of the for-loop.
  """

  griddims: tuple[Triple, ...] | None = None
  blockdims: tuple[Triple, ...] | None = None
  imaps: tuple[Triple, ...] | None = None
  omaps: tuple[Triple, ...] | None = None
  fmaps: tuple[int, ...] | None = None
  franges: tuple[int, ...] | None = None

  def __bool__(self) -> bool:
    return any(getattr(self, f.name) is not None for f in fields(self))

  def __str__(self) -> str:
    given = ((f.name, getattr(self, f.name)) for f in fields(self))
    return ", ".join(f"{name}={list(values)}" for name, values in given if values is not None)


def read_restriction(
  *,
  griddims: Sequence[Sequence[int]] | None = None,
  blockdims: Sequence[Sequence[int]] | None = None,
  imaps: Sequence[Sequence[int]] | None = None,
  omaps: Sequence[Sequence[int]] | None = None,
  fmaps: Sequence[int] | None = None,
  franges: Sequence[int] | None = None,
) -> Restriction:
  """The restriction that these parameters say; a short grid or block is padded with 1.

  Raises:
      MirageError: OPTION_INVALID, a parameter is no list of what it takes.
  """
  return Restriction(
    griddims=_triples("griddims", griddims, least=1, pad=1),
    blockdims=_triples("blockdims", blockdims, least=1, pad=1),
    imaps=_triples("imaps", imaps, least=-1, pad=-1),
    omaps=_triples("omaps", omaps, least=-1, pad=-1),
    fmaps=_numbers("fmaps", fmaps, least=-1),
    franges=_numbers("franges", franges, least=1),
  )


def _triples(
  name: str, given: Sequence[Sequence[int]] | None, *, least: int, pad: int
) -> tuple[Triple, ...] | None:
  if given is None:
    return None
  if isinstance(given, (str, int)):
    raise MirageError("OPTION_INVALID", f"{name}: {given!r} is no list")
  found: list[Triple] = []
  for entry in given:
    numbers = _numbers(name, entry, least=least) or ()
    if not 1 <= len(numbers) <= 3:
      raise MirageError("OPTION_INVALID", f"{name}: {entry!r} is not 1 to 3 numbers")
    x, y, z = (*numbers, *[pad] * (3 - len(numbers)))
    found.append((x, y, z))
  return tuple(found)


def _numbers(name: str, given: Sequence[int] | None, *, least: int) -> tuple[int, ...] | None:
  if given is None:
    return None
  if isinstance(given, (str, int)) or not all(
    isinstance(n, int) and not isinstance(n, bool) and n >= least for n in given
  ):
    reason = f"{name}: {given!r} is no list of whole numbers >= {least}"
    raise MirageError("OPTION_INVALID", reason)
  return tuple(given)
