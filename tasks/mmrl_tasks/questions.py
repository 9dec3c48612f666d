"""Questions about pictures and clips that come with their answers."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

mcq = register("task", "mcq")(Task("mcq", "The answer is one letter."))
number = register("task", "number")(Task("number", "The answer is one number."))
grounding = register("task", "grounding")(
    Task("grounding", "The answer is one box [x1, y1, x2, y2] in pixels of the picture.")
)
multi = register("task", "multi")(
    Task("multi", "The answer is the letters of all options that are right, separated by commas.")
)
text = register("task", "text")(Task("text", "The answer is a word or a short phrase."))
pointing = register("task", "pointing")(Task("pointing", "The answer is one point [x, y] in pixels of the picture."))
grounding_all = register("task", "grounding_all")(
    Task("grounding_all", "The answer is a list of boxes [[x1, y1, x2, y2], ...] in pixels of the picture.")
)
temporal_grounding = register("task", "temporal_grounding")(
    Task("temporal_grounding", "The answer is the start and the end in seconds, such as 3.5 to 8.")
)
ordering = register("task", "ordering")(Task("ordering", "The answer is a list of numbers, such as 2, 0, 1."))
rotation_angle = register("task", "rotation_angle")(
    Task("rotation_angle", "The answer is a number of degrees clockwise: 0, 90, 180 or 270.")
)
transcription = register("task", "transcription")(Task("transcription", "The answer is the text of the page."))
