"""Warnings that name the line of the program."""

import os
import sys
import warnings

_HERE = os.path.dirname(__file__) + os.sep


def warn(text, category=UserWarning):
    """Shows a warning for the innermost line that is not of this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
