"""The ONNX Runtime side: bundles, launch plans, the custom-op library and sessions that use it."""

from mirage_onnx.custom_op.arguments import InputPtr, Int32, Int64, OutputPtr, WorkspacePtr
from mirage_onnx.custom_op.bundle import Bundle, read_bundle, write_bundle
from mirage_onnx.custom_op.expr import Expr, ExprError, const, dim
from mirage_onnx.custom_op.library import get_library_path
from mirage_onnx.custom_op.plan import InputSpec, Launch, OutputSpec, Plan, Variant, parse_plan
from mirage_onnx.custom_op.session import InferenceSession, launches, register

__all__ = [
  "Bundle",
  "Expr",
  "ExprError",
  "InferenceSession",
  "InputPtr",
  "InputSpec",
  "Int32",
  "Int64",
  "Launch",
  "OutputPtr",
  "OutputSpec",
  "Plan",
  "Variant",
  "WorkspacePtr",
  "const",
  "dim",
  "get_library_path",
  "launches",
  "parse_plan",
  "read_bundle",
  "register",
  "write_bundle",
]
