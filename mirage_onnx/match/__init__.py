"""Regions: which sets of ONNX nodes to offer to the search."""
