"""Which regions to replace, once each has a price: a choice that knows of kernels only what they cost."""
