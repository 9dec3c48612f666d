"""Evaluation of vision-language models: per-sample records, intervals, consistency, paired comparison."""
