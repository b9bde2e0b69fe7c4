"""Which kernels a search enumerates.

``ALL`` is the space of the design: any block graph over the roles of the dimensions. ``EMITTED`` is
the part of it that code generation has rules for: streaming kernels (one loop, whose axis every
contraction in it runs over, with weights on one side) and row kernels (no loop, one axis spread
over the threads). The pipeline searches what it can compile.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Space:
    """``tiled``: contractions over axes of a tile and over several axes, and loops without one.

    ``shifted``: running maxima in a loop, and maxima of parts. ``split``: a reduction shared out
    over the blocks of a grid, whose partial results a later kernel combines.
    """

    tiled: bool = True
    shifted: bool = True
    split: bool = True


ALL = Space()
EMITTED = Space(tiled=False, shifted=False, split=False)
