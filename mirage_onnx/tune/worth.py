"""What is not worth a search, known before anything is searched."""

from mirage_onnx.errors import Rejection

#: Fastest a replayed kernel can be: used to skip searches that cannot win.
FLOOR_US = 1.0


def refuse_search(
  baseline_us: float, margin: float, nodes: tuple[str, ...], unknown: int = 0
) -> Rejection | None:
  """Why a region is not worth searching: its nodes cost too little for any kernel to win.

  ``unknown``: how many of them have no known time, and are not in ``baseline_us``.
  """
  if baseline_us * (1 - margin) > FLOOR_US:
    return None
  if unknown:
    known = f", the others {baseline_us:.2f} us together" if unknown < len(nodes) else ""
    reason = f"the time of {unknown} of its {len(nodes)} nodes is unknown{known}: no gain can be predicted"
    return Rejection("NOT_PREDICTED", reason, nodes)
  reason = f"its nodes take {baseline_us:.2f} us together, a kernel at least {FLOOR_US:g}"
  if baseline_us == 0:
    reason = "ONNX Runtime computes its nodes in kernels of others, where they take no time of their own"
  return Rejection("NOT_FASTER", reason, nodes)
