"""What ties a custom node to what it runs: one digest over its plan and the images of the launches.

SHA-256 of the plan's SHA-256 and, launch after launch in the order of the plan, that of the image:
those of the sections, so a reader of the bundle has them. It is the node's attribute ``digest``, in
hexadecimal. A plan, an image or a number that is another than when the model was written is so
refused, unless the node is changed with it.

Rules, in this order, here and in ``cpp/ort_custom_ops/node_digest.cc``: the bundle has the plan;
the plan can be read; the bundle has the image of every launch; the node has the digest of them.
"""

import hashlib

import onnx
from onnx import helper

from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX, OP_PREFIX
from mirage_onnx.errors import MirageError

ATTRIBUTE = "digest"


def node_digest(bundle: Bundle, plan: int) -> str:
  """Of a node that runs plan number ``plan``, as 64 hexadecimal digits.

  Raises:
      MirageError: BUNDLE_INVALID, PLAN_INVALID.
  """
  if plan >= len(bundle.plans):
    raise MirageError("BUNDLE_INVALID", f"it has no plan {plan}")
  text = bundle.plans[plan]
  parsed = parse_plan(text)
  tied = hashlib.sha256(hashlib.sha256(text.encode()).digest())
  images: dict[int, bytes] = {}
  for launch in (launch for variant in parsed.variants for launch in variant.launches):
    if launch.cubin >= len(bundle.cubins):
      raise MirageError("BUNDLE_INVALID", f"it has no cubin {launch.cubin}")
    if launch.cubin not in images:
      images[launch.cubin] = hashlib.sha256(bundle.cubins[launch.cubin]).digest()
    tied.update(images[launch.cubin])
  return tied.hexdigest()


def check_digest(bundle: Bundle, plan: int, stated: str) -> None:
  """Whether a node whose attribute says ``stated`` ("": it has none) runs what it was written for.

  Raises:
      MirageError: as ``node_digest``, and BUNDLE_INVALID.
  """
  found = node_digest(bundle, plan)
  if not stated:
    raise MirageError("BUNDLE_INVALID", "the node has no digest of its plan and images")
  if stated != found:
    raise MirageError("BUNDLE_INVALID", "its plan and images do not have the digest that the node states")


def stated_digest(node: onnx.NodeProto) -> str:
  """What the attribute says, or "" where the node has no such text."""
  found = (a for a in node.attribute if a.name == ATTRIBUTE and a.type == onnx.AttributeProto.STRING)
  return next((a.s.decode("latin-1") for a in found), "")


def tie_nodes(model: onnx.ModelProto, bundle: Bundle) -> None:
  """Gives every custom node of the main graph, and those in bodies, its digest.

  Their functions take it, and do not use it.

  Raises:
      MirageError: as ``node_digest``.
  """
  for node in (*model.graph.node, *(n for f in model.functions for n in f.node)):
    if is_custom(node.domain, node.op_type):
      kept = [a for a in node.attribute if a.name != ATTRIBUTE]
      del node.attribute[:]
      digest = node_digest(bundle, int(node.op_type.removeprefix(OP_PREFIX)))
      node.attribute.extend([*kept, helper.make_attribute(ATTRIBUTE, digest)])
  for function in model.functions:
    if is_custom(function.domain, function.name) and ATTRIBUTE not in function.attribute:
      function.attribute.append(ATTRIBUTE)


def is_custom(domain: str, name: str) -> bool:
  """Whether an operator, or a function, is one of ours."""
  return domain.startswith(DOMAIN_PREFIX) and name.startswith(OP_PREFIX)
