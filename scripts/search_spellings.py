"""The spellings that saturation finds for the values of a region, as lines of text."""

from fractions import Fraction

from mirage_onnx.ir.term import ADD, CONST, EXTENT, INPUT, MUL, POW
from mirage_onnx.superopt.egraph import HEAVY, RUN, is_part, reachable


class HeavySpellings:
    """The reductions and running maxima that some spelling of ``roots`` uses.

    Values with such a spelling have ``letters``, in the order in which they are built up; what lies
    between them is written out by its shortest elementwise spelling.
    """

    def __init__(self, g, roots):
        self.graph, self.roots = g, roots
        pending = [c for c in sorted(reachable(g, roots)) if _own(g, c)]
        self.letters = {}
        self._texts = texts = _Texts(g, self.letters, frozenset(pending))
        while pending:
            ready = (c for c in pending if any(texts.known(n) for n in _own(g, c)))
            c = next(ready, pending[0])
            self.letters[c] = f"v{len(self.letters) + 1}"
            pending.remove(c)

    def name(self, c):
        """The letter of a class, or its shortest spelling."""
        return self._texts.shortest(c)

    def lines(self):
        """A line for every spelling, and those of the roots."""
        g, texts = self.graph, self._texts
        for c, letter in self.letters.items():
            for i, n in enumerate(sorted(_own(g, c), key=lambda n: _order(n, texts.node(n)))):
                yield f"{'' if i else letter:4}= {texts.node(n)}"
        for root in self.roots:
            light = [texts.node(n) for n in g.nodes(root) if n.op not in HEAVY]
            own = [self.letters[root]] if root in self.letters else []
            for i, text in enumerate([*own, *sorted(light, key=lambda t: (len(t), t))]):
                yield f"{'' if i else 'out':4}= {text}"


def _order(n, text):
    """Spellings over parts come last, long ones after short ones."""
    return any(map(is_part, n.attr)), len(text), text  # type: ignore[arg-type, union-attr]


def _own(g, c):
    return [n for n in g.nodes(c) if n.op in HEAVY or n.op == RUN]


class _Texts:
    """Texts of classes over the letters of heavy classes."""

    def __init__(self, g, letters, heavy):
        self.g, self.letters, self.heavy = g, letters, heavy
        self._depth = self._depths()

    def _depths(self):
        """Operations of the shortest elementwise spelling, where there is one."""
        found = dict.fromkeys(self.heavy, 0)
        changed = True
        while changed:
            changed = False
            for c in self.g.classes():
                for n in self.g.nodes(c):
                    if n.op in HEAVY or n.op == RUN or c in self.heavy:
                        continue
                    if all(self.g.find(k) in found for k in n.children):
                        size = 1 + sum(found[self.g.find(k)] for k in n.children)
                        if size < found.get(c, 1 << 30):
                            found[c] = size
                            changed = True
        return found

    def known(self, n):
        """Whether all heavy classes that the node is written with have letters."""
        todo, seen = [self.g.find(k) for k in n.children], set[int]()
        while todo:
            c = todo.pop()
            if c in seen:
                continue
            seen.add(c)
            if c in self.heavy:
                if c not in self.letters:
                    return False
                continue
            todo += [self.g.find(k) for k in self._best(c).children]
        return True

    def _best(self, c):
        def size(n):
            return sum(self._depth[self.g.find(k)] for k in n.children), repr(n)

        light = [
            n
            for n in self.g.nodes(c)
            if n.op not in HEAVY and all(self.g.find(k) in self._depth for k in n.children)
        ]
        return min(light, key=size)

    def shortest(self, c):
        c = self.g.find(c)
        return self.letters[c] if c in self.letters else self.node(self._best(c))

    def node(self, n):
        """One spelling, with infix operations."""
        args = [self.shortest(k) for k in n.children]
        if n.op == INPUT:
            return str(n.attr)
        if n.op == CONST:
            return str(n.attr)
        if n.op == EXTENT:
            return f"|{','.join(n.attr)}|"  # type: ignore[arg-type]
        if n.op == POW:
            assert isinstance(n.attr, Fraction)
            return f"{_inner(args[0])}^({n.attr})"
        if n.op == MUL:
            if "-1" in args:
                args.remove("-1")
                return "-" + " * ".join(map(_inner, args))
            return " * ".join(map(_inner, args))
        if n.op == ADD:
            args.sort(key=lambda a: a.startswith("-"))
            return " + ".join(args).replace("+ -", "- ")
        axes = f"[{','.join(n.attr)}]" if isinstance(n.attr, tuple) else ""
        return f"{n.op}{axes}({'; '.join(args)})"


def _inner(text):
    """A factor: in brackets if it is a sum."""
    level = 0
    for at, letter in enumerate(text):
        level += (letter == "(") - (letter == ")")
        if level == 0 and text[at : at + 3] in (" + ", " - "):
            return f"({text})"
    return text
