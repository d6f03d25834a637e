"""Counts of floating-point operations (`torch.utils.flop_counter`).
The counter can be created and read, but counting is left out."""

flop_registry = {}


class FlopCounterMode:
    """A region in which operations would be counted: entering it raises."""

    def __init__(self, mods=None, depth=2, display=True, custom_mapping=None):
        self.depth, self.display = depth, display

    def __enter__(self):
        raise NotImplementedError("FlopCounterMode is left out: operators are not counted; see the profiler for their times")

    def __exit__(self, *_):
        pass

    def get_total_flops(self):
        """Returns 0: nothing has been counted."""
        return 0

    def get_flop_counts(self):
        """Returns an empty dictionary: nothing has been counted."""
        return {}

    def get_table(self, depth=None):
        """Returns an empty text: nothing has been counted."""
        return ""


def register_flop_formula(targets, get_raw=False):
    """Returns a decorator that returns its function unchanged."""
    return lambda function: function
