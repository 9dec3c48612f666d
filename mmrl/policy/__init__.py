"""The policy: loading, log-probs, reference copies, sharding and checkpoints."""
