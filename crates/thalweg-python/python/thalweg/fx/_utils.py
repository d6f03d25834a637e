"""Helpers that libraries import (`torch.fx._utils`)."""


def lazy_format_graph_code(name, gm, maybe_id=None, **kwargs):
    """Returns an object whose text is the code of a module of a graph."""
    class _Text:
        def __str__(self):
            return f"===== {name} =====\n{gm.print_readable(print_output=False)}\n"
    return _Text()
