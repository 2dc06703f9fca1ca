"""Makes the page about the model of a load, and its plot."""

import report

CORES = (4, 8, 16, 32, 64)
GIGABITS = (1.0, 10.0, 25.0)
# The last line of the table of the machine, as no other program is measured.
NO_PROGRAMS = "\n| programs |  |"
COLOURS = ("#1b6ca8", "#c0392b", "#2e7d32")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 60, 20, 150, 40

# The results by name of the input: (cores, lanes), the predicted and the measured seconds.
Checks = dict[str, list[tuple[tuple[int, int], float, float]]]


def build(about: dict, costs: dict, checks: Checks, results: str) -> tuple[str, str]:
    """Returns the page as Markdown and the plot as SVG. `costs` has a `Costs` by name of input."""
    page = f"""# Where a load is held up on larger machines, by a model

This machine has {about["cores"]} processors. The model says from the costs measured here what more
of them would bring. It was checked against runs with one and with two processors, and against
nothing larger. Every run is in [{results}](results/{results}).

{report.machine_table(about).removesuffix(NO_PROGRAMS)}

![rows a second by processors](model.svg)

## The model

A load is a pipeline. Its slowest stage decides, and the fixed time is added.

| stage | what it is |
|---|---|
| source | one thread decompresses a file, and one at a time cuts it into chunks |
| lanes | threads of the client encode rows and send them, one for each processor |
| server | sessions parse COPY and write rows and WAL, one for each lane |
| network | the bytes of binary COPY |

The costs are seconds of one processor, from a run with one lane on two processors. Decompression
is what a compressed file costs the client beyond the same rows as plain text. *Fixed* is the time
of a load of one row. The server's own locks (the extension of a table, the insertion of WAL) and
its disk are not in the model. So the figures for many processors are upper bounds.

{cost_table(costs)}

## Checked

Client and server share the processors. All work must fit into them, beside the stages.

{check_table(checks)}

## Client and server with so many processors each

Million rows a second, and what holds the load up. There are as many lanes as processors.

{prediction_tables(costs)}

## Do it again

```
python3 bench/model.py
```

It needs what `bench/run.sh` needs, and five minutes on a quiet machine.
"""
    return page, plot(costs)


def cost_table(costs: dict) -> str:
    """Returns the costs of the stages by input."""
    lines = [
        "| input | rows | source s | lanes s | server s | bytes on the wire | fixed s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, it in costs.items():
        lines.append(
            f"| {name} | {it.rows:,} | {it.source_s:.2f} | {it.lanes_s:.2f} | {it.server_s:.2f} "
            f"| {it.wire_bytes / 1e6:.0f} MB | {it.fixed_s:.2f} |"
        )
    return "\n".join(lines)


def check_table(checks: Checks) -> str:
    """Returns predicted and measured times."""
    lines = [
        "| input | processors | lanes | predicted s | measured s | predicted / measured |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, rows in checks.items():
        for (cores, lanes), predicted, measured in rows:
            lines.append(
                f"| {name} | {cores} | {lanes} | {predicted:.2f} | {measured:.2f} "
                f"| {predicted / measured:.2f} |"
            )
    return "\n".join(lines)


def prediction_tables(costs: dict) -> str:
    """Returns a table for each input: by cores and network, the rate and the slowest stage."""
    tables = []
    for name, it in costs.items():
        heads = ["no network", *(f"{gigabits:g} Gbit/s" for gigabits in GIGABITS)]
        head = f"| processors | {' | '.join(heads)} |"
        lines = [f"**{name}**", "", head, "|---:|---|---|---|---|"]
        for cores in CORES:
            cells = []
            for gigabits in (None, *GIGABITS):
                seconds, slowest = it.seconds(cores, gigabits)
                cells.append(f"{it.rows / seconds / 1e6:.2f}, {slowest}")
            lines.append(f"| {cores} | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def plot(costs: dict) -> str:
    """Returns the rates by cores as an SVG, without a network and, dashed, with 10 Gbit/s."""
    cores = (1, 2, *CORES)
    rates = {
        (name, gigabits): [it.rows / it.seconds(n, gigabits)[0] / 1e6 for n in cores]
        for name, it in costs.items()
        for gigabits in (None, 10.0)
    }
    top = max(max(values) for values in rates.values()) * 1.05
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: int) -> float:
        return LEFT + inner_width * at / (len(cores) - 1)

    def y(value: float) -> float:
        return TOP + inner_height * (1 - value / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for at, count in enumerate(cores):
        parts.append(f'<text x="{x(at):.0f}" y="{HEIGHT - 22}" text-anchor="middle">{count}</text>')
    middle = LEFT + inner_width / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 5}" text-anchor="middle">processors of the client, '
        "and of the server</text>"
    )
    step = next(it for it in (0.5, 1, 2, 5, 10, 20, 50) if top / it <= 8)
    for n in range(int(top / step) + 1):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(n * step):.1f}" y2="{y(n * step):.1f}" '
            f'stroke="#ddd"/><text x="{LEFT - 6}" y="{y(n * step) + 4:.1f}" '
            f'text-anchor="end">{n * step:g}</text>'
        )
    parts.append(f'<text x="{LEFT - 50}" y="{TOP - 6}">million rows/s</text>')
    for colour, name in zip(COLOURS, costs, strict=False):
        for gigabits, dash in ((None, ""), (10.0, ' stroke-dasharray="5 4"')):
            values = rates[name, gigabits]
            points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(values))
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="2"{dash}/>'
            )
    parts += legend(list(costs))
    return "\n".join([*parts, "</svg>", ""])


def legend(names: list[str]) -> list[str]:
    """Returns the legend at the right of the plot."""
    parts = []
    left = WIDTH - RIGHT + 12
    entries = [(colour, "", name) for colour, name in zip(COLOURS, names, strict=False)]
    entries.append(("#444", ' stroke-dasharray="5 4"', "with 10 Gbit/s"))
    for at, (colour, dash, label) in enumerate(entries):
        y = TOP + 14 + 20 * at
        parts.append(
            f'<line x1="{left}" x2="{left + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" '
            f'stroke-width="2"{dash}/><text x="{left + 30}" y="{y}">{label}</text>'
        )
    return parts
