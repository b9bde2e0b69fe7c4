"""The language of the axiom table, read.

    variables x y z f s m c ...  arrays over named axes      x*y  x+y  x-y  x/y  -x  2
    sum[k](E)  rmax[k](E)        reductions, sum[j,k](E) over both axes
    psum[k](E)  pmax[k](E)       reductions of each block of k: k becomes the part axis k'
    scaled[k](E; m)              sum over k of E, where run(m) in E is the maximum of the iterations
                                 so far, rescaled as it grows to the maximum m
    pscaled[k](E; m)             the same in each block of k
    exp(E), tanh(E), max(E, E)   elementwise functions;  pow[-1/2](E), pow[r](E) powers

A difference is a sum with a product by -1 and a quotient a product with a power -1, as in terms
(``ir/term.py``); parentheses are kept, so ``(x*y)*z`` is not ``x*y*z``.
"""

import re
from fractions import Fraction

from axiom_formulas import BINDERS, MINUS, SCALED, Formula, FormulaError


def forms(text):
  found, depth, start = [], 0, 0
  for at, c in enumerate(f"{text},"):
    depth += (c in "([") - (c in ")]")
    if c == "," and depth == 0:
      found.append(parse(text[start:at]))
      start = at + 1
  return tuple(found)


def parse(text):
  parser = _Parser(text)
  result = parser.total()
  parser.expect("")
  return result


_TOKEN = re.compile(r"\s*(?:([A-Za-z]\w*'*)|(\d+)|([-+*/()\[\],;]))")


class _Parser:
  def __init__(self, text):
    self.text, self.tokens, at = text, [], 0
    while text[at:].strip():
      found = _TOKEN.match(text, at)
      if found is None:
        raise FormulaError(f"cannot read {text[at:]!r} of {text!r}")
      self.tokens.append(found.group().strip())
      at = found.end()
    self.tokens.append("")

  def take(self, *wanted):
    if self.tokens[0] in wanted:
      return self.tokens.pop(0)
    return None

  def expect(self, token):
    if self.tokens[0] != token:
      at = self.tokens[0] or "its end"
      raise FormulaError(f"{self.text!r} has {at!r} for {token or 'its end'!r}")
    self.tokens.pop(0)

  def name(self):
    if not re.match("[A-Za-z]", self.tokens[0]):
      raise FormulaError(f"{self.text!r} has {self.tokens[0]!r} for a name")
    return self.tokens.pop(0)

  def total(self):
    terms = [_negated(self.product()) if self.take("-") else self.product()]
    while sign := self.take("+", "-"):
      one = self.product()
      terms.append(_negated(one) if sign == "-" else one)
    return terms[0] if len(terms) == 1 else Formula("add", tuple(terms))

  def product(self):
    factors, sign = [self.factor()], self.take("*", "/")
    while sign:
      one = self.factor()
      factors.append(one if sign == "*" else Formula("pow", (one,), value=Fraction(-1)))
      sign = self.take("*", "/")
    one = Formula("const", value=Fraction(1))
    factors = [f for f in factors if f != one] or [one]
    return factors[0] if len(factors) == 1 else Formula("mul", tuple(factors))

  def factor(self):
    if self.take("("):
      inner = self.total()
      self.expect(")")
      return inner
    if self.tokens[0].isdigit():
      return Formula("const", value=Fraction(self.tokens.pop(0)))
    name = self.name()
    if name in BINDERS:
      return self.binder(name)
    if name == "pow":
      self.expect("[")
      exponent = self.exponent()
      self.expect("]")
      return Formula("pow", self.arguments(1), value=exponent)
    if self.tokens[0] == "(":
      return Formula(name, self.arguments(1 if name == "run" else None))
    return Formula("var", value=name)

  def binder(self, name):
    self.expect("[")
    axes = [self.name()]
    while self.take(","):
      axes.append(self.name())
    self.expect("]")
    if name not in SCALED:
      return Formula(name, self.arguments(1), tuple(axes))
    self.expect("(")
    body = self.total()
    self.expect(";")
    top = self.total()
    self.expect(")")
    return Formula(name, (body, top), tuple(axes))

  def exponent(self):
    sign = -1 if self.take("-") else 1
    if not self.tokens[0].isdigit():
      return self.name()
    top = int(self.tokens.pop(0))
    below = int(self.tokens.pop(0)) if self.take("/") else 1
    return Fraction(sign * top, below)

  def arguments(self, count):
    self.expect("(")
    found = [self.total()]
    while self.take(","):
      found.append(self.total())
    self.expect(")")
    if count not in (None, len(found)):
      raise FormulaError(f"{self.text!r} gives {len(found)} arguments where {count} belong")
    return tuple(found)


def _negated(f):
  return Formula("mul", (MINUS, *(f.args if f.op == "mul" else (f,))))
