"""Reads the reports of the retry lab in a directory with third-party readers, and prints what they find as JSON."""

import json
import sys
from pathlib import Path

import junitparser
from markdown_it import MarkdownIt

directory = Path(sys.argv[1])


def junit():
    suites = junitparser.JUnitXml.fromfile(str(directory / "report.xml"))
    return [
        {
            "name": suite.name,
            "tests": suite.tests,
            "failures": suite.failures,
            "errors": suite.errors,
            "skipped": suite.skipped,
            "timestamp": suite.timestamp,
            "cases": [
                {
                    "name": case.name,
                    "class": case.classname,
                    "results": [
                        {"type": type(result).__name__, "message": result.message, "text": result.text}
                        for result in case.result
                    ],
                    "output": case.system_out,
                }
                for case in suite
            ],
        }
        for suite in suites
    ]


def markdown():
    text = (directory / "report.md").read_text()
    parser = MarkdownIt("commonmark").enable("table")
    tables, row = [], None
    tokens = parser.parse(text)
    for token in tokens:
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            row = []
            tables[-1].append(row)
        elif token.type == "inline" and row is not None:
            # The text that a reader sees, without the HTML comments that separate `@` and `#` from what follows.
            row.append("".join(child.content for child in token.children if child.type != "html_inline"))
        elif token.type == "tr_close":
            row = None
    inline = [child for token in tokens for child in token.children or []]
    return {
        "tables": tables,
        "headings": [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"],
        "inline": sorted({child.type for child in inline}),
        "html": sorted({child.content for child in inline if child.type == "html_inline"}),
        "blocks": [token.content for token in tokens if token.type == "html_block"],
    }


print(json.dumps({"junit": junit(), "markdown": markdown()}))
