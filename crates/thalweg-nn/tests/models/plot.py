"""Draws fifty training steps here and in PyTorch as an SVG, with a panel per model.

    THALWEG_LOSSES=/tmp cargo test -p thalweg-nn --test it learns_as_in_pytorch
    python3 plot.py /tmp models-losses.svg
"""

import sys

NAMES = {"gpt2": "GPT-2", "bert": "BERT", "llama": "Llama", "resnet": "ResNet", "unet": "U-Net", "lstm": "LSTM", "graph": "graph network"}
WIDTH, HEIGHT, GAP = 200, 120, 30
STYLE = (
    "<style>text { fill: #161b22 } .panel { fill: #fff } .theirs { stroke: #bbb } .ours { stroke: #c22 } "
    "@media (prefers-color-scheme: dark) { text { fill: #e8ecf2 } .panel { fill: #151920 } .theirs { stroke: #667 } .ours { stroke: #f66 } }</style>"
)


def panel(name, title, left, top):
    with open(f"{sys.argv[1]}/{name}.txt") as file:
        rows = [[float(number) for number in line.split()] for line in file]
    high = max(map(max, rows))

    def line(column, style):
        points = " ".join(
            f"{left + WIDTH * step / (len(rows) - 1):.1f},{top + HEIGHT * (1 - row[column] / high):.1f}"
            for step, row in enumerate(rows)
        )
        return f'<polyline points="{points}" fill="none" {style}/>'

    off = max(abs(ours - theirs) / theirs for ours, theirs in rows)
    text = f"{title}: {rows[0][0]:.2f} to {rows[-1][0]:.3f}, off by at most {off:.0e}"
    return [
        f'<text x="{left}" y="{top - 6}">{text}</text>',
        f'<path d="M{left},{top}v{HEIGHT}h{WIDTH}" fill="none" stroke="#888"/>',
        line(1, 'class="theirs" stroke-width="6"'),
        line(0, 'class="ours" stroke-width="1.5"'),
    ]


def main():
    columns, rows = 3, -(-len(NAMES) // 3)
    width, height = columns * (WIDTH + 2 * GAP), rows * (HEIGHT + 2 * GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="9" role="img" aria-labelledby="name">',
        STYLE,
        '<rect class="panel" width="100%" height="100%"/>',
        f'<text id="name" x="{GAP}" y="18" font-size="12">Loss of fifty steps in float32 from the same weights: PyTorch (grey), Thalweg (red)</text>',
    ]
    for number, (name, title) in enumerate(NAMES.items()):
        column, row = number % columns, number // columns
        parts += panel(name, title, GAP + column * (WIDTH + 2 * GAP), 2 * GAP + row * (HEIGHT + 2 * GAP))
    with open(sys.argv[2], "w") as file:
        file.write("\n".join([*parts, "</svg>\n"]))


main()
