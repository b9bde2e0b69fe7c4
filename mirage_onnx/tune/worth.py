"""What is not worth a search, known before anything is searched."""

from mirage_onnx.errors import Rejection

#: Fastest a replayed kernel can be: used to skip searches that cannot win.
FLOOR_US = 1.0


def refuse_search(baseline_us: float, margin: float, nodes: tuple[str, ...]) -> Rejection | None:
  """Why a region is not worth searching: its nodes cost too little for any kernel to win."""
  if baseline_us * (1 - margin) <= FLOOR_US:
    reason = f"its nodes take {baseline_us:.2f} us together, no kernel is that much faster"
    return Rejection("NOT_FASTER", reason, nodes)
  return None
