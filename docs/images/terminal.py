"""Runs a terminal session against the demo, and draws it with its real output as SVG.

Usage: terminal.py TIDEGATE GATEWAY ADMIN FILE. GATEWAY and ADMIN are addresses of a running demo.
"""

import html
import os
import re
import subprocess
import sys

tidegate, gateway, admin, file = sys.argv[1:]

SESSION = rf"""
# Each client can register 4 devices at once, then one per second.
$ curl -s -o /dev/null -w '%{{http_code}} ' 'http://{gateway}/o/client/register?n=[1-4]'
$ curl -sI http://{gateway}/o/client/register | head -8

# A payment is made once, however often the client sends it.
$ order='{{"amount":1200,"currency":"EUR"}}'
$ pay() {{ curl -si -H 'Idempotency-Key: order-17' -d "$order" http://{gateway}/v1/payments; }}
$ pay | tail -1
$ pay | grep -e idempotent-replayed -e amount

# Which clients are rejected most? EARLY counts requests that did not wait for Retry-After.
$ tidegate top --once --admin http://{admin}
"""

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
CHARACTER, LINE, SIZE = 8.4, 20, 14
MARGIN, BAR = 18, 34
BACKGROUND, BORDER, TEXT = "#11161d", "#3b4450", "#d5dce4"
DIM, STRONG, GREEN, RED, BLUE, YELLOW = "#8693a2", "#ffffff", "#5fd38a", "#ff7b72", "#7db8ff", "#e8b94f"

# The first rule whose pattern matches the rest of a line colours what it matches.
COLOURS = [
    (r"^# .*", DIM),
    (r"^\$ (?=.)", GREEN),
    (r"^HTTP/1.1 429.*|^429", RED),
    (r"^(200 ?)+$", GREEN),
    (r"^retry-after(?=:)|^ratelimit[a-z-]*(?=:)|^idempotent-replayed(?=:)", YELLOW),
    (r"^[a-z-]+(?=: )", BLUE),
    (r"^LIMIT .*", STRONG),
]


def run():
    """Runs the commands in one shell, and returns the lines of the session."""
    bin_path = f"{os.path.dirname(tidegate)}:{os.environ['PATH']}"
    shell = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=os.environ | {"PATH": bin_path})
    lines = []
    for step in SESSION.strip().splitlines():
        lines.append(step)
        if not step.startswith("$ "):
            continue
        shell.stdin.write(f"{step[2:]}\nprintf '\\n-- end\\n'\n")
        shell.stdin.flush()
        output = []
        while (line := shell.stdout.readline()) not in ("-- end\n", ""):
            output.append(line.replace("\r", "").rstrip())
        while output and not output[-1]:
            output.pop()
        lines += output
    shell.stdin.close()
    if shell.wait() != 0:
        sys.exit("a command of the session failed")
    return lines


def spans(line):
    """Splits a line into parts of one colour."""
    parts, plain, at = [], "", 0
    is_command = line.startswith("$ ")
    while at < len(line):
        for pattern, colour in COLOURS:
            # `^` matches at the start of the line only.
            if pattern.startswith("^") and at > 0:
                continue
            match = re.compile(pattern.replace("^", "")).match(line, at)
            if match and not (is_command and at > 0):
                parts += [(plain, None), (match[0], colour)]
                plain, at = "", match.end()
                break
        else:
            plain += line[at]
            at += 1
    parts.append((plain, STRONG if is_command else None))
    return [(text, colour) for text, colour in parts if text]


def draw(lines):
    columns = max(map(len, lines))
    width = round(columns * CHARACTER + 2 * MARGIN)
    height = BAR + len(lines) * LINE + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>Terminal session with tidegate</title>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="9" fill="{BACKGROUND}"'
        f' stroke="{BORDER}"/>',
        *(f'<circle cx="{20 + 20 * n}" cy="18" r="5.5" fill="{colour}"/>'
          for n, colour in enumerate(["#f0655b", "#e8b94f", "#5fbf60"])),
        f'<g font-family="{FONT}" font-size="{SIZE}" fill="{TEXT}">',
    ]
    for number, line in enumerate(lines):
        if not line:
            continue
        y = BAR + (number + 1) * LINE - 5
        text = "".join(
            f'<tspan fill="{colour}">{html.escape(part, quote=False)}</tspan>' if colour
            else html.escape(part, quote=False) for part, colour in spans(line))
        # The length keeps the columns aligned in any font.
        length = f"{len(line) * CHARACTER:.1f}"
        parts.append(f'<text x="{MARGIN}" y="{y}" textLength="{length}" xml:space="preserve">{text}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


with open(file, "w", encoding="utf-8") as output:
    output.write(draw(run()))
