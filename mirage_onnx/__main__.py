"""``python -m mirage_onnx``."""

import sys

from mirage_onnx.cli import main

sys.exit(main())
