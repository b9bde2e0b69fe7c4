"""µGraphs that the original Mirage saved as JSON, judged against a program."""

from mirage_onnx.formats.mirage.check import check_saved
from mirage_onnx.verify.verdict import Verdict

__all__ = ["Verdict", "check_saved"]
