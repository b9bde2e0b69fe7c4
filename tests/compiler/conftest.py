"""The block graphs of ``tests/golden.txt`` for tests of their kernels."""

from block_graphs import graphs

__all__ = ["graphs"]
