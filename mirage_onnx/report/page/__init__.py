"""The report of an optimized model as one HTML file that needs no network."""

from mirage_onnx.report.page.document import page

__all__ = ["page"]
