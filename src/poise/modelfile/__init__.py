"""The file of a learner: taught folder by folder, asked for predictions and scores, described.

`file` is the file with its lock and the phase in its middle beside it, `prediction` what a learner says of images,
`info` what a file holds.
"""

from poise.modelfile.file import Lesson, ModelFile
from poise.modelfile.info import LearnerSummary
from poise.modelfile.prediction import (
    FolderScore,
    Prediction,
    class_names,
    predict_files,
    predict_paths,
    read_paths,
    score_folder,
    set_reject,
)

__all__ = [
    "FolderScore",
    "LearnerSummary",
    "Lesson",
    "ModelFile",
    "Prediction",
    "class_names",
    "predict_files",
    "predict_paths",
    "read_paths",
    "score_folder",
    "set_reject",
]
