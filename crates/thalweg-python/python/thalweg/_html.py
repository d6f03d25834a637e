"""HTML of results for notebooks (`_repr_html_`). Text is escaped, and no external resources are loaded."""

import html


def paragraph(text):
    """Returns a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def table(names, rows):
    """Returns a table with a header row. Numbers are right-aligned."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = "".join("<tr>" + "".join(
        f'<td style="text-align:{"right" if isinstance(cell, int) else "left"}">{html.escape(str(cell))}</td>' for cell in row) + "</tr>"
        for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def size(count):
    """Returns a number of bytes in readable form."""
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"


def bar(parts, total, width=480):
    """Returns a bar of consecutive pieces, `(size, color, title)` each, whose widths are proportional to their shares of a
    total."""
    drawn, place = [], 0.0
    for extent, color, title in parts:
        length = width * extent / max(total, 1)
        drawn.append(f'<rect x="{place:.1f}" width="{max(length, 0.5):.1f}" height="14" fill="{color}"><title>{html.escape(title)}</title></rect>')
        place += length
    return f'<svg width="{width}" height="14" role="img">{"".join(drawn)}</svg>'
