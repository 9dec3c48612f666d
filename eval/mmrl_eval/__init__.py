"""Evaluation of vision-language models: per-sample records, intervals, consistency, paired comparison."""


class RunError(ValueError):
    """A run folder or a comparison that cannot be used; the message says what to do."""
