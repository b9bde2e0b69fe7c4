"""Kernel graphs that are superoptimized and run from Python, as in Mirage's README."""
