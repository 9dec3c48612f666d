"""Makers of questions: pure functions on plain data. Raise `Unpuzzling` with a short code where a row allows none."""

from mmrl_prep.questions.budget import frame_budget
from mmrl_prep.questions.difficulty import Augmentation, add_hint, augmentation
from mmrl_prep.questions.inversion import draw_order, invert, negate, question_answer_inversion
from mmrl_prep.questions.noise import KINDS, LEVELS, add_noise
from mmrl_prep.questions.question import (
    OptionQuestion,
    distractors,
    reorder,
    shuffle_options,
    with_distractors,
)

__all__ = [
    "KINDS",
    "LEVELS",
    "Augmentation",
    "OptionQuestion",
    "add_hint",
    "add_noise",
    "augmentation",
    "distractors",
    "draw_order",
    "frame_budget",
    "invert",
    "negate",
    "question_answer_inversion",
    "reorder",
    "shuffle_options",
    "with_distractors",
]
