"""What the models of ``models/architectures`` are, by name."""

DECODE, PREFILL, ENCODER, OTHER = "decode step", "prefill", "encoder", "cross-attending decoder"
#: Of ``models/architectures/exports.py``: NAME.EXPORTER.
EXPORT = "of another exporter"
KINDS = (DECODE, ENCODER, PREFILL, OTHER, EXPORT)

#: Start of a name -> kind, where the name does not say it itself.
_BY_START = {
  "lora": DECODE,  # one token against a cache
  "ngpt": DECODE,  # one token's hidden state
  "mamba": PREFILL,
  "t5_decoder": OTHER,
  "whisper_decoder": OTHER,
}


def kind_of(name):
  """One of ``KINDS``."""
  if "." in name:
    return EXPORT
  if "_decode" in name and "_decoder" not in name:
    return DECODE
  if "_prefill" in name:
    return PREFILL
  return next((kind for start, kind in _BY_START.items() if name.startswith(start)), ENCODER)
