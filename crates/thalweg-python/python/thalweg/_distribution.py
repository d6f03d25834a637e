"""The distribution `torch` of this package, which `importlib.metadata` finds."""

import importlib.metadata
import os

from ._alias import VERSION


class Distribution(importlib.metadata.Distribution):
    """The distribution `torch`, for programs that check whether PyTorch is installed and which release it is."""

    _FILES = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\nSummary: Thalweg under PyTorch's name\n",
        "top_level.txt": "torch\n",
        "INSTALLER": "thalweg\n",
    }

    def read_text(self, filename):
        """Returns the text of a file of the distribution."""
        return self._FILES.get(filename)

    def locate_file(self, path):
        """Returns the path of a file of the distribution."""
        return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), path)
