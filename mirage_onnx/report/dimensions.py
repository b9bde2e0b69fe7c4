"""The lines that say at which sizes of dynamic dimensions times are."""

from collections.abc import Iterable, Iterator

from mirage_onnx.ir.size_names import names_in
from mirage_onnx.report.schema import DimensionReport
from mirage_onnx.tune.declared_sizes import DEFAULT

#: Sizes of a dynamic dimension that are shown.
SHOWN_SIZES = 6
#: How a dimension begins whose name is onnx's, for what a graph computes.
_COMPUTED = "unk__"


def dimension_lines(dimensions: Iterable[DimensionReport]) -> Iterator[str]:
  """The sizes that count, and how to say them where nobody did; those that the graph computes in one line."""
  computed = 0
  for d in dimensions:
    if d.name.startswith(_COMPUTED) or ":" in d.name or names_in(d.name):
      computed += 1
      continue
    at = ", ".join(map(str, d.sizes[:SHOWN_SIZES])) + (" ..." if len(d.sizes) > SHOWN_SIZES else "")
    hint = f" (--shapes {d.name}=... says which count)" if tuple(d.sizes) == DEFAULT else ""
    yield f"dynamic: {d.name} at {at}; times are at {d.typical}{hint}"
  if computed:
    many = f"{computed} sizes" if computed > 1 else "one size"
    yield f"dynamic: {many} that the graph computes (--json has them)"
