"""The targets, operation sets and bounds of the completeness test.

Each target is spelled with all its factors inside the sum, where the axioms start from.
"""

from fractions import Fraction

from completeness import Case

from mirage_onnx.ir import term as t

X, G, W, V = (t.input_(n, a) for n, a in (("x", "mk"), ("g", "k"), ("w", "kn"), ("v", "kn")))
C, H = t.input_("c", "m"), t.input_("h", "n")
S, U, A = t.input_("s", "ml"), t.input_("v", "ld"), t.input_("s", "l")
XGW = {"x": "mk", "g": "k", "w": "kn"}


def _sum(axis, *factors):
  return t.reduce_(t.SUM, axis, t.mul(*factors))


def _shifted(s):
  return t.apply("exp", t.add(s, t.mul(t.const(-1), t.reduce_(t.MAXR, "l", s))))


CASES = (
  # Where the factors of a contraction go: to either operand, or behind it.
  Case(
    "scaled", XGW | {"c": "m", "h": "n"}, "mn", _sum("k", X, G, W, C, H),
    "mul acc_sum matmul", "k", "k", (), 5,
  ),
  Case(
    "two", {"x": "mk", "w": "kn", "v": "kn"}, "mn", t.add(_sum("k", X, W), _sum("k", X, V)),
    "mul add acc_sum matmul", "k", "k", (), 5,
  ),
  # A norm before a linear layer, its root before, in or behind the contraction.
  Case(
    "norm", XGW, "mn", _sum("k", X, G, W, t.power(_sum("k", X), Fraction(-1, 2))),
    "mul div sqrt sum matmul", "k", None, ("m",), 5,
  ),
  # Weights exp(s - max) / sum, with the maximum and without it.
  Case(
    "soft", {"s": "ml", "v": "ld"}, "md",
    _sum("l", _shifted(S), U, t.power(_sum("l", _shifted(S)), -1)),
    "exp exp-sub div sum rmax matmul", "l", None, ("m",), 6,
  ),
  # A sum over the loop of what is shifted by the maximum over the loop.
  Case(
    "online", {"s": "l"}, "", _sum("l", _shifted(A)),
    "exp-sub rmax run_max prev sum acc_sum acc_max acc_scaled", "l", "l", (), 9,
  ),
)  # fmt: skip
