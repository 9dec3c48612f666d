"""Signals: named quantities that need a model, computed once into `batch.signals` for the components that need them."""

from mmrl.signals.answer import answer_logp, answer_positions
from mmrl.signals.compute import MissingSignal, compute, models_needed, signals_needed
from mmrl.signals.logp import ema_answer_logp, ema_logp, engine_logp, entropy, ref_logp

__all__ = [
    "MissingSignal",
    "answer_logp",
    "answer_positions",
    "compute",
    "ema_answer_logp",
    "ema_logp",
    "engine_logp",
    "entropy",
    "models_needed",
    "ref_logp",
    "signals_needed",
]
