"""Canonical programs: a block graph modulo what the search treats as one step.

*Heavy* values are those that move or combine elements: loads, contractions, reductions,
accumulators, cluster reductions, running maxima. All that lies between them is elementwise, and of
a maximal elementwise chain only the function counts (``chain_form.py``). So a kernel is a graph of
heavy values whose arguments are terms over other heavy values:

    kernel grid=a0 cluster=- loop=a1
      %0 = load i0 imap=a0 cmap=- fmap=a1 : loop
      %1 = load i1 imap=- cmap=- fmap=a1 : loop
      %2 = matmul[a1] %0, %1 : loop
      %3 = acc_sum %2 : post
      save o0 = mul(1/2, %3) omap=a0

Two kernels have equal texts if and only if they differ in nothing but the spelling of elementwise
chains, the order of operations, repeated or unused values, casts, layouts and the kernel's name.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mirage_onnx.ir import term as t
from mirage_onnx.ir.block_ops import OPERATORS, Kind, of_kinds
from mirage_onnx.ir.functions import to_term
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor
from mirage_onnx.superopt.chain_form import chain_form

HEAVY = frozenset(OPERATORS) - of_kinds(Kind.CONSTANT, Kind.POINTWISE)
_LEAF = re.compile(r"%[0-9a-f]{24}\[[^]]*\]")


@dataclass(frozen=True, slots=True)
class Heavy:
  """A heavy value: ``head`` says what it does with ``args``, terms over other heavy values.

  ``leaf`` stands for it in terms; its name is a digest of the content, of all that is below it.
  """

  head: str
  args: tuple[Term, ...]
  op: BlockOp
  leaf: Term


def heavy(op: BlockOp, args: tuple[Term, ...]) -> Heavy:
  """The heavy value that ``op`` makes of ``args``; only its maps, axes and phase are read."""
  head = op.op
  if op.reduced:
    head += f"[{','.join(sorted(op.reduced))}]"
  if op.op == "load":
    imap = ",".join(a or "-" for a in op.imap)
    head += f" {op.tensor} imap={imap} cmap={op.cmap or '-'} fmap={op.fmap or '-'}"
  if op.op == "matmul":
    args = tuple(sorted(args))
  content = "|".join((head, op.phase, *(a.order[3] for a in args)))
  digest = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
  return Heavy(head, args, op, t.input_(f"%{digest}", op.axes))


def elementwise(op: BlockOp, args: tuple[Term, ...]) -> Term:
  """The normal form of the chain that ends in ``op``, of chains in normal form."""
  match op.op:
    case "cast":
      return args[0]
    case "const":
      assert op.value is not None
      return t.const(op.value)
    case "extent":
      return t.extent(op.reduced)
    case "powr":
      assert isinstance(op.value, Fraction)
      return chain_form(t.power(args[0], op.value))
  return chain_form(to_term(op.op, *args))


def block_terms(kernel: Kernel) -> tuple[tuple[Term, ...], dict[Term, Heavy]]:
  """The term over heavy values of each block value, and the heavy values by their leaves."""
  terms: list[Term] = []
  known: dict[Term, Heavy] = {}
  for op in kernel.ops:
    args = tuple(terms[a] for a in op.args)
    if op.op in HEAVY:
      found = heavy(op, args)
      known[found.leaf] = found
      terms.append(found.leaf)
    else:
      terms.append(elementwise(op, args))
  return tuple(terms), known


def leaves_of(x: Term) -> tuple[Term, ...]:
  """The leaves of the heavy values in a chain, each once."""
  return tuple(u for u in t.walk([x]) if u.op == t.INPUT)


def in_order(roots: Iterable[Term], known: Mapping[Term, Heavy]) -> tuple[Heavy, ...]:
  """The heavy values under ``roots``, arguments before users, in an order by content alone."""
  found: dict[Term, Heavy] = {}

  def visit(x: Term) -> None:
    for leaf in leaves_of(x):
      if leaf not in found:
        for a in known[leaf].args:
          visit(a)
        found[leaf] = known[leaf]

  for root in roots:
    visit(root)
  return tuple(found.values())


def canonical_kernel(kernel: Kernel, tensors: Sequence[KTensor]) -> str:
  """The text of a kernel, of a well-formed µGraph over ``tensors``, whose order saves follow."""
  terms, known = block_terms(kernel)
  place = {x.name: n for n, x in enumerate(tensors)}
  saves = sorted(kernel.saves, key=lambda s: place[s.tensor])
  order = in_order((terms[s.arg] for s in saves), known)
  names = {str(h.leaf.attr): f"%{n}" for n, h in enumerate(order)}

  def text(x: Term) -> str:
    return _LEAF.sub(lambda m: names[m[0].partition("[")[0]], t.to_text(x))

  cluster, loop = kernel.cluster or "-", kernel.loop or "-"
  lines = [f"kernel grid={','.join(kernel.grid)} cluster={cluster} loop={loop}"]
  for h in order:
    args = ", ".join(map(text, h.args))
    lines.append(f"  {names[str(h.leaf.attr)]} = {h.head}{args and ' '}{args} : {h.op.phase}")
  for s in saves:
    # A kernel's own part axis is named after it; the name says nothing of what it does.
    own = (a and a.removesuffix(kernel.name) if a and "/" in a else a for a in s.omap)
    lines.append(f"  save {s.tensor} = {text(terms[s.arg])} omap={','.join(a or '-' for a in own)}")
  return "\n".join(lines) + "\n"
