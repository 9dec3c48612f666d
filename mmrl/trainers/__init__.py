"""The loops: reinforcement learning (`rl`) and supervised training (`sft`)."""
