"""Tiled kernels: any well-formed block graph, from layouts by value to text."""
