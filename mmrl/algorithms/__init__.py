"""Stage components: pure functions of tensors, registered by name."""

from mmrl.algorithms import advantages, aggregation, filters, ratios, regularizers, shaping, surrogates

__all__ = ["advantages", "aggregation", "filters", "ratios", "regularizers", "shaping", "surrogates"]
