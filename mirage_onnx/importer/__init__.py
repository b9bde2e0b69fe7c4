"""ONNX graph -> Program: a typed tensor program, with a reason for every node left out."""

from mirage_onnx.importer.build import import_model
from mirage_onnx.importer.constants import Atom, atoms
from mirage_onnx.importer.load import LoadedModel, load_model

__all__ = ["Atom", "LoadedModel", "atoms", "import_model", "load_model"]
